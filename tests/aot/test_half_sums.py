"""Gradients of half types that come from several consumers: a sum in registers is not rounded, one that is stored is used as
stored; on our tape each addition is rounded, as torch's engine does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu
HALVES = (torch.bfloat16, torch.float16)


def total(h: Any) -> Any:
    return (h * h).sum() + (h.exp() * 1.7).sum() + (h * 0.3).sum()


def leaf(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(1024).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_stored_sum_is_used_as_stored(dtype: torch.dtype) -> None:
    def f(x: Any) -> Any:
        h = x.sin()
        return torch.autograd.grad(total(h), [h, x])

    x = leaf(dtype)
    of_h, of_x = tinycompile.compile(f, fullgraph=True)(x)
    assert torch.equal(of_x, (of_h.float() * x.detach().float().cos()).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_sum_in_registers_is_nearer_than_eagers(dtype: torch.dtype) -> None:
    x, exact = leaf(dtype), leaf(dtype).detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(total(exact), exact)
    errors = [float((torch.autograd.grad(fn(x), x)[0].double() - wanted).norm()) for fn in (tinycompile.compile(total), total)]
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("dtype", HALVES)
def test_our_tape_adds_as_torchs_engine(dtype: torch.dtype) -> None:
    x, ours = leaf(dtype), tinycompile.from_torch(leaf(dtype).detach()).requires_grad_()
    total(x).backward()
    total(ours).backward()
    assert torch.equal(ours.grad.torch(), x.grad)
