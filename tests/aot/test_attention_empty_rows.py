"""Attention by hand with rows that keep nothing: NaN as eager has it, in results and in gradients, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.cpu
INF = math.inf


def scores(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) / math.sqrt(q.shape[-1])


def filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scores(q, k).masked_fill(m, -INF).softmax(-1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.where(m, -INF, scores(q, k)).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return (scores(q, k) + torch.where(m, -INF, 0.0)).softmax(-1) @ v


def filled_twice(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], k.shape[-2]).tril().bool()
    return scores(q, k).masked_fill(~keep, -INF).masked_fill(m, -INF).softmax(-1) @ v


def added_then_filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    triangle = torch.full((q.shape[-2], k.shape[-2]), -INF).triu(1)
    return (scores(q, k) + triangle).masked_fill(m, -INF).softmax(-1) @ v


def filled_then_added(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    triangle = torch.full((q.shape[-2], k.shape[-2]), -INF).triu(1)
    return (scores(q, k).masked_fill(m, -INF) + triangle).softmax(-1) @ v


def finite(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scores(q, k).masked_fill(m, -1e9).softmax(-1) @ v


FUNCTIONS = [filled, chosen, added, filled_twice, added_then_filled, filled_then_added, finite]


def mask(kind: str) -> Tensor:
    m = torch.zeros(2, 1, 5, 5, dtype=torch.bool)
    if kind == "row":
        m[0, 0, 2] = True
    elif kind == "padding":
        m[1], m[0, :, :, 3:] = True, True
    elif kind == "all":
        m[:] = True
    return m


@pytest.mark.parametrize("kind", ["row", "padding", "all", "none"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients(fn: Callable[..., Tensor], kind: str) -> None:
    given = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    tangent, m = torch.randn(2, 3, 5, 4), mask(kind)
    found = []
    for run in (tinycompile.compile(fn, fullgraph=True), fn):
        leaves = [t.clone().requires_grad_() for t in given]
        out = run(*leaves, m)
        with torch.no_grad():
            plain = run(*given, m)
        found.append([out, plain, *torch.autograd.grad(out, leaves, tangent)])
    torch.testing.assert_close(*found, equal_nan=True, atol=1e-5, rtol=1e-5)
    if kind != "none" and fn in (filled, chosen, filled_twice):
        assert not any(t.isnan().any() for t in found[0][2:4])  # what was filled passes no gradient on


@pytest.mark.parametrize("fn", [filled, chosen, added], ids=lambda f: f.__name__)
def test_one_kind_of_mask_is_still_fused(fn: Callable[..., Tensor]) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True)
    compiled(*(torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)), mask("row"))
    assert "attention_forward" in compiled.source("joint")
