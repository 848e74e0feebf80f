"""What an ``autograd.Function`` in compiled code has torch save, and what it holds itself: a second backward, edits of what it
was given and what it gave, and what can't be saved. As eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

Way = Callable[..., Any]
WAYS: dict[str, Way] = {
    "kernels": tinycompile.compile,
    "op by op": lambda f: tinycompile.compile(f, backend="eager"),
}


def function(saves: Callable[[Any, Any, Any], None], slope: Callable[[Any], Any]) -> Any:
    """``x.exp() + 1, x.exp()``, of which ``saves(ctx, x, second)`` keeps something, and whose gradient is ``slope(ctx)``."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            second = x.exp()
            saves(ctx, x, second)
            return second + 1, second

        @staticmethod
        def backward(ctx, a, b):
            return (a + 2 * b) * slope(ctx)

    return Custom


def save_input(ctx: Any, x: Any, second: Any) -> None:
    ctx.save_for_backward(x)


def save_result(ctx: Any, x: Any, second: Any) -> None:
    ctx.save_for_backward(second)


def save_both(ctx: Any, x: Any, second: Any) -> None:
    ctx.save_for_backward(None, x, second)


def save_inside(ctx: Any, x: Any, second: Any) -> None:
    ctx.save_for_backward(x.sin())


def hold_input(ctx: Any, x: Any, second: Any) -> None:
    ctx.value = x


def hold_inside(ctx: Any, x: Any, second: Any) -> None:
    ctx.value = x.cos()


def hold_and_save(ctx: Any, x: Any, second: Any) -> None:
    ctx.value = x.cos()
    ctx.save_for_backward(second)


def saved(ctx: Any) -> Any:
    return ctx.saved_tensors[-1]


def held(ctx: Any) -> Any:
    return ctx.value


def either(ctx: Any) -> Any:
    return ctx.value * ctx.saved_tensors[0]


def nothing(ctx: Any) -> Any:
    return 3


def unread(ctx: Any) -> Any:
    return 3 if len(ctx.saved_tensors) else 4


CASES = {
    "an argument": (save_input, saved),
    "a result": (save_result, saved),
    "both": (save_both, saved),
    "a value": (save_inside, saved),
    "an argument on ctx": (hold_input, held),
    "a value on ctx": (hold_inside, held),
    "one of each": (hold_and_save, either),
    "a value on ctx, a result unasked": (hold_and_save, held),
    "unasked": (save_both, nothing),
    "asked for, unread": (save_inside, unread),
    "asked for, unread, of a result": (save_result, unread),
}
HELD = {"an argument on ctx", "a value on ctx", "one of each", "a value on ctx, a result unasked"}


def attempt(steps: Callable[[], Any]) -> Any:
    try:
        return steps()
    except RuntimeError as error:
        return str(error)


def leaf() -> torch.Tensor:
    return torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_a_second_backward(case: str, way: str) -> None:
    """torch frees what it was given to save, if the backward asked for it, and nothing else."""
    custom = function(*CASES[case])

    def found(wrap: Way) -> Any:
        x = leaf()
        y = wrap(lambda x: custom.apply(x)[0].sum())(x)
        y.backward()
        return attempt(y.backward), x.grad.tolist()

    assert found(WAYS[way]) == found(lambda f: f)


@pytest.mark.parametrize("case", CASES)
def test_a_second_backward_within_a_step(case: str) -> None:
    custom = function(*CASES[case])

    def step(x):
        y = custom.apply(x)[0].sum()
        y.backward()
        y.backward()

    def found(wrap: Way) -> Any:
        x = leaf()
        return attempt(lambda: wrap(step)(x)), x.grad.tolist()

    told, theirs = found(tinycompile.compile), found(lambda f: f)
    assert told[0] == theirs[0]
    if told[0] is None:
        assert told[1] == theirs[1]


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("edited", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_results_that_are_edited(case: str, edited: int, asked: int) -> None:
    """Refused where that one is saved, whichever gradient is asked for, with its name."""
    custom = function(*CASES[case])

    def found(wrap: Way) -> Any:
        x = leaf()
        results = wrap(lambda x: custom.apply(x))(x)
        with torch.no_grad():
            results[edited].add_(1)
        return attempt(results[asked].sum().backward), None if x.grad is None else x.grad.tolist()

    assert found(tinycompile.compile) == found(lambda f: f)


def after_an_edit(custom: Any, wrap: Way) -> Any:
    """What the backward says, and the gradient, where the argument was written to behind the forward."""
    x = leaf()
    given = x * 1
    y = wrap(lambda x: custom.apply(x)[0].sum())(given)
    with torch.no_grad():
        given.add_(1)
    return attempt(y.backward), None if x.grad is None else x.grad.tolist()


@pytest.mark.parametrize("case", sorted(CASES.keys() - HELD))
def test_arguments_that_are_edited(case: str) -> None:
    custom = function(*CASES[case])
    mine, theirs = after_an_edit(custom, tinycompile.compile), after_an_edit(custom, lambda f: f)
    if theirs[0] is None and mine[0] is not None:  # computed again of the argument
        assert case in ("a result", "a value") and "modified by an inplace operation" in mine[0]
    else:
        assert mine == theirs


@pytest.mark.parametrize("backend", [None, "eager"])
def test_what_is_held_is_not_silently_another(backend: Any) -> None:
    """Eager computes with what lies in memory at the backward: so does its node, and kernels refuse."""
    custom = function(hold_input, held)
    mine, theirs = after_an_edit(custom, lambda f: tinycompile.compile(f, backend=backend)), after_an_edit(custom, lambda f: f)
    assert mine == theirs or "modified by an inplace operation" in mine[0]


@pytest.mark.parametrize("value", [3, 2.5, "s", (), [1]], ids=repr)
def test_only_tensors_are_saved(value: Any) -> None:
    custom = function(lambda ctx, x, second: ctx.save_for_backward(x, value), nothing)
    said = []
    for wrap in (tinycompile.compile, lambda f: f):
        fn = wrap(lambda x: custom.apply(x)[0].sum())
        with pytest.raises(TypeError) as error:
            fn(leaf())
        said.append(str(error.value))
        assert fn(leaf().detach()).item() > 0  # where nothing is saved nobody looks
    assert said[0] == said[1]
