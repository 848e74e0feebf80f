"""What a training step holds: saved tensors go as the backward goes, nothing grows, and memory is written where it is read
for the last time."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tinycompile
from tinycompile.base.target import H100
from tinycompile.fuse.planner import plan
from tinycompile.ir.plan import Alloc
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import optimize

pytestmark = pytest.mark.cpu
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"


def loss_of(w: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w, target)


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(8, 64, requires_grad=True), torch.randn(32, 8, requires_grad=True), torch.randint(0, 64, (32,))


def test_the_gradient_of_logits_is_written_over_them() -> None:
    f = tinycompile.compile(loss_of, backend="triton", fullgraph=True)
    f(*inputs()).backward()
    backward = f._latest().compiled.backward
    assert backward.graph.donated and backward.source.overwritten
    steps = plan(lower(optimize(backward.graph)), H100).steps
    assert any(isinstance(s, Alloc) and s.in_place for s in steps)


@pytest.mark.parametrize("backend", [None, "triton"])
def test_a_retained_graph_can_be_used_again(backend: str | None) -> None:
    f = tinycompile.compile(loss_of, backend=backend, fullgraph=True)
    w, x, target = inputs()
    loss = f(w, x, target)
    grads = [torch.autograd.grad(loss, (w, x), retain_graph=True) for _ in range(2)]
    expected = torch.autograd.grad(loss_of(w, x, target), (w, x))
    for g in grads:
        for a, b in zip(g, expected, strict=True):
            torch.testing.assert_close(a, b)
    torch.autograd.grad(loss, (w, x))
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(loss, (w, x))


def test_outputs_and_their_views_are_not_given_up() -> None:
    def f(w, x):
        y = (x @ w).exp()
        return y.view(-1), (y * y).sum()

    g = tinycompile.compile(f, backend="triton", fullgraph=True)
    w, x, _ = inputs()
    y, loss = g(w, x)
    before = y.detach().clone()
    loss.backward()
    torch.testing.assert_close(y.detach(), before)


def test_saved_tensors_go_with_the_backward() -> None:
    """When the backward has run, nobody holds what the forward saved."""
    f = tinycompile.compile(lambda w, x: (torch.tanh(x @ w) * torch.sin(x @ w)).sum(), fullgraph=True)
    w, x, _ = inputs()
    loss = f(w, x)
    saved = [weakref.ref(t) for t in loss.grad_fn.saved_tensors if t is not w and t is not x]
    assert saved
    loss.backward()
    gc.collect()
    assert all(r() is None for r in saved)


def test_nothing_grows() -> None:
    """Tensors alive after many steps are those alive after few."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
    forward = tinycompile.compile(model, fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step = tinycompile.compile(optimizer.step)
    x, target = torch.randn(32, 8), torch.randint(0, 4, (32,))

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    def steps(count: int) -> None:
        for _ in range(count):
            F.cross_entropy(forward(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps(5)
    before = alive()
    steps(1000 if FULL else 60)
    assert alive() <= before
