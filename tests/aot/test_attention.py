"""Attention in training: with masks, groups of queries, dropout and by hand it goes through torch's fused kernels in both
directions wherever eager's does, with eager's gradients."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tinycompile
from tests.passes.test_attention import captured, on_cuda
from tinycompile.aot.joint import Joint, differentiate
from tinycompile.aot.opaque import BACKWARD
from tinycompile.base.config import config
from tinycompile.ir.requires_grad import outputs_require_grad
from tinycompile.ops.training import _bias
from tinycompile.passes.patterns_attention import recognise_attention

pytestmark = pytest.mark.cpu
B, H, T, S, D = 2, 4, 6, 7, 8
attend = F.scaled_dot_product_attention


def additive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, mask)


def scaled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, mask, scale=0.2)


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, mask > -1.5)


def grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k[:, :2], v[:, :2], enable_gqa=True)


def grouped_and_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k[:, :2], v[:, :2], mask, enable_gqa=True)


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(D) + mask, -1) @ v


def by_hand_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT * 0.3).masked_fill(mask < -1.5, -math.inf), -1) @ v


def by_hand_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x[:, :2].repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax(q @ k.mT * 0.3, -1) @ v


MASKED = (additive, scaled, padded, grouped_and_masked, by_hand, by_hand_padded)
FUNCTIONS = (*MASKED, grouped, by_hand_grouped)


def inputs(dtype: torch.dtype = torch.float64, mask: tuple[int, ...] = (T, S)) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((B, H, T, D), (B, H, S, D), (B, H, S, D))
    return [*(torch.randn(s, dtype=dtype).requires_grad_() for s in shapes), torch.randn(mask, dtype=dtype)]


@pytest.mark.parametrize("mask", [(T, S), (B, 1, T, S), (B, H, 1, S)], ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients_on_a_cpu(fn: Callable[..., Tensor], mask: tuple[int, ...]) -> None:
    """First and second derivatives as eager's plain kernel gives them; the scores lie in no memory."""
    given = inputs(mask=mask)
    compiled = tinycompile.compile(fn, fullgraph=True, backend="aot_eager")
    results = []
    for f in (compiled, fn):
        with sdpa_kernel(SDPBackend.MATH) if f is fn else contextlib.nullcontext():
            out = f(*given)
            first = torch.autograd.grad(out, given[:3], torch.cos(out.detach()), create_graph=True)
            second = torch.autograd.grad(sum((g * g.detach().sin()).sum() for g in first), given[:3])
        results.append((out, *first, *second))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
    backward = compiled.source("backward")
    assert "attention_backward" in backward and "softmax" not in backward


def test_a_mask_that_learns_gets_its_gradient() -> None:
    given = inputs()
    given[3].requires_grad_()
    compiled = tinycompile.compile(additive, fullgraph=True, backend="aot_eager")
    seed = torch.randn(B, H, T, D, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad(f(*given), given, seed) for f in (compiled, additive))
    torch.testing.assert_close(mine, theirs)


# --- what a GPU would run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnCard:
    """``fused``: by our records of the kernels; else by torch's own call, which torch differentiates."""

    name: str
    fn: Callable[..., Tensor]
    dtype: torch.dtype = torch.bfloat16
    fused: bool = True
    learns: bool = False


ON_CARD = (
    *(OnCard(fn.__name__, fn) for fn in FUNCTIONS),
    *(OnCard(f"{fn.__name__}_fp32", fn, torch.float32) for fn in (additive, scaled, padded)),
    *(OnCard(f"{fn.__name__}_fp32", fn, torch.float32, fused=False) for fn in (grouped, grouped_and_masked)),
    OnCard("dropout", lambda q, k, v, mask: attend(q, k, v, dropout_p=0.1), fused=False),
    OnCard("dropout_fp32", lambda q, k, v, mask: attend(q, k, v, dropout_p=0.1), torch.float32, fused=False),
    OnCard("dropout_and_mask", lambda q, k, v, mask: attend(q, k, v, mask, 0.1), fused=False),
    OnCard("dropout_by_hand", lambda q, k, v, m: F.dropout(torch.softmax(q @ k.mT * 0.3, -1), 0.1) @ v, fused=False),
    OnCard("learned_mask", additive, fused=False, learns=True),
    OnCard("learned_mask_by_hand", by_hand, fused=False, learns=True),
)


def joint_on_card(case: OnCard) -> Joint:
    given = inputs(case.dtype)
    given[0] = given[0].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # as projections give it
    given[3].requires_grad_(case.learns)
    graph = recognise_attention(on_cuda(captured(case.fn, *given)), training=True)
    metas = {n.name: n.meta for n in graph.placeholders}
    wanted = [m.dtype.is_floating_point and (m.shape != (T, S) or case.learns) for m in metas.values()]
    return differentiate(graph, wanted, outputs_require_grad(graph, wanted))


@pytest.mark.parametrize("case", ON_CARD, ids=lambda c: c.name)
def test_kernels_on_a_card(case: OnCard) -> None:
    joint = joint_on_card(case)
    called = [n.target for n in joint.graph.nodes if n.kind in ("call", "extern")]
    assert not {"softmax", "matmul", "bmm", "native_dropout"} & set(called), called
    assert ("attention_backward" if case.fused else BACKWARD) in called, called
    assert len(joint.gradients) == 3 + case.learns


@pytest.mark.parametrize("fn", [by_hand, by_hand_padded, by_hand_grouped], ids=lambda f: f.__name__)
def test_float32_by_hand_stays_by_hand_on_a_card(fn: Callable[..., Tensor]) -> None:
    """The fused kernel's float32 gradients are further from float64 than twice eager's (seen on an H100)."""
    called = [n.target for n in joint_on_card(OnCard("", fn, torch.float32)).graph.nodes]
    assert "softmax" in called and "attention_backward" not in called


@pytest.mark.parametrize("shape", [(T, S), (B, 1, 1, S), (B, H, T, 1), (1, 1, T, S)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16], ids=str)
def test_the_mask_as_cudas_kernel_reads_it(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, _, _ = inputs(torch.bfloat16)
    mask = torch.randn(shape) > 0 if dtype == torch.bool else torch.randn(shape, dtype=dtype)
    bias: Any = _bias(mask, q, k)
    assert bias.shape == (B, H, T, S) and bias.dtype == q.dtype and bias.stride(-1) == 1
    assert all(s % 16 == 0 for s in bias.stride()[:-1])
    wanted = torch.where(mask, 0.0, -math.inf).to(q.dtype) if dtype == torch.bool else mask
    assert torch.equal(bias, wanted.expand(B, H, T, S))


@pytest.mark.parametrize("scale", [None, 0.5, -0.5])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_form_is_as_exact_as_torchs(dtype: torch.dtype, dropout: float, scale: float | None) -> None:
    """What no fused kernel takes: half types are wide until the end, and each factor of the scores gets a root of the scale."""

    def attention(*args: Tensor) -> Tensor:
        return attend(*args, dropout_p=dropout, scale=scale)

    def gradients(fn: Callable[..., Tensor], of: torch.dtype) -> list[Tensor]:
        leaves = [v.to(of).requires_grad_() for v in given]
        torch.manual_seed(1)
        out = fn(*leaves)
        return [g.double() for g in torch.autograd.grad(out, leaves, torch.ones_like(out))]

    torch.manual_seed(0)
    given = [(torch.randn(B, n, D) * 4).to(dtype) for n in (T, S, S)]
    with config.patch(fallback_random=True):
        mine = gradients(tinycompile.compile(attention, backend="aot_eager", fullgraph=True), dtype)
    theirs, exact = gradients(attention, dtype), gradients(attention, torch.float64)
    for m, t, e in zip(mine, theirs, exact, strict=True):
        assert (m - e).norm() <= 2 * (t - e).norm() + torch.finfo(dtype).eps * e.norm()
