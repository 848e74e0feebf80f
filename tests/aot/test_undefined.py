"""Backwards where only some results come with a gradient: what leads to the others takes no part, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.cpu
BACKENDS = ("cpp", "aot_eager", "eager")


def logarithm(x, w):
    return x * 2, x.log()


def roots(x, w):
    return (x * w).sum(), x.sqrt(), (x * w).norm()


def product(x, w):
    h = x * w
    return h.exp(), h.sum() / x.sum()


def views(x, w):
    y = x.log()
    return x * 2, y[1:], y.view(3, 1)


def of_several(x, w):
    a, b = torch.stack((x * 2, x.rsqrt())).unbind()
    return a, b


def by_torch(x, w):
    """One result of a call that torch differentiates, and what a formula of ours makes of it."""
    values, _ = torch.sort(x * w)
    return values * 2, (x * 0).reciprocal(), torch.fft.rfft(x).abs()


def softmax_and_loss(x, w):
    logits = x * w
    return F.cross_entropy(logits[None], torch.tensor([1])), logits / 0


class Ones(torch.autograd.Function):
    """Its backward is no linear function of what comes in."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: Any, b: Any) -> Any:
        return a + 1, b + 1


def own_gradient(x, w):
    a, b = Ones.apply(x, w)
    return a, b, x.log()


def flat(x, w):
    """The gradient of the first is zeros, not undefined."""
    steps = (x * 2).round()
    return torch.maximum(steps, w), steps.floor() + w, x * 2 + w


FUNCTIONS = [flat, logarithm, roots, product, views, of_several, by_torch, softmax_and_loss, own_gradient]


def gradients(fn: Callable[..., Any], at: int, again: bool) -> list[torch.Tensor | None]:
    x, w = torch.tensor([0.0, 1.0, 0.0], requires_grad=True), torch.tensor([1.0, 2.0, 0.5], requires_grad=True)
    made = fn(x, w)
    first = torch.autograd.grad(made[at].sum(), (x, w), create_graph=again, allow_unused=True)
    if not again or not any(g is not None and g.requires_grad for g in first):
        return list(first)
    loss = sum((g * g).sum() for g in first if g is not None and g.requires_grad)
    return [*first, *torch.autograd.grad(loss, (x, w), allow_unused=True)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_eager(fn: Callable[..., Any], again: bool, backend: str) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True, backend=backend)
    for at in range(len(fn(torch.ones(3), torch.ones(3)))):
        mine, theirs = gradients(compiled, at, again), gradients(fn, at, again)
        torch.testing.assert_close(mine, theirs, equal_nan=True, msg=lambda m, at=at: f"result {at}: {m}")


def test_sizes_that_change() -> None:
    def f(x, y):
        return x * 2 + y.sum(), y.log(), (x.sum() * y).sqrt()

    compiled = tinycompile.compile(f, fullgraph=True, dynamic=True)
    for n in (3, 5, 8):
        for at in range(3):
            found = []
            for g in (compiled, f):
                x, y = torch.ones(2, requires_grad=True), torch.zeros(n, requires_grad=True)
                g(x, y)[at].sum().backward()
                found.append([x.grad, y.grad])
            torch.testing.assert_close(*found, equal_nan=True)
    assert compiled.cache_info()["entries"] == 1


def test_random_numbers_are_those_of_the_forward() -> None:
    def f(x):
        y = F.dropout(x, 0.5)
        return y * 2, y.log(), y.detach()

    compiled = tinycompile.compile(f, fullgraph=True)
    x = torch.ones(1000, requires_grad=True)
    first, _, kept = compiled(x)
    first.sum().backward()
    torch.testing.assert_close(x.grad, 2 * kept)


def test_graphs_are_retained_and_freed() -> None:
    compiled = tinycompile.compile(logarithm, fullgraph=True)
    x = torch.tensor([0.0, 2.0], requires_grad=True)
    first, second = compiled(x, x.detach())
    (g,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
    (h,) = torch.autograd.grad(second.sum(), x)
    torch.testing.assert_close((g, h), (torch.tensor([2.0, 2.0]), torch.tensor([float("inf"), 0.5])))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(second.sum(), x)


def test_batches_of_gradients() -> None:
    """``is_grads_batched`` and what is built on it run the backward on tensors that no kernel can read."""

    def f(x, w):
        return (x * w).tanh(), x.sum() * w

    found = []
    for g in (tinycompile.compile(f, fullgraph=True), f):
        x, w = torch.linspace(-1, 1, 3).requires_grad_(), torch.linspace(1, 2, 3).requires_grad_()
        first, second = g(x, w)
        both = torch.autograd.grad(
            (first, second), (x, w), (torch.eye(3), torch.ones(3, 3)), retain_graph=True, is_grads_batched=True
        )
        some = torch.autograd.grad(second, (x, w), torch.eye(3), is_grads_batched=True, retain_graph=True)
        twice = torch.autograd.grad(first, (x, w), torch.eye(3), is_grads_batched=True, create_graph=True)
        again = torch.autograd.grad(sum(t.sum() for t in twice), (x, w))
        jacobian = torch.autograd.functional.jacobian(lambda x: g(x, w.detach())[0], x.detach(), vectorize=True)
        found.append([*both, *some, *twice, *again, jacobian])
    torch.testing.assert_close(*found)


def test_gradcheck_takes_compiled_functions() -> None:
    """It also gives no gradient at all."""
    for f in (lambda x, y: (x * y).sin(), lambda x, y: ((x * y).sin(), x.exp() * 2)):
        compiled = tinycompile.compile(f, fullgraph=True)
        given = [torch.linspace(0.5, 1, 3, dtype=torch.float64).requires_grad_() for _ in range(2)]
        assert torch.autograd.gradcheck(compiled, given)
        assert torch.autograd.gradgradcheck(compiled, given)


@pytest.mark.parametrize("flat", [torch.round, torch.floor, torch.sign, torch.trunc])
def test_no_gradient_is_no_zero_behind_a_slope_of_zero(flat: Callable[..., Any]) -> None:
    """A result that nobody asks a gradient of takes no part: zeros times what is infinite would be NaN."""

    def f(x, w):
        h = w.log() + x
        return h, flat(h @ x)

    found = []
    for g in (tinycompile.compile(f), f):
        x, w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_(), torch.tensor([0.0, -1.0, 2.0])
        g(x, w)[0].sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
    assert found[0].isfinite().all()
