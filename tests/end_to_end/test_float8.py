"""float8 in memory: casts to and from it in generated code give eager's bits, views and copies move them, nothing else is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
KINDS = [E4M3, E5M2]
BACKENDS = ["cpp", "triton"]
OTHERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]
Fn = Callable[..., Any]


def compiled(fn: Fn, backend: str) -> Any:
    return tinycompile.compile(fn, backend=backend, fullgraph=True)


def same(found: Tensor, expected: Tensor) -> None:
    """The same bits; NaN may have other ones."""
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    f, e = found.double(), expected.double()
    assert torch.equal(f.isnan(), e.isnan())
    f, e = f.nan_to_num(0.0, float("inf"), float("-inf")), e.nan_to_num(0.0, float("inf"), float("-inf"))
    assert torch.equal(f, e) and torch.equal(f.signbit(), e.signbit())


def every(kind: torch.dtype) -> Tensor:
    """All 256 values."""
    return torch.arange(256, dtype=torch.uint8).view(kind)


def hard_floats() -> Tensor:
    """All float16 and bfloat16, their neighbours among float32, and arbitrary bits."""
    halves = torch.arange(1 << 16).to(torch.uint16)
    wide = torch.cat([halves.view(torch.float16).float(), halves.view(torch.bfloat16).float()])
    bits = wide.view(torch.int32)
    random = torch.randint(-(1 << 31), 1 << 31, (1 << 15,)).to(torch.int32)
    return torch.cat([bits, bits + 1, bits - 1, random]).view(torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_value_is_widened_as_eager_does(kind: torch.dtype, backend: str) -> None:
    x = every(kind)
    finite = x.float().isfinite()
    for dtype in OTHERS:
        given = x if dtype.is_floating_point or dtype is torch.bool else x[finite & (x.float() >= 0) & (x.float() < 256)]
        same(compiled(lambda x, dtype=dtype: x.to(dtype), backend)(given), given.to(dtype))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_floats_are_rounded_as_eager_does(kind: torch.dtype, backend: str) -> None:
    x = hard_floats()
    same(compiled(lambda x: x.to(kind), backend)(x), x.to(kind))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_other_dtypes_are_rounded_as_eager_does(kind: torch.dtype, backend: str) -> None:
    numbers = torch.arange(-600, 600) * 1.001
    for dtype in [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool]:
        x = numbers.to(dtype) if dtype.is_floating_point else numbers.abs().to(dtype)
        same(compiled(lambda x: x.to(kind), backend)(x), x.to(kind))
    other = every(E5M2 if kind is E4M3 else E4M3)
    same(compiled(lambda x: x.to(kind), backend)(other), other.to(kind))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scaling_and_rounding_is_one_kernel(kind: torch.dtype, backend: str) -> None:
    def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (x * 32).clamp(-448, 448).to(kind)
        return scaled, scaled.float() - x  # of what was rounded

    x, f = torch.randn(37, 50), compiled(quantise, backend)
    for found, expected in zip(f(x), quantise(x), strict=True):
        same(found, expected)
    assert len(f.kernels) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_and_copies_move_them(backend: str) -> None:
    def moved(x: Tensor) -> tuple[Tensor, ...]:
        return x.t().contiguous(), x[1:, ::2].clone(), x.reshape(-1)[3:].float(), x.transpose(0, 1)

    x = torch.randn(9, 10).to(E4M3)
    for found, expected in zip(compiled(moved, backend)(x), moved(x), strict=True):
        same(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend: str) -> None:
    f = tinycompile.compile(lambda x: (x.float() + 1).to(E5M2), backend=backend, fullgraph=True, dynamic=True)
    for n in (5, 64, 1030):
        x = torch.randn(3, n).to(E4M3)
        same(f(x), (x.float() + 1).to(E5M2))


def test_gradients_pass_the_cast() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x.to(E4M3).float() * 3).sum()

    x, y = torch.randn(20, requires_grad=True), torch.randn(20)
    expected = torch.autograd.grad(loss(x), x)
    found = torch.autograd.grad(tinycompile.compile(loss)(x), x)
    same(found[0], expected[0])
    same(tinycompile.compile(loss)(y), loss(y))


def test_there_is_no_arithmetic_on_them() -> None:
    x = torch.randn(4).to(E4M3)
    with pytest.raises(NotImplementedError, match="Float8_e4m3fn"):
        tinycompile.compile(lambda x: x + x)(x)


def test_our_tensors_hold_them() -> None:
    x = torch.randn(4, 6)
    ours = tinycompile.from_torch(x).to(E4M3)
    same(ours.torch(), x.to(E4M3))
    same(ours.t().float().torch(), x.to(E4M3).t().float())
    same(tinycompile.compile(lambda t: t.float() * 2)(ours).torch(), x.to(E4M3).float() * 2)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_compile_without_a_card(kind: torch.dtype, arch: int) -> None:
    f = tinycompile.compile(lambda x, y: ((x.float() * 2).to(kind), y.to(kind)), backend="triton")
    f(torch.randn(300).to(kind), torch.randn(300))
    for kernel in f.kernels:
        assert kernel._triton is not None
        assert compile_offline(kernel._triton, arch).spills == 0
