"""Reductions of columns that take in several rows at once, and blocks that ask for the next: numbers of rows and columns around
each unit, strides of every sign, every dtype, what is not finite, any number of threads. And where rows go one by one."""

from __future__ import annotations

import pytest
import torch

import tinycompile
from tests.codegen.cpp.harness import TARGETS, Compiled, threads_of
from tests.codegen.triton.nests import Build, Case
from tinycompile.base.expr import sym
from tinycompile.codegen.cpp.emit import emit_kernel
from tinycompile.codegen.cpp.jam import JAM
from tinycompile.runtime.cpp_build import compiler, cpu_target

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

F32, F64, I64, I8, BOOL = torch.float32, torch.float64, torch.int64, torch.int8, torch.bool
BF16, F16 = torch.bfloat16, torch.float16
MIXED = (1.0, -0.0, float("inf"), float("-inf"), float("nan"), 3e38, 1e-42)
JAMMED = f"#pragma GCC unroll {JAM}"


def data(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(shape))
    if dtype is BOOL:
        return torch.rand(shape, generator=g) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g, dtype=F64).to(dtype)


def down(name: str, x: torch.Tensor, *kinds: str, backwards: bool = False, weights: torch.Tensor | None = None) -> Case:
    """Each of ``kinds`` down the columns of x, whose rows may be walked backwards and weighted."""
    rows, columns = x.shape
    b = Build(name, r=(rows, "reduction"), c=columns)
    b.input("x", x)
    r, c = b.axis("r"), b.axis("c")
    v = b.load("x", rows - 1 - r if backwards else r, c)
    if weights is not None:
        b.input("w", weights)
        v = b.op("mul", v, b.load("w", r))
    for i, kind in enumerate(kinds):
        value = b.op("cast", v, dtype=I64) if kind in ("sum", "prod") and not b.dtypes[v].is_floating_point else v
        result = b.reduce(kind, value, "r")
        b.output(f"out{i}", (columns,), b.dtypes[result])
        b.store(f"out{i}", result, c)
    return b.case()


def of_middle(name: str) -> Case:
    """A sum over the middle of three axes, divided by another over the last two."""
    b = Build(name, i=3, j=(19, "reduction"), k=70)
    b.input("x", data((3, 19, 70), F32))
    i, j, k = (b.axis(a) for a in "ijk")
    v = b.load("x", i, j, k)
    b.output("sums", (3, 70), F32)
    b.output("squares", (3, 70), F32)
    b.store("sums", b.reduce("sum", v, "j"), i, k)
    b.store("squares", b.reduce("max", b.op("mul", v, v), "j"), i, k)
    return b.case()


def of_symbols(name: str) -> Case:
    m, n = sym("m", 2), sym("n", 2)
    b = Build(name, {"m": 20, "n": 300}, r=(m, "reduction"), c=n)
    b.input("x", data((20, 300), F32), (m, n), (n, 1))
    b.output("out", (n,), F32)
    b.store("out", b.reduce("sum", b.load("x", b.axis("r"), b.axis("c")), "r"), b.axis("c"))
    return b.case()


def picked(name: str) -> Case:
    """Sums of rows that an index names: each is checked."""
    b = Build(name, r=(40, "reduction"), c=100)
    b.input("x", data((30, 100), F32))
    b.input("at", torch.arange(40) * 7 % 30)
    r, c = b.axis("r"), b.axis("c")
    b.output("out", (100,), F32)
    b.store("out", b.reduce("sum", b.load("x", sym(b.load("at", r), 0, 30), c), "r"), c)
    return b.case()


def dear(name: str) -> Case:
    """Rows scaled by an exponential: it is computed once a row."""
    b = Build(name, r=(40, "reduction"), c=100)
    b.input("x", data((40, 100), F32))
    b.input("w", data((40,), F32))
    r, c = b.axis("r"), b.axis("c")
    b.output("out", (100,), F32)
    b.store("out", b.reduce("sum", b.op("mul", b.load("x", r, c), b.op("exp", b.load("w", r))), "r"), c)
    return b.case()


def all_cases() -> list[Case]:
    cases = [down(f"rows_{n}", data((n, 100), F32), "sum") for n in (1, JAM - 1, JAM, JAM + 1, 63, 65, 64 + JAM)]
    cases += [down(f"columns_{n}", data((21, n), F32), "sum", "max") for n in (16, 63, 65, 1023, 2049)]
    kinds = {F64: ("sum", "prod", "argmin"), BF16: ("sum", "max"), F16: ("sum", "argmax"), I64: ("sum", "prod", "min"),
             I8: ("sum", "argmax", "max"), torch.uint8: ("sum", "min"), BOOL: ("any", "all")}  # fmt: skip
    cases += [down(f"dtype_{d}".replace("torch.", ""), data((77, 67), d), *k) for d, k in kinds.items()]
    cases.append(down("backwards", data((75, 130), F32), "sum", "argmax", backwards=True))
    cases.append(down("repeated", data((1, 130), F32).expand(75, 130), "sum", "max"))
    cases.append(down("every_second", data((150, 130), F32)[1::2], "sum", "min"))
    cases.append(down("same_columns", data((75, 1), F32).expand(75, 130), "sum"))
    cases.append(down("weights", data((75, 130), F32), "sum", weights=data((75,), F32)))
    special = torch.tensor(MIXED).repeat(11 * 19)[: 19 * 64].reshape(19, 64)
    cases += [down(f"special_{k}", special, k) for k in ("sum", "max", "min", "argmax", "argmin")]
    cases.append(down("split", data((40000, 24), F32), "sum", "max"))
    return [*cases, of_middle("middle"), of_symbols("symbols"), picked("picked"), dear("dear")]


CASES = {c.name: c for c in all_cases()}


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(CASES.values(), tmp_path_factory.mktemp("jam"), TARGETS[request.param])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_matches_the_interpreter(kernels: Compiled, name: str, threads: int) -> None:
    with threads_of(threads):
        kernels.check(name)


@pytest.mark.parametrize("m, n", [(2, 2), (7, 3), (8, 64), (9, 1025), (71, 2), (128, 2048)])
def test_one_kernel_for_several_sizes(kernels: Compiled, m: int, n: int) -> None:
    kernels.check("symbols", [data((m, n), F32)])


def test_rows_go_one_by_one_where_they_must() -> None:
    """Where indices are checked, where a row costs more than its columns, and where there are fewer rows than a group."""
    texts = {name: emit_kernel(case.plan.kernels[0], case.plan, cpu_target(), name).text for name, case in CASES.items()}
    alone = {name for name, text in texts.items() if JAMMED not in text}
    assert alone == {"picked", "dear", "rows_1", f"rows_{JAM - 1}", "same_columns"}  # the last: one sum for all


@pytest.mark.parametrize("dtype", (BOOL, I8, BF16, F32, F64), ids=str)
def test_blocks_ask_for_the_next_and_touch_nothing_else(dtype: torch.dtype) -> None:
    """Transposed beside straight and shifted reads, whose last block has no next, in memory that ends with the tensor."""
    add = torch.logical_xor if dtype == BOOL else torch.add

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = add(x.t(), y)
        return add(both, y[:, :1]), add(x.flip(0).t(), y.flip(1))

    fn = tinycompile.compile(program, backend="cpp", dynamic=False)
    for shape in ((17, 16), (600, 257)):
        x, y = (torch.randint(0, 9, s).to(dtype) for s in (shape, shape[::-1]))  # halves hold their sums
        for got, want in zip(fn(x, y), program(x, y)):
            assert torch.equal(got, want)
    assert any("tc::fetch_near<" in k.source for k in fn.kernels)
