"""Attention by hand: every spelling that becomes the fused call, with the same numbers; and what must stay as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from tests.passes.captured import captured
from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Graph, Node
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.passes.patterns_attention import recognise_attention

pytestmark = pytest.mark.cpu
B, H, T, S, D = 2, 4, 6, 6, 8
FUSED = "scaled_dot_product_attention"


def call_of(graph: Graph) -> Node | None:
    return next((n for n in graph.nodes if n.target == FUSED), None)


def qkv(dtype: torch.dtype = torch.float32, heads: int = H, length: int = S) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(B, H, T, D, dtype=dtype),
        torch.randn(B, heads, length, D, dtype=dtype),
        torch.randn(B, heads, length, D, dtype=dtype),
    )


def weigh(scores: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1) @ v


# --- spellings that are the triangle -----------------------------------------------------------------------------------------


def masked_fill_tril(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.tril(torch.ones(T, S)).view(1, 1, T, S)
    return weigh((q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(mask == 0, -math.inf), v)


def masked_fill_triu_bool(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(T, S, dtype=torch.bool).triu(1)
    return weigh((q * D**-0.5 @ k.mT).masked_fill(mask, float("-inf")), v)


def fill_not_tril(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh((q @ k.mT).masked_fill(~torch.tril(torch.ones(T, S, dtype=torch.bool)), torch.finfo(q.dtype).min) * 1, v)


def where_arange(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(T)
    return weigh(torch.where(at[:, None] >= at[None, :], q @ k.mT * 0.3, -1e30), v)


def where_turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(T)
    low = torch.full([], torch.finfo(q.dtype).min)
    return weigh(torch.where(at.view(-1, 1) < at.view(1, -1), low, q @ k.mT), v)


def shifted_positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = torch.arange(3, T + 3)[:, None], torch.arange(S)[None] + 3
    return weigh((q @ k.mT).masked_fill((rows - columns) < 0, -math.inf), v)


def added_triu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh(q @ (k * 0.25).transpose(2, 3) + torch.full((T, S), float("-inf")).triu(diagonal=1), v)


def added_scaled_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = (1.0 - torch.tril(torch.ones(T, S))) * -1e10
    return weigh(0.5 * (mask + q @ k.mT), v)


def zeros_masked_fill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(T, S, dtype=torch.bool).tril(diagonal=0)
    return weigh(q @ k.mT + torch.zeros(T, S).masked_fill(keep.logical_not(), -math.inf), v)


def with_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhid,bhjd->bhij", q, k).masked_fill(torch.ones(T, S).triu(1).bool(), -math.inf)
    return torch.einsum("bhij,bhjd->bihd", s.softmax(-1), v)


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = torch.einsum("bthd,bshd->bhts", q, k) + torch.triu(torch.full((T, S), -math.inf), 1)
    return torch.einsum("bhts,bshd->bthd", s.softmax(-1), v).reshape(B, T, H * D)


def flat_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    s = torch.bmm(q, k.transpose(1, 2)).view(B, H, T, S) + torch.full((T, S), -math.inf).triu(1)
    return torch.bmm(s.view(B * H, T, S).softmax(-1), v)


def three_dims(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q[0] @ k[0].mT
    return weigh(s.masked_fill(torch.ones(T, S).tril() == 0, -math.inf), v[0])


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x[:, :2].repeat_interleave(2, dim=1) for x in (k, v))
    return masked_fill_tril(q, k, v)


def expanded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x[:, :2, None].expand(B, 2, 2, S, D).reshape(B, H, S, D) for x in (k, v))
    return masked_fill_tril(q, k, v)


TRIANGLES = (
    masked_fill_tril, masked_fill_triu_bool, fill_not_tril, where_arange, where_turned, shifted_positions, added_triu,
    added_scaled_mask, zeros_masked_fill, with_einsum, heads_last, flat_heads, three_dims, repeated, expanded,
)  # fmt: skip


def check(fn: Callable[..., Any], *args: Any) -> Node:
    """The function's graph is recognised and gives what the function gives; the fused call."""
    graph = captured(fn, *args)
    changed = recognise_attention(graph)
    verify_graph(changed)
    found = call_of(changed)
    assert found is not None, [n.target for n in graph.nodes]
    assert not any(n.target in ("softmax", "matmul", "bmm", "einsum", "dropout") for n in changed.nodes)
    given = tensors_of(fn, args, graph)
    expected, (got,) = run_graph(graph, given)[0], run_graph(changed, given)
    assert got.shape == expected.shape and got.stride() == expected.stride() and got.dtype == expected.dtype
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[got.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    return found


def tensors_of(fn: Callable[..., Any], args: Any, graph: Graph) -> list[Any]:
    """The arguments in the order of the graph's inputs, which are called as they are in the function."""
    names = dict(zip(fn.__code__.co_varnames, args, strict=False))
    return [names[p.name] for p in graph.placeholders]


@pytest.mark.parametrize("fn", TRIANGLES, ids=lambda f: f.__name__)
def test_a_proven_triangle_is_causal(fn: Callable[..., Any]) -> None:
    schema = check(fn, *qkv())
    assert schema.args[3] is None and schema.args[5] is True


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_with_a_float32_softmax(dtype: torch.dtype) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = (q @ k.mT * 0.35).float() + torch.full((T, S), -math.inf).triu(1)
        return s.softmax(-1).to(v.dtype) @ v

    def all_wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q.float() @ k.float().transpose(-1, -2) * 0.35
        return F.softmax(s, dim=-1, dtype=torch.float32).to(v.dtype) @ v

    assert check(attend, *qkv(dtype)).args[5] is True
    assert check(all_wide, *qkv(dtype)).args[6] == 0.35


def test_scales_multiply() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weigh((q * 0.5) @ (k / 2).mT * 0.25 / torch.full([], 4.0), v)

    assert check(attend, *qkv()).args[6] == pytest.approx(0.5 / 2 * 0.25 / 4)


# --- other masks -------------------------------------------------------------------------------------------------------------


def test_padding_with_an_empty_row_is_nan() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        return weigh((q @ k.mT).masked_fill(padding[:, None, None, :], float("-inf")), v)

    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[0, 3:] = padding[1] = True
    found = check(attend, *qkv(), padding)
    assert found.args[3] is not None and found.args[5] is False


def test_an_additive_mask() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return weigh(q @ k.mT * 0.3 + bias, v)

    bias = torch.randn(1, H, T, S)
    bias[0, 1, 2] = -math.inf
    check(attend, *qkv(), bias)
    bias[0, 1, 2] = torch.finfo(torch.float32).min
    check(attend, *qkv(), bias)


def test_several_masks() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, padding: Tensor) -> Tensor:
        s = (q @ k.mT + bias).masked_fill(torch.ones(T, S).tril() == 0, -math.inf)
        return weigh(s.masked_fill(padding[:, None, None, :], -math.inf), v)

    def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(T)
        s = torch.where(at[:, None] >= at, q @ k.mT, -math.inf)
        return weigh(torch.where(at[:, None] - at < 3, s, -math.inf), v)

    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[:, 0] = True  # so row 0 keeps nothing
    check(attend, *qkv(), torch.randn(H, T, S), padding)
    check(window, *qkv())


def test_finite_fills_that_empty_a_row_weigh_evenly() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return weigh(torch.where(keep, q @ k.mT, torch.finfo(q.dtype).min), v)

    keep = torch.rand(T, S) < 0.5
    keep[2] = False
    found = check(attend, *qkv(), keep)
    assert found.args[3] is not None


def test_a_diagonal_that_is_not_the_main_one_is_a_mask() -> None:
    def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weigh((q @ k.mT).masked_fill(torch.ones(T, S + 3).tril(3) == 0, -math.inf), v)

    def strict(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # row 0 keeps nothing
        return weigh((q @ k.mT).masked_fill(torch.ones(T, S).tril(-1) == 0, -math.inf), v)

    assert check(cached, *qkv(length=S + 3)).args[5] is False
    assert check(strict, *qkv()).args[5] is False


def test_longer_keys_under_a_triangle() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weigh((q @ k.mT).masked_fill(torch.ones(T, S + 5).tril() == 0, -math.inf), v)

    assert check(attend, *qkv(length=S + 5)).args[5] is True


def test_no_mask_at_all() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weigh(q @ k.mT + torch.zeros(T, S), v)

    found = check(attend, *qkv())
    assert found.args[3] is None and found.args[5] is False


# --- what must stay ----------------------------------------------------------------------------------------------------------


def returns_weights(q: Tensor, k: Tensor, v: Tensor) -> Any:
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p


def returns_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q @ k.mT
    return weigh(s, v), s


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh(torch.tanh(q @ k.mT), v)


def other_dim(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def mild_fill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh((q @ k.mT).masked_fill(torch.ones(T, S).tril() == 0, -10.0), v)


def negative_scale_of_a_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh((q @ k.mT).masked_fill(torch.ones(T, S).tril() == 0, -math.inf) * -1, v)


def scaled_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh((q @ k.mT + v.sum()) * 0.5, v)


def wrong_fill_sign(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh((q @ k.mT).masked_fill(torch.ones(T, S).tril() == 0, math.inf), v)


def weights_used_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = torch.softmax(q @ k.mT, -1)
    return p @ v + p.sum(-1, keepdim=True)


def weights_left_right(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.mT @ torch.softmax(q @ k.mT, -1)


def broadcast_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh(q @ k[:, :1].mT, v)


def mask_adds_a_dim(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh(q[0] @ k[0].mT + torch.zeros(3, 1, T, S).double().float().cumsum(0), v[0])


def one_batch_of_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.bmm(q.reshape(-1, T, D), k.reshape(-1, S, D).mT)
    return torch.softmax(s, -1).view(B, H, T, S) @ v[:1]


def log_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.log_softmax(q @ k.mT, -1) @ v


def dropped_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # on a CPU no fused kernel drops
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.5, True) @ v


MISSES = (
    returns_weights, returns_scores, capped, other_dim, mild_fill, negative_scale_of_a_mask, scaled_bias, wrong_fill_sign,
    weights_used_twice, weights_left_right, broadcast_heads, mask_adds_a_dim, log_weights, dropped_out,
    one_batch_of_values,
)  # fmt: skip


@pytest.mark.parametrize("fn", MISSES, ids=lambda f: f.__name__)
def test_a_near_miss_stays(fn: Callable[..., Any]) -> None:
    graph = captured(fn, *qkv())
    assert recognise_attention(graph) is graph or call_of(recognise_attention(graph)) is None


def test_a_wider_mask_than_the_query_stays() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT + bias, -1).to(v.dtype) @ v

    graph = captured(attend, *qkv(torch.bfloat16), torch.randn(T, S))
    assert call_of(recognise_attention(graph)) is None


def test_an_input_written_afterwards() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(q @ k.mT, -1)
        q.add_(1)
        return p @ v

    args = qkv()
    again = [x.clone() for x in args]
    torch.testing.assert_close(tinycompile.compile(attend)(*args), attend(*again), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(args[0], again[0])


# --- a GPU's rules, decided without one --------------------------------------------------------------------------------------


def on_cuda(graph: Graph) -> Graph:
    """The same graph with its tensors on a CUDA device."""
    card = Device("cuda", 0)

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(v) for v in value)
        if isinstance(value, TensorMeta):
            return replace(value, device=card)
        return card if isinstance(value, Device) else value

    return replace(graph, nodes=tuple(replace(n, args=moved(n.args), meta=moved(n.meta)) for n in graph.nodes))


@pytest.mark.parametrize("fn", [repeated, expanded], ids=lambda f: f.__name__)
def test_groups_of_queries_read_the_few_keys(fn: Callable[..., Any]) -> None:
    graph = on_cuda(captured(fn, *qkv(torch.bfloat16)))
    found = call_of(recognise_attention(graph))
    assert found is not None and found.args[7] is True
    few = {n.name: n for n in recognise_attention(graph).nodes}[found.args[1].name]
    assert few.meta.shape == (B, 2, S, D)


def test_dropout_on_a_gpu() -> None:
    graph = on_cuda(captured(dropped_out, *qkv(torch.bfloat16)))
    found = call_of(recognise_attention(graph))
    assert found is not None and found.args[4] == 0.5
    assert not any(n.target == "dropout" for n in recognise_attention(graph).nodes)
    assert call_of(recognise_attention(on_cuda(captured(dropped_out, *qkv())))) is None  # float32 kernels don't drop as torch


def test_shapes_that_no_fused_kernel_takes() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weigh(q @ k.mT, v)

    odd = [torch.randn(B, H, T, 12, dtype=torch.bfloat16) for _ in range(3)]
    wide = [torch.randn(B, H, T, 264, dtype=torch.bfloat16) for _ in range(3)]
    double = [torch.randn(B, H, T, 8, dtype=torch.float64) for _ in range(3)]
    for args in (odd, wide, double):
        assert call_of(recognise_attention(on_cuda(captured(attend, *args)))) is None


# --- compiled ----------------------------------------------------------------------------------------------------------------


def test_compiled_with_changing_lengths() -> None:
    @tinycompile.compile
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[-2]
        return weigh((q @ k.mT * 0.3).masked_fill(torch.tril(torch.ones(n, n)) == 0, -math.inf), v)

    for n in (6, 9, 13):
        q, k, v = (torch.randn(B, H, n, D) for _ in range(3))
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        torch.testing.assert_close(attend(q, k, v), expected, atol=2e-6, rtol=2e-6)
    assert "is_causal=True" in attend.source("optimized")


def test_trained() -> None:
    compiled = tinycompile.compile(masked_fill_tril)
    args = [x.requires_grad_() for x in qkv()]
    wide = [x.detach().double().requires_grad_() for x in args]
    grad = torch.randn(B, H, T, D)
    got, expected = compiled(*args), masked_fill_tril(*wide)
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=2e-6)
    mine = torch.autograd.grad(got, args, grad)
    true = torch.autograd.grad(expected, wide, grad.double())
    for a, b in zip(mine, true, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-6, rtol=2e-6)
    assert "attention_backward" in compiled.source("backward")
