"""Reductions along long rows, with accumulators for each place of a group: lengths around its units, strides of every sign, every
dtype, what is not finite, sums that are hard to get right, any number of threads. And where there is one accumulator."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.cpp.harness import TARGETS, Compiled, threads_of
from tests.codegen.cpp.test_jam import BF16, BOOL, F16, F32, F64, I8, I64, MIXED, data
from tests.codegen.triton.nests import Build, Case
from tinycompile.base.expr import sym
from tinycompile.codegen.cpp.emit import emit_kernel
from tinycompile.codegen.cpp.groups import LONG_ROW
from tinycompile.runtime.cpp_build import compiler, cpu_target

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

GROUP = cpu_target().vector
SHORTEST, LONG = LONG_ROW * GROUP, 32 * GROUP
PLACES = (0, 1, GROUP - 1, GROUP, SHORTEST - 1, SHORTEST, SHORTEST + 2)


def along(name: str, x: torch.Tensor, *kinds: str, backwards: bool = False) -> Case:
    """Each of ``kinds`` along the rows of x, which may be walked backwards."""
    rows, columns = x.shape
    b = Build(name, r=rows, c=(columns, "reduction"))
    b.input("x", x)
    r, c = b.axis("r"), b.axis("c")
    v = b.load("x", r, columns - 1 - c if backwards else c)
    for i, kind in enumerate(kinds):
        value = b.op("cast", v, dtype=I64) if kind in ("sum", "prod") and not b.dtypes[v].is_floating_point else v
        results = b.reduce(kind, value, "c")
        for k, result in enumerate(results if isinstance(results, tuple) else (results,)):
            b.output(f"out{i}_{k}", (rows,), b.dtypes[result])
            b.store(f"out{i}_{k}", result, r)
    return b.case()


def planes(name: str) -> Case:
    """Over the first and last of three axes: rows that lie far apart go into one sum."""
    b = Build(name, i=(5, "reduction"), j=3, k=(SHORTEST + 9, "reduction"))
    b.input("x", data((5, 3, SHORTEST + 9), F32))
    i, j, k = (b.axis(a) for a in "ijk")
    v = b.load("x", i, j, k)
    mean, m2 = b.reduce("welford", v, "i", "k")
    for name, value in (("sums", b.reduce("sum", v, "i", "k")), ("means", mean), ("squares", m2)):
        b.output(name, (3,), F32)
        b.store(name, value, j)
    return b.case()


def of_symbols(name: str) -> Case:
    m, n = sym("m", 2), sym("n", 2)
    b = Build(name, {"m": 4, "n": 900}, r=m, c=(n, "reduction"))
    b.input("x", data((4, 900), F32), (m, n), (n, 1))
    v = b.load("x", b.axis("r"), b.axis("c"))
    for kind in ("sum", "argmax"):
        result = b.reduce(kind, v, "c")
        b.output(kind, (m,), b.dtypes[result])
        b.store(kind, result, b.axis("r"))
    return b.case()


def picked(name: str) -> Case:
    """Sums of elements that an index names: each is checked."""
    b = Build(name, r=3, c=(SHORTEST * 2, "reduction"))
    b.input("x", data((3, 40), F32))
    b.input("at", torch.arange(SHORTEST * 2) * 7 % 40)
    r, c = b.axis("r"), b.axis("c")
    b.output("out", (3,), F32)
    b.store("out", b.reduce("sum", b.load("x", r, sym(b.load("at", c), 0, 40)), "c"), r)
    return b.case()


def all_cases() -> list[Case]:
    lengths = (SHORTEST - 1, SHORTEST, SHORTEST + 1, SHORTEST + GROUP - 1, LONG - 1, LONG + GROUP + 3, 3 * LONG)
    cases = [along(f"length_{n}", data((3, n), F32), "sum", "max") for n in lengths]
    n = SHORTEST + GROUP + 3
    kinds = {F32: ("prod", "argmin", "min"), F64: ("sum", "prod", "argmax", "welford"), BF16: ("sum", "max", "welford"),
             F16: ("sum", "argmax"), I64: ("sum", "prod", "min"), I8: ("sum", "argmax", "max"),
             torch.uint8: ("sum", "argmin"), BOOL: ("any", "all")}  # fmt: skip
    cases += [along(f"dtype_{d}".replace("torch.", ""), data((5, n), d), *k) for d, k in kinds.items()]
    cases.append(along("backwards", data((3, n), F32), "sum", "argmax", backwards=True))
    cases.append(along("repeated", data((1, n), F32).expand(3, n), "sum", "max"))
    cases.append(along("gaps", data((5, n + 90), F32)[::2, 40 : 40 + n], "sum", "argmin"))
    cases.append(along("every_second", data((3, 2 * n), F32)[:, 1::2], "sum", "min"))
    cases.append(along("same", data((3, 1), F32).expand(3, n), "sum"))
    cases.append(along("split", data((1, 70001), F32), "sum", "max", "argmin"))
    cases += [along(f"special_{k}", data((2, n), F32), k) for k in ("sum", "max", "min", "argmax", "argmin", "online_softmax")]
    return [*cases, planes("planes"), of_symbols("symbols"), picked("picked")]


CASES = {c.name: c for c in all_cases()}


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(CASES.values(), tmp_path_factory.mktemp("groups"), TARGETS[request.param])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_matches_the_interpreter(kernels: Compiled, name: str, threads: int) -> None:
    with threads_of(threads):
        kernels.check(name)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin", "online_softmax"])
def test_special_values_at_every_place(kernels: Compiled, kind: str) -> None:
    (x,) = CASES[f"special_{kind}"].inputs
    for special in MIXED:
        for at in PLACES:
            changed = x.clone()
            changed[1, at] = special
            kernels.check(f"special_{kind}", [changed])
    for fill in (float("-inf"), float("nan"), -0.0):
        kernels.check(f"special_{kind}", [torch.full_like(x, fill)])


@pytest.mark.parametrize("m, n", [(2, 2), (3, 63), (2, SHORTEST), (5, SHORTEST + 1), (2, 3 * LONG + 77)])
def test_one_kernel_for_several_sizes(kernels: Compiled, m: int, n: int) -> None:
    kernels.check("symbols", [data((m, n), F32)])


def test_ties_give_the_first_place(kernels: Compiled) -> None:
    for kind, best in (("argmax", 9.0), ("argmin", -9.0)):
        (x,) = CASES[f"special_{kind}"].inputs
        for first in PLACES:
            changed = x.clone()
            changed[:, first:] = best
            assert kernels.run(f"special_{kind}", [changed])[0].tolist() == [first, first]


def test_sums_of_much_and_little_are_as_exact_as_torchs(kernels: Compiled) -> None:
    """A large value, then many small ones that each are lost beside it; and what cancels."""
    n = 3 * LONG
    for first in (2.0**24, -(2.0**24), 1e8):
        x = torch.ones(3, n)
        x[:, 0] = first
        x[1, n // 2] = -first
        exact = x.double().sum(1)
        ours, torchs = ((s.double() - exact).abs().max() for s in (kernels.run(f"length_{n}", [x])[0], x.sum(1)))
        assert ours <= 2 * torchs + exact.abs().max() * 2**-23


def test_one_accumulator_where_a_row_is_short_or_checked() -> None:
    texts = {name: emit_kernel(case.plan.kernels[0], case.plan, cpu_target(), name).text for name, case in CASES.items()}
    assert {name for name, text in texts.items() if "tc::fold<" not in text} == {f"length_{SHORTEST - 1}", "picked"}
    asking = {name for name, text in texts.items() if "tc::next_page<" in text}
    assert asking >= {f"length_{LONG - 1}", "dtype_int8", "gaps", "planes", "split"}
    assert not asking & {"every_second", "backwards", "picked"}
