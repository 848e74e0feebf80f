"""What torch does not differentiate: arguments that it refuses, functions whose results require no grad, and one whose backward
raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile as tc
from tinycompile.ops.gradients import CUT

pytestmark = pytest.mark.cpu

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CLASSES = torch.tensor([0, 1, 2, 0])
PARTS = torch.tensor([[0.25, 0.5, 0.25]] * 4)
ONES = torch.ones(3)

REFUSED: dict[str, Call] = {  # of (4, 3), and of what requires grad
    "nll_loss": lambda x, w: F.nll_loss(x, CLASSES, w),
    "nll_loss2d": lambda x, w: F.nll_loss(x.reshape(2, 3, 2), CLASSES.reshape(2, 2), w),
    "cross_entropy": lambda x, w: F.cross_entropy(x, CLASSES, w),
    "cross_entropy, smoothed": lambda x, w: F.cross_entropy(x, CLASSES, w, label_smoothing=0.1),
    "binary_cross_entropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), PARTS, w),
    "with_logits, weight": lambda x, w: F.binary_cross_entropy_with_logits(x, PARTS, w),
    "with_logits, pos_weight": lambda x, w: F.binary_cross_entropy_with_logits(x, PARTS, pos_weight=w),
    "multi_margin_loss": lambda x, w: F.multi_margin_loss(x, CLASSES, weight=w),
    "soft_margin_loss": lambda x, w: F.soft_margin_loss(x, w.expand(4, 3)),
    "running mean": lambda x, w: F.batch_norm(x, w, ONES),
    "running variance": lambda x, w: F.batch_norm(x, ONES, w),
    "running mean in training": lambda x, w: F.batch_norm(x, w * 1, ONES.clone(), training=True),
}
TAKEN: dict[str, Call] = {
    "probabilities": lambda x, w: F.cross_entropy(x, PARTS, w),
    "multilabel_soft_margin_loss": lambda x, w: F.multilabel_soft_margin_loss(x, PARTS, w),
    "target": lambda x, w: F.binary_cross_entropy_with_logits(x, w.expand(4, 3)),
    "weight of a norm": lambda x, w: F.batch_norm(x, ONES, ONES, w),
}
WITHOUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: lambda x, f=getattr(torch.special, name.split("special_")[1]): f(x) for name in CUT if "special_" in name},
    **{name: lambda x, f=getattr(torch.special, name[14:]): f(x, 2) for name in CUT if name.startswith("torch.special.")},
    **{f"2, {name}": lambda x, f=getattr(torch.special, name[14:]): f(0.5, x) for name in CUT if name.startswith("torch.sp")},
    "histc": lambda x: torch.histc(x, 4),
    "Tensor.histc": lambda x: x.histc(4),
}
FLOORED: dict[str, Call] = {
    "a // b": lambda x, w: x // w,
    "a // 2": lambda x, w: x // 2 + w,
    "2 // b": lambda x, w: 2 // w,
    "floor_divide": lambda x, w: torch.floor_divide(x, w) * x,
    "within": lambda x, w: torch.autograd.grad((x * w // 2).sum(), w)[0],
}


def error_of(function: Call, *args: Any) -> str:
    with pytest.raises(RuntimeError) as caught:
        function(*args)
    return str(caught.value)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside others"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_is_refused_in_torchs_words(name: str, alone: bool) -> None:
    x, w = torch.randn(4, 3, requires_grad=not alone), torch.rand(3, requires_grad=True)
    want = error_of(REFUSED[name], x, w)
    assert "is not differentiable with respect to argument" in want
    assert error_of(tc.compile(REFUSED[name]), x, w) == want


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_refused_without_gradients(name: str) -> None:
    x, w = torch.randn(4, 3), torch.rand(3, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(tc.compile(REFUSED[name], fullgraph=True)(x, w), REFUSED[name](x, w))


@pytest.mark.parametrize("name", TAKEN)
def test_what_has_a_gradient_is_taken(name: str) -> None:
    x, w = torch.randn(4, 3), torch.rand(3, requires_grad=True)
    grads = [torch.autograd.grad(f(x, w).sum(), w)[0] for f in (tc.compile(TAKEN[name], fullgraph=True), TAKEN[name])]
    torch.testing.assert_close(*grads)


def test_a_refusal_is_caught_by_the_program() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        try:
            return F.nll_loss(x, CLASSES, w)
        except RuntimeError:
            return F.nll_loss(x, CLASSES, w.detach()) * 2

    x, w = torch.randn(4, 3), torch.rand(3, requires_grad=True)
    torch.testing.assert_close(tc.compile(function)(x, w), function(x, w))


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_results_require_no_grad(name: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = WITHOUT[name](x)
        return made, made.sum() * x

    x = torch.rand(3, requires_grad=True)
    got, want = tc.compile(function, fullgraph=True)(x), function(x)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want] == [False, True]
    grads = [torch.autograd.grad(t[1].sum(), x)[0] for t in (got, want)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", FLOORED)
def test_a_floored_quotient_has_no_derivative(name: str) -> None:
    x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)

    def trained(function: Call) -> Call:
        return lambda x, w: torch.autograd.grad(function(x, w).sum(), (x, w))[0]

    want = error_of(trained(FLOORED[name]), x, w)
    assert re.search("derivative for .*floor_divide is not implemented", want)
    assert error_of(trained(tc.compile(FLOORED[name])), x, w) == want


def test_a_quotient_rounded_down_by_name_has_one() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.div(x, w, rounding_mode="floor") * x

    x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    got, want = (torch.autograd.grad(f(x, w).sum(), (x, w)) for f in (tc.compile(function, fullgraph=True), function))
    assert all(map(torch.equal, got, want))
