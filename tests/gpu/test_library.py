"""Custom ops on a GPU: a Triton kernel of the program's own, called in compiled code and fused around."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tinycompile

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.gpu


@triton.jit
def _cube(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * x * x, mask=i < n)


@tinycompile.library.custom_op("gpu_test::cube")
def cube(x: Tensor) -> Tensor:
    return x * x * x


@cube.register_kernel("cuda")
def _(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _cube[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0])


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    (x,) = ctx.saved_tensors
    return 3 * x * x * grad


cube.register_autograd(_backward, setup_context=_setup)


def test_a_triton_kernel_of_the_program() -> None:
    f = tinycompile.compile(lambda x: torch.exp(cube(x * 0.5)) + 1, fullgraph=True)
    x = torch.randn(1000, device="cuda", requires_grad=True)
    y = f(x)
    torch.testing.assert_close(y, torch.exp((x * 0.5) ** 3) + 1)
    (grad,) = torch.autograd.grad(y.sum(), x)
    want = torch.exp((x * 0.5) ** 3) * 3 * (x * 0.5) ** 2 * 0.5
    torch.testing.assert_close(grad, want.detach())


def test_on_the_cpu_its_other_kernel_runs() -> None:
    torch.testing.assert_close(cube(torch.full((3,), 2.0)), torch.full((3,), 8.0))
