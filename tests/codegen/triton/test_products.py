"""Generated matrix products in Triton's interpreter, against float64: shapes, layouts, dtypes, epilogues, prologues, ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.codegen.triton.products import Made, flat, product_of
from tinycompile.base.target import A100, H100, Target

pytestmark = pytest.mark.cpu

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FEW = replace(H100, units=2)  # multiprocessors: so that small products have more tiles than programs
ULP = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}


def made(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(dtype)


def check(fn: Callable[..., Any], *args: Tensor, way: str = "", entrant: int = 0, target: Target = H100) -> Made:
    """One entrant of a way is as near to float64 as eager is, by the contract: twice its error and an ulp, normwise."""
    product = product_of(fn, *args, target=target)
    assert len(product.plan.choices) == 1, [d.why for d in product.plan.decisions if d.rule == "product"]
    found, told = product.alone(way, entrant).run(args, 0)
    assert not told.startswith("the library is used") and "is used" in told, told
    with torch.no_grad():
        exact = flat(fn(*(a.double() if a.is_floating_point() else a for a in args)))
        eager = flat(fn(*args))
    for f, e, x in zip(found, eager, exact, strict=True):
        assert (f.shape, f.stride(), f.dtype) == (e.shape, e.stride(), e.dtype)
        size = x.abs().max() if x.numel() else torch.tensor(0.0)
        room = 2 * (e.double() - x).abs().max() + ULP.get(f.dtype, 0.0) * size
        assert (f.double() - x).abs().max() <= room, product.source.kernels[-1].text
    return product


def silu(y: Tensor) -> Tensor:
    return F.silu(y)


SHAPES = [(1, 64, 33), (64, 1, 33), (3, 5, 7), (16, 16, 16), (31, 37, 41), (127, 65, 130), (130, 40, 128), (5, 200, 3)]


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("m,n,k", SHAPES)
def test_shapes(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    check(lambda x, w: silu(x @ w), made(m, k, dtype=dtype), made(k, n, dtype=dtype))


@pytest.mark.parametrize("left", ["plain", "transposed", "every second"])
@pytest.mark.parametrize("right", ["plain", "transposed", "every second"])
def test_layouts_need_no_copies(left: str, right: str) -> None:
    def laid(rows: int, columns: int, how: str) -> Tensor:
        if how == "transposed":
            return made(columns, rows).t()
        return made(rows, 2 * columns)[:, ::2] if how == "every second" else made(rows, columns)

    product = check(lambda x, w: silu(x @ w), laid(37, 50, left), laid(50, 29, right))
    assert len(product.plan.kernels) == 1  # the epilogue of the library's way alone


BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 17, 20), (3, 20, 9)),
    ((3, 17, 20), (20, 9)),
    ((17, 20), (3, 20, 9)),
    ((2, 1, 17, 20), (3, 20, 9)),
    ((2, 3, 17, 20), (2, 3, 20, 9)),
    ((1, 17, 20), (4, 20, 9)),
]


@pytest.mark.parametrize("left,right", BATCHES, ids=str)
def test_batches_and_their_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(lambda x, w: torch.relu(x @ w) + 1, made(*left), made(*right))


def test_batches_transposed() -> None:
    check(lambda x, w: silu(torch.bmm(x.transpose(1, 2), w.transpose(1, 2))), made(2, 20, 17), made(2, 9, 20))


def residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def swiglu(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


EPILOGUES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "bias and gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((2, 19, 24), (40, 24), (40,))),
    "residual": (residual, ((2, 19, 24), (40, 24), (40,), (2, 19, 40))),
    "residual of one row": (residual, ((2, 19, 24), (40, 24), (40,), (19, 40))),
    "SwiGLU": (swiglu, ((2, 19, 24), (40, 24), (40, 24))),
    "SwiGLU of one row": (swiglu, ((1, 24), (40, 24), (40, 24))),
    "scale of rows": (lambda x, w, s: torch.mm(x, w) * s, ((19, 24), (24, 40), (19, 1))),
    "addmm": (lambda r, x, w: torch.addmm(r, x, w, beta=0.5, alpha=2) * r, ((19, 40), (19, 24), (24, 40))),
    "addmm without the addend": (lambda r, x, w: torch.addmm(r, x, w, beta=0) * 2, ((19, 40), (19, 24), (24, 40))),
    "addmm with a row": (lambda r, x, w: torch.tanh(torch.addmm(r, x, w)), ((40,), (19, 24), (24, 40))),
    "baddbmm": (lambda r, x, w: torch.baddbmm(r, x, w) * 2, ((2, 19, 40), (2, 19, 24), (2, 24, 40))),
    "wider result": (lambda x, w: (x @ w).float() * 2, ((19, 24), (24, 40))),
    "two results": (lambda x, w: (torch.relu(y := x @ w), y.float() + 1), ((19, 24), (24, 40))),
    "its result too": (lambda x, w: ((y := x @ w), torch.tanh(y)), ((19, 24), (24, 40))),
    "stored transposed": (lambda x, w: ((x @ w) * 2).t().contiguous(), ((19, 24), (24, 40))),
}


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, dtype: torch.dtype) -> None:
    fn, shapes = EPILOGUES[name]
    check(fn, *(made(*s, dtype=dtype) for s in shapes))


def test_a_sum_is_rounded_where_eager_rounds_it() -> None:
    """Bits: the same sums, so the epilogue must see what eager's sees."""
    x, w = (torch.randint(-3, 4, s).to(BF16) for s in ((20, 64), (64, 24)))  # sums that float32 holds exactly
    product = product_of(lambda x, w: (x @ w).float() - 0.5, x, w)
    (found,), _ = product.run((x, w), 0)
    assert torch.equal(found, (x @ w).float() - 0.5)


def test_two_products_that_share_little_are_one_kernel() -> None:
    """Decoding: the weights are far larger than what both products read."""
    x, w = torch.empty(8, 4096, dtype=BF16, device="meta"), torch.empty(4096, 4096, dtype=BF16, device="meta")
    (choice,) = product_of(swiglu, x, w, w.clone()).plan.choices
    assert len(choice.library) == 3


def test_long_sums_are_shared_by_programs() -> None:
    args = made(20, 4000), made(24, 4000), made(24)
    product = product_of(lambda x, w, b: silu(F.linear(x, w, b)), *args)
    assert product.ways() == {"parted"}
    check(product.fn, *args, way="parted")
    check(product.fn, *args, way="parted", entrant=-1)


def test_programs_that_walk_tiles() -> None:
    """More tiles than twice the multiprocessors: of a batch."""
    args = made(5, 16, 16), made(5, 16, 16)
    product = check(lambda x, w: silu(x @ w), *args, way="persistent", target=FEW)
    assert product.ways() == {"persistent"}


STREAMED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "one row": (lambda x, w, b: silu(F.linear(x, w, b)), ((1, 330), (300, 330), (300,))),
    "tails": (lambda x, w, b: silu(F.linear(x, w, b)), ((13, 330), (300, 330), (300,))),
    "several tiles a program": (lambda x, w: silu(F.linear(x, w)), ((13, 140), (1200, 140))),
    "two sums": (swiglu, ((9, 330), (300, 330), (300, 330))),
    "a batch": (lambda x, w: silu(x @ w), ((3, 7, 330), (3, 330, 100))),
}


@pytest.mark.parametrize("name", STREAMED)
def test_equal_shares_of_all_steps(name: str) -> None:
    fn, shapes = STREAMED[name]
    check(fn, *(made(*s) for s in shapes), way="streamed", target=FEW)


BOXED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "rows by rows": (lambda x, w, b: silu(F.linear(x, w, b)), (made(70, 72), made(90, 72), made(90))),
    "rows by columns": (lambda x, w: silu(x @ w), (made(70, 72), made(72, 88))),
    "columns by rows": (lambda x, w: silu(x.t() @ w.t()), (made(72, 80), made(90, 72))),
    "a part of wider rows": (lambda x, w: silu(x[:, 8:80] @ w[8:, 16:]), (made(70, 96), made(80, 104))),
    "a batch, one side alike": (lambda x, w: silu(x @ w), (made(72, 80), made(3, 80, 88))),
    "two batch dims": (lambda x, w: silu(x @ w), (made(2, 2, 70, 40), made(2, 2, 40, 72))),
    "heads": (lambda x, w: silu(x.transpose(1, 2) @ w), (made(2, 70, 3, 40), made(2, 3, 40, 72))),
    "leading dims": (lambda x, w, b: silu(F.linear(x, w, b)), (made(3, 25, 72), made(90, 72), made(90))),
    "two sums": (swiglu, (made(70, 72), made(90, 72), made(90, 72))),
    "float16": (lambda x, w: silu(x @ w), (made(70, 72, dtype=F16), made(72, 88, dtype=F16))),
}


@pytest.mark.parametrize("name", BOXED)
def test_operands_by_descriptors(name: str) -> None:
    fn, args = BOXED[name]
    product = check(fn, *args, way="boxed")
    text = next(k.text for k in product.source.kernels if k.name.endswith("_boxed"))
    assert text.count("tl.make_tensor_descriptor(") == text.count("_box.load(") == len(product.plan.choices[0].library)


@pytest.mark.parametrize(
    "x,w",
    [
        (made(70, 73), made(73, 88)),  # rows are no multiple of 16 bytes apart
        (made(70, 144)[:, ::2], made(72, 88)),  # neither dimension is contiguous
        (made(70, 80)[:, 1:73], made(72, 88)),  # the first element is not at a multiple of 16 bytes
        (made(70, 72, dtype=F32), made(72, 88, dtype=F32)),  # exact: not for tensor cores
        (made(16, 72), made(72, 88)),  # too few rows for wgmma
        (made(3, 72, 80).transpose(1, 2), made(72, 88)),  # rows of two axes, which memory has in another order
    ],
)
def test_what_descriptors_do_not_fit_has_none(x: Tensor, w: Tensor) -> None:
    assert "boxed" not in product_of(lambda x, w: silu(x @ w), x, w).ways()


def test_ampere_has_no_descriptors() -> None:
    assert "boxed" not in product_of(lambda x, w: silu(x @ w), made(70, 72), made(72, 88), target=A100).ways()


def test_int8() -> None:
    x, w = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((33, 72), (72, 40)))
    product = product_of(lambda x, w: torch._int_mm(x, w) + 1, x, w)
    assert len(product.plan.choices) == 1
    (found,), _ = product.run((x, w), 0)
    assert torch.equal(found, (x.int() @ w.int()) + 1) and found.dtype == torch.int32


@pytest.mark.parametrize("right", ["rows", "columns"])
def test_int8_scaled_back(right: str) -> None:
    x, w = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((70, 80), (96, 80) if right == "rows" else (80, 96)))
    s = torch.rand(70, 1)
    product = product_of(lambda x, w, s: torch._int_mm(x, w.t() if right == "rows" else w).float() * s, x, w, s)
    for way in ("", "boxed"):
        (found,), _ = product.alone(way).run((x, w, s), 0)
        assert torch.equal(found, (x.int() @ (w.t() if right == "rows" else w).int()).float() * s)


E4M3 = torch.float8_e4m3fn
Scales = tuple[tuple[int, ...], tuple[int, ...]]
FLOAT8: dict[str, tuple[tuple[int, int, int], Scales, str, Target]] = {
    "one scale each": ((70, 96, 160), ((), ()), "", H100),
    "a scale a row": ((70, 96, 160), ((70, 1), (1, 96)), "", H100),
    "by descriptors": ((70, 96, 160), ((70, 1), (1, 96)), "boxed", H100),
    "tails": ((33, 48, 272), ((), ()), "", H100),
    "one row": ((1, 48, 272), ((), ()), "", H100),
    "in shares": ((13, 320, 1040), ((), ()), "streamed", FEW),
}


@pytest.mark.parametrize("name", FLOAT8)
def test_float8(name: str) -> None:
    (m, n, k), (a, b), way, target = FLOAT8[name]
    x, w, bias = made(m, k).to(E4M3), made(n, k).to(E4M3), made(n)
    s, t = torch.rand(a) + 0.1, torch.rand(b) + 0.1

    def scaled(x: Tensor, w: Tensor, s: Tensor, t: Tensor, bias: Tensor) -> Tensor:
        return silu(torch._scaled_mm(x, w.t(), s, t, bias, out_dtype=BF16))

    def exactly(x: Tensor, w: Tensor, s: Tensor, t: Tensor, bias: Tensor) -> Tensor:
        return silu(x.double() @ w.double().t() * s.double() * t.double() + bias.double())

    product = product_of(scaled, x, w, s, t, bias, target=target)
    (found,), _ = product.alone(way).run((x, w, s, t, bias), 0)
    exact, eager = exactly(x, w, s, t, bias), scaled(x, w, s, t, bias)
    room = 2 * (eager.double() - exact).abs().max() + ULP[BF16] * exact.abs().max()
    assert (found.double() - exact).abs().max() <= room and found.dtype == BF16


def test_float8_is_the_librarys_where_cards_do_not_multiply_it() -> None:
    x, w, s = made(64, 64).to(E4M3), made(64, 64).to(E4M3), torch.ones(())
    product = product_of(lambda x, w, s: torch._scaled_mm(x, w.t(), s, s).float() * 2, x, w, s, target=A100)
    assert not product.source.offered


def test_infinities_and_nan_stay_in_their_rows() -> None:
    x, w = made(40, 20), made(20, 24)
    x[3, 5], x[7, 1] = float("inf"), float("nan")
    product = product_of(lambda x, w: (x @ w) * 2, x, w)
    (found,), _ = product.run((x, w), 0)
    torch.testing.assert_close(found, (x @ w) * 2, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("m,n,k", [(0, 4, 8), (4, 8, 0), (4, 8, 1), (1, 1, 8)])
def test_empty_and_single_sums_are_left_to_the_library(m: int, n: int, k: int) -> None:
    x, w = made(m, k), made(k, n)
    product = product_of(lambda x, w: torch.relu(x @ w) + 1, x, w)
    assert not product.plan.choices
    (found,), _ = product.run((x, w), None)
    assert torch.equal(found, torch.relu(x @ w) + 1)


@pytest.mark.parametrize("dtype", [torch.float64], ids=str)
def test_other_dtypes_are_left_to_the_library(dtype: torch.dtype) -> None:
    assert not product_of(lambda x, w: torch.relu(x @ w) + 1, made(8, 8, dtype=dtype), made(8, 8, dtype=dtype)).plan.choices
