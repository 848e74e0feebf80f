"""Reductions and scans of every kind, over rows, columns, middles and everything, at awkward sizes, and what depends on them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.codegen.cpp.harness import TARGETS, Compiled, threads_of
from tests.codegen.triton.nests import Build, Case
from tinycompile.base.expr import sym
from tinycompile.ops.scalar import REDUCTIONS, SCANS
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool
ROWS = [(1, 1), (3, 7), (5, 127), (2, 1031), (4, 4096), (67, 64)]
PAIRS = ("welford", "online_softmax")


def data(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + math.prod(shape))
    if dtype is BOOL:
        return torch.rand(shape, generator=g) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=g).to(dtype)
    x = torch.randn(shape, generator=g, dtype=F64)
    return x.to(dtype)


def name_of(*parts: object) -> str:
    return "_".join(str(p).removeprefix("torch.") for p in parts)


def reduction(name: str, kind: str, x: torch.Tensor, over: tuple[int, ...], prologue: str | None = None) -> Case:
    """``kind`` of x over the dims ``over``; one output for each value."""
    axes = {f"i{d}": (n, "reduction" if d in over else "parallel") for d, n in enumerate(x.shape)}
    b = Build(name, **axes)
    b.input("x", x)
    points = [b.axis(a) for a in axes]
    v = b.load("x", *points)
    if prologue:
        v = b.op(prologue, v)
    if kind in ("sum", "prod") and not b.dtypes[v].is_floating_point:
        v = b.op("cast", v, dtype=I64)
    values = b.reduce(kind, v, *(f"i{d}" for d in over))
    kept = [d for d in range(x.dim()) if d not in over]
    for i, r in enumerate(values if kind in PAIRS else (values,)):
        out = b.output(f"out{i}", [x.shape[d] for d in kept], b.dtypes[r])
        b.store(out, r, *(points[d] for d in kept))
    return b.case()


def kinds_for(dtype: torch.dtype) -> list[str]:
    if dtype is BOOL:
        return ["any", "all"]
    kinds = [k for k in REDUCTIONS if k not in ("any", "all")]
    return kinds if dtype.is_floating_point else [k for k in kinds if k not in PAIRS]


def softmax(name: str, x: torch.Tensor, dim: int) -> Case:
    axes = {f"i{d}": (n, "reduction" if d == dim else "parallel") for d, n in enumerate(x.shape)}
    b = Build(name, **axes)
    b.input("x", x)
    points = [b.axis(a) for a in axes]
    v = b.load("x", *points)
    top, total = b.reduce("online_softmax", v, f"i{dim}")
    b.output("out", x.shape, F32)
    b.store("out", b.op("div", b.op("exp", b.op("sub", v, top)), total), *points)
    return b.case()


def layer_norm(name: str, x: torch.Tensor, r: torch.Tensor, half: bool = False) -> Case:
    """layer_norm(x + r)*w, also storing x + r and the means."""
    n, m = x.shape
    b = Build(name, i0=n, i1=(m, "reduction"))
    b.input("x", x)
    b.input("r", r)
    b.input("w", torch.linspace(0.5, 2, m))
    i, j = b.axis("i0"), b.axis("i1")
    s = b.op("add", b.load("x", i, j), b.load("r", i, j))
    mean, m2 = b.reduce("welford", s, "i1")
    scale = b.op("rsqrt", b.op("add", b.op("div", m2, b.const(m)), b.const(1e-5)))
    y = b.op("mul", b.op("mul", b.op("sub", s, mean), scale), b.load("w", j))
    b.output("out", (n, m), x.dtype)
    b.output("sums", (n, m), x.dtype)
    b.output("means", (n,), F32)
    b.store("sums", s, i, j)
    b.store("out", y, i, j)
    b.store("means", mean, i)
    return b.case()


def scan(name: str, kind: str, x: torch.Tensor, dim: int) -> Case:
    axes = {f"i{d}": (n, "reduction" if d == dim else "parallel") for d, n in enumerate(x.shape)}
    b = Build(name, **axes)
    b.input("x", x)
    points = [b.axis(a) for a in axes]
    b.output("out", x.shape, x.dtype)
    b.store("out", b.scan(kind, b.load("x", *points), f"i{dim}"), *points)
    return b.case()


def grouped(name: str) -> Case:
    """Group norm: two reduction axes inside, two parallel ones, and a weight along one of the reduced."""
    b = Build(name, n=3, g=4, c=(5, "reduction"), p=(49, "reduction"))
    b.input("x", data((3, 4, 5, 49), F32))
    b.input("w", data((4, 5), F32))
    at = [b.axis(a) for a in "ngcp"]
    v = b.load("x", *at)
    mean, m2 = b.reduce("welford", v, "c", "p")
    y = b.op("mul", b.op("sub", v, mean), b.op("rsqrt", b.op("add", m2, b.const(1e-5))))
    b.output("out", (3, 4, 5, 49), F32)
    b.store("out", b.op("mul", y, b.load("w", at[1], at[2])), *at)
    return b.case()


def nested(name: str) -> Case:
    """A reduction of reductions: max over the columns of row sums, and both used at every point."""
    b = Build(name, i=6, j=(11, "reduction"), k=(37, "reduction"))
    b.input("x", data((6, 11, 37), F32))
    i, j, k = (b.axis(a) for a in "ijk")
    v = b.load("x", i, j, k)
    rows = b.reduce("sum", v, "k")
    top = b.reduce("max", rows, "j")
    b.output("tops", (6,), F32)
    b.output("out", (6, 11, 37), F32)
    b.store("tops", top, i)
    b.store("out", b.op("sub", b.op("mul", v, rows), top), i, j, k)
    return b.case()


def constant_sum(name: str) -> Case:
    """The sum of a value that does not live at the axis it is summed over."""
    b = Build(name, i=9, j=(300, "reduction"))
    b.input("x", data((9,), F32))
    b.output("out", (9,), F32)
    b.store("out", b.reduce("sum", b.load("x", b.axis("i")), "j"), b.axis("i"))
    return b.case()


def log_softmax_pick(name: str) -> Case:
    """Cross entropy: log of the sum of exponentials, and one element picked by index, a reduction over all rows after one a row."""
    n, m = 33, 501
    b = Build(name, i=(n, "reduction"), j=(m, "reduction"))
    b.input("x", data((n, m), F32))
    b.input("t", torch.arange(n) * 7 % m)
    i, j = b.axis("i"), b.axis("j")
    top, total = b.reduce("online_softmax", b.load("x", i, j), "j")
    target = b.load("t", i)
    picked = b.load("x", i, sym(target, 0, m))
    loss = b.op("sub", b.op("add", b.op("log", total), top), picked)
    b.output("out", (), F32)
    b.store("out", b.reduce("sum", loss, "i"))
    return b.case()


def all_cases() -> list[Case]:
    cases = []
    for dtype, (n, m) in itertools.product((F32, F64, I64, torch.int8, BOOL), ROWS):
        for kind in kinds_for(dtype):
            if dtype is not F32 and (n, m) not in ((2, 1031), (3, 7)):
                continue
            x = data((n, m), dtype)
            for where, over in (("row", (1,)), ("column", (0,)), ("full", (0, 1))):
                cases.append(reduction(name_of(kind, where, dtype, n, m), kind, x, over))
    for kind in kinds_for(F32):
        x = data((3, 40, 50), F32)
        cases.append(reduction(name_of(kind, "middle"), kind, x, (1,)))
        cases.append(reduction(name_of(kind, "outer_and_inner"), kind, x, (0, 2)))
        cases.append(reduction(name_of(kind, "transposed"), kind, data((50, 70), F32).t(), (1,)))
        cases.append(reduction(name_of(kind, "every_second"), kind, data((9, 200), F32)[:, ::2], (1,)))
        cases.append(reduction(name_of(kind, "split_rows"), kind, data((1, 70000), F32), (1,)))
        cases.append(reduction(name_of(kind, "split_columns"), kind, data((9000, 16), F32), (0,)))
    for dim, shape in ((1, (5, 1000)), (1, (3, 4099)), (0, (60, 130)), (1, (4, 30, 50)), (1, (1, 90000)), (0, (3, 5))):
        cases.append(softmax(name_of("softmax", dim, *shape), data(shape, F32) * 5, dim))
    for n, m in ((1, 1), (7, 100), (3, 5000)):
        cases.append(layer_norm(name_of("layer_norm", n, m), data((n, m), F32), data((n, m), F32, 1)))
    for half in (torch.bfloat16, torch.float16):
        x, r = data((5, 301), half), data((5, 301), half, 1)
        cases.append(layer_norm(name_of("layer_norm", half), x, r))
    for kind, (dim, shape) in itertools.product(
        SCANS, ((1, (4, 100)), (0, (90, 33)), (1, (3, 17, 40)), (0, (1, 5)), (0, (5,)))
    ):
        for dtype in (F32, I64):
            cases.append(
                scan(name_of("scan", kind, dim, dtype, *shape), kind, data(shape, dtype).abs() + (kind == "prod"), dim)
            )
    return [*cases, grouped("grouped"), nested("nested"), constant_sum("constant_sum"), log_softmax_pick("cross_entropy")]


CASES = {c.name: c for c in all_cases()}


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(CASES.values(), tmp_path_factory.mktemp("reductions"), TARGETS[request.param])


@pytest.mark.parametrize("name", CASES)
def test_matches_the_interpreter(kernels: Compiled, name: str) -> None:
    kernels.check(name)


@pytest.mark.parametrize("where", ["row", "column", "full"])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin", "online_softmax"])
def test_special_values(kernels: Compiled, kind: str, where: str) -> None:
    for special in (float("nan"), float("inf"), float("-inf"), -0.0):
        for at in (0, 1, 500, 1030):
            x = data((2, 1031), F32)
            x = x.sign() if kind == "prod" else x  # else the product underflows, and 0 * inf depends on the order
            x[1, at] = special
            kernels.check(name_of(kind, where, F32, 2, 1031), [x])
    for fill in (float("-inf"), float("inf"), float("nan"), 0.0):
        kernels.check(name_of(kind, where, F32, 2, 1031), [torch.full((2, 1031), fill)])


@pytest.mark.parametrize("where", ["row", "column", "full"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_first_among_equals_and_first_nan(kernels: Compiled, kind: str, where: str) -> None:
    x = data((2, 1031), F32).round()
    x[:, [40, 900]] = 77.0 if kind == "argmax" else -77.0
    kernels.check(name_of(kind, where, F32, 2, 1031), [x])
    x[:, [33, 700]] = float("nan")
    kernels.check(name_of(kind, where, F32, 2, 1031), [x])


def test_softmax_of_a_row_of_minus_infinity_is_nan(kernels: Compiled) -> None:
    x = data((5, 1000), F32)
    x[2] = float("-inf")
    kernels.check("softmax_1_5_1000", [x])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("where, over", [("row", (1,)), ("column", (0,)), ("full", (0, 1))])
def test_long_sums_are_as_exact_as_torchs(
    tmp_path_factory: pytest.TempPathFactory, where: str, over: tuple[int, ...], target: str
) -> None:
    shapes = {"row": (2, 1 << 20), "column": (1 << 17, 8), "full": (1 << 10, 1 << 10)}
    x = torch.rand(shapes[where])
    kernels = Compiled([reduction(f"long_{where}", "sum", x, over)], tmp_path_factory.mktemp(where), TARGETS[target])
    exact = x.double().sum(over)
    ours, torchs = ((r.double() - exact).abs().max() for r in (kernels.run(f"long_{where}")[0], x.sum(over)))
    assert ours <= 2 * torchs + exact.abs().max() * 2**-23


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_answer_and_repeats_it(kernels: Compiled, threads: int) -> None:
    with threads_of(threads):
        for name in ("sum_split_rows", "argmax_split_rows", "welford_split_columns", "softmax_1_1_90000", "layer_norm_3_5000"):
            kernels.check(name)
            for first, second in zip(kernels.run(name), kernels.run(name)):
                assert torch.equal(first, second)


@pytest.mark.parametrize("where", ["row", "column", "full"])
def test_a_mean_is_finite_though_the_sum_is_beyond_float32(kernels: Compiled, where: str) -> None:
    x = torch.full((2, 1031), 3e38)
    mean, m2 = kernels.run(name_of("welford", where, F32, 2, 1031), [x])
    torch.testing.assert_close(mean, torch.full_like(mean, 3e38))
    assert not m2.isnan().any()
