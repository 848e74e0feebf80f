"""``autograd.Function`` in compiled code: an op with the program's own gradient, in a forward as in a whole step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


class Scaled(torch.autograd.Function):
    """Saves arguments and an intermediate value; a number; a boolean and a float output without gradients."""

    @staticmethod
    def forward(ctx, x, w, factor):
        h = x.exp() * w
        ctx.save_for_backward(x, w, h)
        ctx.factor = factor
        big, rounded = h > 1, h.round()
        ctx.mark_non_differentiable(big, rounded)
        return h * factor, big, rounded

    @staticmethod
    def backward(ctx, grad, _, __):
        x, w, h = ctx.saved_tensors
        assert ctx.needs_input_grad[2] is False
        gw = (grad * x.exp() * ctx.factor).sum(0) if ctx.needs_input_grad[1] else None
        return grad * h * ctx.factor + 1, gw, None


class Reversed(torch.autograd.Function):
    """With ``setup_context``."""

    @staticmethod
    def forward(x, factor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return -grad * ctx.factor, None


class StraightThrough(torch.autograd.Function):
    """Not linear in the gradient that comes in."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.5, 0.5)


class Pair(torch.autograd.Function):
    """Two outputs, of which one may go unused: its gradient comes as zeros."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return a * x.cos() - b * x.sin()


def scaled(x, w):
    value, big, rounded = Scaled.apply(x * 2, w, 3.0)
    return (value * big + rounded).sum()


def chained(x, w):
    return (StraightThrough.apply(Reversed.apply(x * w, 0.5)) * w).sum()


def one_of_two(x, w):
    return (Pair.apply(x)[1] * w).sum()


def twice(x, w):
    a, b = Pair.apply(x)
    c, d = Pair.apply(a)
    return (b * c + d * w).sum()


def leaves(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    return tuple(torch.randn(s, generator=made).to(dtype).requires_grad_() for s in ((4, 3), (3,)))  # type: ignore[return-value]


@pytest.mark.parametrize("fn", [scaled, chained, one_of_two, twice], ids=lambda f: f.__name__)
@pytest.mark.parametrize("whole", [False, True], ids=["attached", "whole"])
def test_gradients_equal_eagers(fn: Callable[..., Any], whole: bool) -> None:
    def step(x, w):
        fn(x, w).backward()

    ours, theirs = leaves(), leaves()
    if whole:
        tinycompile.compile(step, fullgraph=True)(*ours)
        step(*theirs)
    else:
        got, wanted = tinycompile.compile(fn, fullgraph=True)(*ours), fn(*theirs)
        torch.testing.assert_close(got, wanted)
        got.backward()
        wanted.backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("fn", [scaled, chained, one_of_two, twice], ids=lambda f: f.__name__)
def test_where_torch_differentiates_the_graph(fn: Callable[..., Any]) -> None:
    """The gradient is the program's there, too: Scaled and Reversed have none that is their forward's."""
    ours, theirs = leaves(torch.float64), leaves(torch.float64)
    first = [
        torch.autograd.grad(f(*a), a, create_graph=True)
        for f, a in ((tinycompile.compile(fn, backend="eager"), ours), (fn, theirs))
    ]
    for a, b in zip(*first, strict=True):
        torch.testing.assert_close(a, b)
    second = [
        torch.autograd.grad(sum((g * g).sum() for g in found), a, allow_unused=True) for found, a in zip(first, (ours, theirs))
    ]
    for a, b in zip(*second, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_outputs_without_gradients_and_needs() -> None:
    run = tinycompile.compile(lambda x, w: Scaled.apply(x, w, 2.0), fullgraph=True)
    x, w = leaves()
    value, big, rounded = run(x, w.detach())  # asks for no gradient of w
    assert value.requires_grad and not big.requires_grad and not rounded.requires_grad
    value.sum().backward()
    other = leaves()[0]
    Scaled.apply(other, w.detach(), 2.0)[0].sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_second_derivatives_of_the_programs_formula() -> None:
    ours, theirs = leaves(torch.float64), leaves(torch.float64)
    found = []
    for fn, (x, w) in ((tinycompile.compile(twice, fullgraph=True), ours), (twice, theirs)):
        (first,) = torch.autograd.grad(fn(x, w), x, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), x)[0])
    torch.testing.assert_close(*found)


def test_wrong_gradients_are_torchs_error() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad[:2]

    class TooMany(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    for cls in (Wrong, TooMany):

        def fn(x, cls=cls):
            return cls.apply(x).sum()

        run = tinycompile.compile(fn)
        messages = []
        for call in (run, fn):
            with pytest.raises(RuntimeError) as error:
                call(leaves()[0]).backward()
            messages.append(str(error.value))
        assert messages[0] == messages[1]
        assert [b.id for b in run.breaks] == ["backward"]


def test_what_stays_with_torch() -> None:
    class Dirty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:2]

        @staticmethod
        def backward(ctx, grad):
            return torch.cat((grad, grad))

    for cls in (Dirty, View):

        def fn(x, cls=cls):
            return cls.apply(x * 1).sum()

        run = tinycompile.compile(fn)
        ours, theirs = leaves()[0], leaves()[0]
        run(ours).backward()
        fn(theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert run.breaks


def cube(backward: Callable[..., Any]) -> Any:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

    Cube.backward = staticmethod(backward)
    return Cube


@torch.autograd.function.once_differentiable
def once(ctx, grad):
    return grad * 3 * ctx.saved_tensors[0] ** 2


def half_without(ctx, grad):
    (x,) = ctx.saved_tensors
    with torch.no_grad():
        slope = 3 * x * x
    return grad * slope


def all_without(ctx, grad):
    with torch.no_grad():
        return grad * 3 * ctx.saved_tensors[0] ** 2


def detached(ctx, grad):
    return grad * 3 * ctx.saved_tensors[0].detach() ** 2


@pytest.mark.parametrize("backward", [once, half_without, all_without, detached], ids=lambda f: f.__name__)
def test_backwards_that_are_cut_off(backward: Callable[..., Any]) -> None:
    """Their second derivatives are torch's, or its refusal."""

    def found(wrap: Callable[..., Any]) -> list[Any]:
        x, w = (torch.tensor([v], requires_grad=True) for v in (2.0, 3.0))
        made = list[Any]()
        y = wrap(lambda x, w: cube(backward).apply(x * w) * w)(x, w).sum()
        gx, gw = torch.autograd.grad(y, (x, w), create_graph=True)
        for first in (gx, gw):
            try:
                second = torch.autograd.grad(first.sum(), (x, w), retain_graph=True, materialize_grads=True)
                made.append([g.tolist() for g in second])
            except RuntimeError as error:
                made.append(str(error))
        return [gx.tolist(), gw.tolist(), gx.requires_grad, gw.requires_grad, *made]

    assert found(tinycompile.compile) == found(lambda f: f)
