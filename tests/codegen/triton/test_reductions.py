"""Reductions and scans: every kind, in rows and columns, whole and looped, at awkward sizes and special values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile
from tests.codegen.triton.harness import check, emitted, interpret
from tests.codegen.triton.nests import F32, Build, Case
from tinycompile.ops.scalar import SCALAR_OPS

pytestmark = pytest.mark.cpu

KINDS = ("sum", "prod", "max", "min", "argmax", "argmin", "welford", "online_softmax")
ROWS = [(1, 1), (3, 7), (5, 128), (33, 100), (257, 31), (2, 1000)]


def data(shape: tuple[int, ...], dtype: torch.dtype = F32, special: bool = False) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-100 if dtype.is_signed else 0, 100, shape).to(dtype)
    x = torch.randn(shape)
    if special:
        flat = x.view(-1)
        flat[::7] = float("-inf")
        flat[5::41] = float("nan")
        flat[3] = flat[-1] = 4.0
    return x.to(dtype)


def reduced(kind: str, x: torch.Tensor, dims: tuple[int, ...], name: str = "", epilogue: bool = False) -> Case:
    """``kind`` over ``dims`` of ``x``; stores each value, and with ``epilogue`` also ``x - value`` at every point."""
    rank = x.dim()
    axes = {f"i{d}": (x.shape[d], "reduction" if d in dims else "parallel") for d in range(rank)}
    b = Build(name or f"{kind}_{'x'.join(map(str, x.shape))}_over_{''.join(map(str, dims))}_{str(x.dtype)[6:]}", **axes)
    b.input("x", x)
    index = [b.axis(f"i{d}") for d in range(rank)]
    kept = [d for d in range(rank) if d not in dims]
    value = b.load("x", *index)
    results = b.reduce(kind, value, *(f"i{d}" for d in dims))
    for k, r in enumerate(results if isinstance(results, tuple) else (results,)):
        b.output(f"out{k}", [x.shape[d] for d in kept], b.dtypes[r])
        b.store(f"out{k}", r, *(index[d] for d in kept))
    if epilogue:
        first = results[0] if isinstance(results, tuple) else results
        b.output("rest", x.shape, b.dtypes[value])
        b.store("rest", b.op("sub", value, first), *index)
    return b.case()


def try_all(cases: list[Callable[[], object]]) -> None:
    """Run every case and show all failures."""
    failures = []
    for case in cases:
        try:
            case()
        except Exception as error:  # noqa: BLE001 - collected and shown
            failures.append(str(error)[:2500])
    assert not failures, f"{len(failures)} failed\n" + "\n\n".join(failures[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_rows(kind: str) -> None:
    try_all([lambda s=s: check(reduced(kind, data(s), (1,)), rtol=3e-6, atol=2e-6) for s in ROWS])


@pytest.mark.parametrize("kind", KINDS)
def test_columns(kind: str) -> None:
    shapes = [(1, 5), (7, 3), (100, 33), (31, 257), (600, 8)]
    try_all([lambda s=s: check(reduced(kind, data(s), (0,)), rtol=3e-6, atol=2e-6) for s in shapes])


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows(kind: str) -> None:
    x = data((2, 20011))
    x = x.sign() if kind == "prod" else x  # exact: in float32 any order of 20,000 other factors is off by 1e-4
    try_all(
        [
            lambda: check(reduced(kind, x, (1,)), rtol=2e-5, atol=2e-5),
            lambda: check(reduced(kind, x.flatten(), (0,)), rtol=2e-5, atol=2e-5),
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_masks(kind: str) -> None:
    """Blocks that divide the row: looped, whole, and columns."""
    shapes = [((2, 1 << 15), (1,)), ((64, 64), (1,)), ((1024, 8), (0,))]
    scale = (lambda x: x.sign()) if kind == "prod" else (lambda x: x)
    sources = [
        check(reduced(kind, scale(data(s)), d, epilogue=not kind.startswith("arg")), rtol=2e-5, atol=2e-5) for s, d in shapes
    ]
    assert not any("mask" in s.text for s in sources)


@pytest.mark.parametrize("kind", KINDS)
def test_around_a_middle_axis(kind: str) -> None:
    cases = [((4, 5, 6), (0, 2)), ((3, 4, 5), (1,)), ((2, 3, 9001), (0, 2)), ((40, 3, 50), (0, 2))]
    scale = 1e-3 if kind == "prod" else 1.0
    try_all(
        [
            lambda s=s, d=d: check(reduced(kind, data(s) * scale + (1 if kind == "prod" else 0), d), rtol=2e-5, atol=2e-5)
            for s, d in cases
        ]
    )


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum", "online_softmax"])
def test_special_values(kind: str) -> None:
    rows = data((9, 50), special=True)
    rows[4], rows[5], rows[6] = float("-inf"), 1.0, float("inf")
    rows[7, 3:] = float("-inf")
    long = data((3, 17000), special=True)
    long[1] = float("-inf")
    long[2] = 2.5
    try_all(
        [
            lambda x=x, d=d: check(reduced(kind, x, (d,)), rtol=1e-5, atol=1e-5)
            for x, d in ((rows, 1), (rows.t().contiguous(), 0), (long, 1))
        ]
    )


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float64, torch.bfloat16], ids=lambda d: str(d)[6:]
)
def test_dtypes(dtype: torch.dtype) -> None:
    kinds = ("sum", "max", "min", "argmax", "argmin") + (
        ("welford", "online_softmax", "prod") if dtype.is_floating_point else ()
    )
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    try_all(
        [
            lambda k=k, s=s: check(reduced(k, data(s, dtype), (1,)), rtol=rtol, atol=rtol)
            for k in kinds
            for s in ((5, 60), (2, 17000))
            if not (k == "sum" and dtype.itemsize == 1)
        ]
    )


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("columns", [32768, 20011])
def test_running_softmax_of_long_rows(columns: int, dtype: torch.dtype) -> None:
    """Against float64: special values, rows far from 0, and the sum's error, which must stay some units of the last place."""
    inf, nan = float("inf"), float("nan")
    x = (torch.randn(9, columns, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    x[1] = -inf
    x[2, 17], x[3, ::7], x[4, 5], x[5, 100] = inf, -inf, nan, inf
    x[5, 200] = nan
    x[6] += 300
    x[7] = torch.linspace(-90, 0, columns)
    x[8, 1:] = -inf
    case = reduced("online_softmax", x, (1,))
    assert "softmax_step_folded" in emitted(case).text
    top, total = interpret(case, emitted(case))
    wide = x.double()
    best = wide.amax(1)
    want = (wide - best[:, None]).exp().sum(1)
    want[1] = 0.0
    assert torch.equal(top.double().nan_to_num(nan=1e30), best.nan_to_num(nan=1e30))
    torch.testing.assert_close(total.double(), want, rtol=4 * torch.finfo(total.dtype).eps, atol=0.0, equal_nan=True)


def test_any_and_all() -> None:
    cases = [
        data((6, 40), torch.bool),
        torch.ones(3, 17000, dtype=torch.bool),
        torch.zeros(3, 17000, dtype=torch.bool),
        torch.ones(70, 5, dtype=torch.bool),
    ]
    try_all([lambda x=x, k=k, d=d: check(reduced(k, x, (d,))) for x in cases for k in ("any", "all") for d in (0, 1)])


def test_prologue_epilogue_and_several_levels() -> None:
    for shape in ((6, 100), (2, 20011), (3, 16384)):
        check(reduced("max", data(shape), (1,), epilogue=True), rtol=1e-5, atol=1e-5)
        check(reduced("welford", data(shape), (1,), epilogue=True), rtol=1e-5, atol=1e-5)
        b = Build("two_levels", i0=shape[0], i1=(shape[1], "reduction"))  # sum(x - max(x)**2), then x / that
        b.input("x", data(shape))
        b.output("out", shape, F32)
        i, j = b.axis("i0"), b.axis("i1")
        x = b.load("x", i, j)
        top = b.reduce("max", x, "i1")
        total = b.reduce("sum", b.op("exp", b.op("sub", x, b.op("mul", top, top))), "i1")
        b.store("out", b.op("div", x, total), i, j)
        check(b.case(), rtol=2e-5)


def test_layer_norm_with_two_outputs() -> None:
    for shape in ((5, 64), (3, 20000)):
        b = Build("layer_norm", i0=shape[0], i1=(shape[1], "reduction"))
        for name in "xr":
            b.input(name, data(shape, torch.bfloat16))
        b.input("weight", data(shape[1:]))
        for name in ("total", "out"):
            b.output(name, shape, torch.bfloat16)
        i, j = b.axis("i0"), b.axis("i1")
        h = b.op("add", b.load("x", i, j), b.load("r", i, j))
        b.store("total", h, i, j)
        mean, m2 = b.reduce("welford", h, "i1")
        scale = b.op("rsqrt", b.op("add", b.op("div", m2, b.const(float(shape[1]))), b.const(1e-5)))
        b.store("out", b.op("mul", b.op("mul", b.op("sub", h, mean), scale), b.load("weight", j)), i, j)
        check(b.case())


def test_in_place_over_several_passes() -> None:
    x = data((2, 20011))
    b = Build("in_place", i0=2, i1=(20011, "reduction"))
    b.input("x", x)
    b.output("total", (2,), F32)
    i, j = b.axis("i0"), b.axis("i1")
    v = b.load("x", i, j)
    total = b.reduce("sum", v, "i1")
    b.store("x", b.op("mul", v, b.const(2.0)), i, j)
    b.store("total", b.op("add", total, b.reduce("max", b.op("sub", v, total), "i1")), i)
    source = check(b.case(), rtol=1e-4, atol=1e-3)
    assert len(source.configs) == 1


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_scans(kind: str) -> None:
    def scan(shape: tuple[int, ...], axis: int, dtype: torch.dtype = F32) -> Case:
        b = Build(
            f"scan_{kind}_{'x'.join(map(str, shape))}_{axis}",
            **{f"i{d}": (n, "reduction" if d == axis else "parallel") for d, n in enumerate(shape)},
        )
        x = data(shape, dtype)
        b.input("x", 1 + x * 1e-3 if kind == "prod" and dtype == F32 else x)
        b.output("out", shape, dtype)
        index = [b.axis(f"i{d}") for d in range(len(shape))]
        b.store("out", b.scan(kind, b.load("x", *index), f"i{axis}"), *index)
        return b.case()

    cases = [((4, 33), 1), ((1, 1), 1), ((33, 4), 0), ((2, 20011), 1), ((3, 5, 7), 1), ((700, 6), 0)]
    try_all(
        [
            *(lambda s=s, a=a: check(scan(s, a), rtol=1e-4, atol=1e-4) for s, a in cases),
            lambda: check(scan((3, 50), 1, torch.int64)),
        ]
    )


def test_empty_rows_and_no_rows() -> None:
    check(reduced("sum", torch.zeros(4, 0), (1,)))
    check(reduced("sum", torch.zeros(0, 4), (1,)))
    check(reduced("any", torch.zeros(3, 0, dtype=torch.bool), (1,)))


def test_a_value_that_does_not_vary_along_the_row() -> None:
    for n in (10, 20011):
        b = Build("constant_rows", i0=6, i1=(n, "reduction"))
        b.input("x", data((6,)))
        b.output("out", (6,), F32)
        b.output("ones", (6,), torch.int64)
        b.store("out", b.reduce("sum", b.load("x", b.axis("i0")), "i1"), b.axis("i0"))
        b.store("ones", b.reduce("sum", b.const(1, torch.int64), "i1"), b.axis("i0"))
        check(b.case(), rtol=1e-4)


def test_every_op_on_row_values() -> None:
    """One row a program: reduced values are scalars, not blocks."""
    x = data((3, 4096)).abs() * 1e-4
    for dtype in (F32, torch.float64):
        b = Build("row_values", i0=3, i1=(4096, "reduction"))
        b.input("x", x.to(dtype))
        i, j = b.axis("i0"), b.axis("i1")
        total = b.reduce("sum", b.load("x", i, j), "i1")
        for op, spec in SCALAR_OPS.items():
            if "f" not in spec.domain or op in ("cast", "where"):
                continue
            value = b.op(op, *([total] * spec.arity))
            b.output(f"out_{op}", (3,), b.dtypes[value])
            b.store(f"out_{op}", value, i)
        check(b.case(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)], ids=str)
def test_positions_count_in_the_order_of_dims_not_of_memory(fn, backend: str, order: tuple[int, ...]) -> None:
    f = tinycompile.compile(lambda x: fn(x), backend=backend, fullgraph=True)
    for shape in ((4, 6, 5), (3, 40, 70)):
        x = torch.randn(shape).permute(order)
        assert torch.equal(f(x), fn(x))
        g = tinycompile.compile(lambda x: (fn(x), fn(x.permute(order))), backend=backend)
        assert all(torch.equal(a, b) for a, b in zip(g(x), g.original(x), strict=True))
