"""Masks of fused attention become none, the triangle, or contiguous; those that say more stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tinycompile
from tests.passes.test_attention import captured, on_cuda
from tinycompile.ir.graph import Graph, Node
from tinycompile.passes.attention_masks import CAUSAL, MASK, plain_masks

pytestmark = pytest.mark.pure
N = 24


def attend(x: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, mask)


def rows_alone(x: Tensor) -> Tensor:
    at = torch.arange(N, device=x.device)
    return attend(x, (at[None, None, :, None] >= 0).expand(x.shape[0], 1, N, N))


def no_bias(x: Tensor) -> Tensor:
    return attend(x, torch.zeros(N, N, dtype=x.dtype, device=x.device))


def triangle(x: Tensor) -> Tensor:
    at = torch.arange(N, device=x.device)
    return attend(x, at[None, :] <= at[:, None])


def added_triangle(x: Tensor) -> Tensor:
    return attend(x, torch.full((N, N), float("-inf"), dtype=x.dtype, device=x.device).triu(1))


def all_but_first(x: Tensor) -> Tensor:
    at = torch.arange(N, device=x.device)
    return attend(x, (at[:, None] >= 1).expand(N, N))


def other_diagonal(x: Tensor) -> Tensor:
    at = torch.arange(N, device=x.device)
    return attend(x, at[None, :] <= at[:, None] + 1)


def heads_innermost(x: Tensor, bias: Tensor) -> Tensor:
    return attend(x, bias.permute(2, 0, 1)[None])


def plain(x: Tensor, bias: Tensor) -> Tensor:
    return attend(x, bias)


def call_of(graph: Graph) -> Node:
    return next(n for n in graph.nodes if n.target == "scaled_dot_product_attention")


X, BIAS = torch.randn(2, 4, N, 8), torch.randn(N, N, 4)
HALF = X.bfloat16()  # its results lie in memory alike on both devices


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("fn", "causal"), [(rows_alone, False), (no_bias, False), (triangle, True), (added_triangle, True)])
def test_proven_masks_go(fn: Callable[..., Any], causal: bool, device: str) -> None:
    graph = captured(fn, X) if device == "cpu" else on_cuda(captured(fn, HALF))
    call = call_of(plain_masks(graph))
    assert call.args[MASK] is None and call.args[CAUSAL] is causal


@pytest.mark.parametrize("fn", [all_but_first, other_diagonal])
def test_what_hides_something_else_stays(fn: Callable[..., Any]) -> None:
    call = call_of(plain_masks(on_cuda(captured(fn, HALF))))
    assert call.args[MASK] is not None and call.args[CAUSAL] is False


def test_rows_of_a_mask_lie_along_memory() -> None:
    after = plain_masks(on_cuda(captured(heads_innermost, HALF, BIAS.bfloat16())))
    made = next(n for n in after.nodes if n.name == call_of(after).args[MASK].name)
    assert made.target == "contiguous" and made.meta.strides[-1] == 1
    on_cpu = captured(heads_innermost, X, BIAS)
    assert plain_masks(on_cpu) == on_cpu
    fits = on_cuda(captured(plain, HALF, BIAS[..., 0].contiguous().bfloat16()))
    assert plain_masks(fits) == fits


@pytest.mark.cpu
@pytest.mark.parametrize("fn", [rows_alone, no_bias, triangle, added_triangle, all_but_first, other_diagonal])
def test_values(fn: Callable[..., Any]) -> None:
    torch.testing.assert_close(tinycompile.compile(fn)(X), fn(X))
