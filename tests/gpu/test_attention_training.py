"""Attention in training on a GPU: masks, shared heads, dropout, a mask that learns; gradients judged by float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tinycompile
from benchmarks.accuracy import judge
from tests.aot.test_attention import additive, grouped, grouped_and_masked

B, H, T, S, D = 2, 4, 96, 70, 64
attend = F.scaled_dot_product_attention


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v)


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, mask[..., :1, :] > -1.5)


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(D) + mask, -1) @ v


def by_hand_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x[:, :2].repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax(q @ k.mT * 0.125, -1) @ v


FUNCTIONS = (plain, additive, padded, grouped, grouped_and_masked, by_hand, by_hand_grouped)


def inputs(dtype: torch.dtype, mask: Sequence[int] = (T, S)) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(B, n, H, D, device="cuda").to(dtype).transpose(1, 2).requires_grad_() for n in (T, S, S)]
    return [*made, torch.randn(tuple(mask), device="cuda").to(dtype)]


def gradients(fn: Callable[..., Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    out = fn(*given)
    leaves = [x for x in given if x.requires_grad]
    return [
        out.detach(),
        *torch.autograd.grad(out, leaves, torch.cos(torch.arange(out.numel(), device="cuda")).view(out.shape).to(out.dtype)),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mask", [(T, S), (B, 1, T, S)], ids=str)
@pytest.mark.parametrize("learns", [False, True], ids=["constant", "learned"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients(fn: Callable[..., Any], learns: bool, mask: tuple[int, ...], dtype: torch.dtype) -> None:
    if learns and fn in (plain, padded, grouped, by_hand_grouped):
        pytest.skip("no gradient reaches the mask")
    given = inputs(dtype, mask)
    given[3].requires_grad_(learns)
    compiled = tinycompile.compile(fn, fullgraph=True)
    mine, eager = gradients(compiled, given), gradients(fn, given)
    with sdpa_kernel(SDPBackend.MATH):
        true = gradients(fn, [x.detach().double().requires_grad_(x.requires_grad) for x in given])
    verdict = judge(mine, eager, true)
    assert verdict.ok, verdict
    if dtype == torch.bfloat16:  # in float32 what is written by hand stays so
        assert "softmax" not in compiled.source("backward"), compiled.source("backward")


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("cpu", marks=pytest.mark.cpu)])
def test_dropout_drops_the_same_weights_in_both_directions(device: str) -> None:
    """With the identity as values the result is the weights that were kept, from which the gradients follow by hand."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, dropout_p=0.3, scale=0.125)

    torch.manual_seed(0)
    q, k = (torch.randn(B, H, D, D, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    v = torch.eye(D, device=device, dtype=torch.bfloat16).expand(B, H, D, D).contiguous().requires_grad_()
    out = tinycompile.compile(call, fullgraph=True)(q, k, v)
    grad = torch.randn_like(out)
    mine = torch.autograd.grad(out, (q, k, v), grad)
    kept, g = out.detach().double(), grad.double()
    assert 0.25 < (kept == 0).double().mean().item() < 0.35
    p = torch.softmax(q.detach().double() @ k.detach().double().mT * 0.125, -1)
    slope = g * (kept != 0) / 0.7
    scores = p * (slope - (slope * p).sum(-1, True)) * 0.125
    for got, true in zip(mine, (scores @ k.detach().double(), scores.mT @ q.detach().double(), kept.mT @ g), strict=True):
        assert (got.double() - true).norm() <= 0.02 * true.norm()
