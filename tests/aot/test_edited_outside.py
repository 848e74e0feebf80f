"""Edits between a compiled forward and its backward: an error where torch raises one; else torch's gradient, or an error where
compiled code saved something else than torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.cpu
EDITED = "one of the variables needed for gradient computation has been modified by an inplace operation"


def saves_results_only(x, w):
    return (x.exp() * w.exp(),)


def saves_a_sum(x, w):
    return (F.gelu(x + w),)


def saves_a_cast(x, w):
    h = x.to(torch.float64)
    return ((h * torch.rsqrt(h.pow(2).mean() + 1)).to(x.dtype) + w,)


def saves_a_mask(x, w):
    return (torch.where(x * 2 > w + 1, x, x * 3),)


def saves_inputs(x, w):
    return (x * w,)


def saves_a_view(x, w):
    return (x.view(2, 2) @ w.view(2, 2),)


def both(x, w):
    return x.exp(), w.exp() * x


def a_result_on_the_way(x, w):
    h = x + w
    return h, (h * 2).sin()


def a_view_on_the_way(x, w):
    h = x + w
    return h.view(2, 2), (h.view(2, 2) * 2).sin()


def logits_and_loss(x, w):
    logits = x * w
    return logits, F.cross_entropy(logits[None], torch.tensor([1]))


def untouched(x, w):
    return x * 2, w.sum() + x


FUNCTIONS = [
    saves_results_only, saves_a_sum, saves_a_cast, saves_a_mask, saves_inputs, saves_a_view, both, a_result_on_the_way,
    a_view_on_the_way, logits_and_loss, untouched,
]  # fmt: skip


def edit_x(x: torch.Tensor, w: torch.Tensor, made: Any) -> None:
    x.mul_(3)


def edit_w(x: torch.Tensor, w: torch.Tensor, made: Any) -> None:
    w[0] = 5


def edit_first(x: torch.Tensor, w: torch.Tensor, made: Any) -> None:
    made[0].mul_(3)


def edit_last(x: torch.Tensor, w: torch.Tensor, made: Any) -> None:
    made[-1].add_(3)


EDITS = [edit_x, edit_w, edit_first, edit_last]


def outcome(fn: Callable[..., Any], edit: Callable[..., None], at: int, leaf: bool) -> Any:
    """The gradients, or the words of the error."""
    x, w = (torch.linspace(0.5, 2, 4).requires_grad_(), torch.linspace(1, 3, 4).requires_grad_())
    given = (x, w) if leaf else (x * 1, w * 1)
    made = fn(*given)
    with torch.no_grad():
        edit(*given, made)
    try:
        made[at].sum().backward()
    except RuntimeError as error:
        return str(error)[: len(EDITED)]
    return x.grad, w.grad


@pytest.mark.parametrize("leaf", [True, False], ids=["leaves", "inner"])
@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_eager(fn: Callable[..., Any], edit: Callable[..., None], leaf: bool) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True)
    for at in range(len(fn(torch.ones(4), torch.ones(4)))):
        mine, theirs = outcome(compiled, edit, at, leaf), outcome(fn, edit, at, leaf)
        if mine == EDITED:
            continue  # compiled code may have saved what torch only computes with: an error, never a wrong number
        assert type(mine) is type(theirs), (at, mine, theirs)
        torch.testing.assert_close(mine, theirs) if isinstance(mine, tuple) else None


def test_what_only_compiled_code_saves_is_no_copy() -> None:
    """An edit of it is refused, so that no step pays for a copy in case there is one."""
    assert isinstance(outcome(saves_results_only, edit_x, 0, True), tuple)
    assert outcome(tinycompile.compile(saves_results_only, fullgraph=True), edit_x, 0, True) == EDITED


# --- inputs that the function writes to, which have a history behind it --------------------------------------------------


def result_in_place(x, w):
    return (x.exp_() * 2,)


def read_behind(x, w):
    x.copy_(w.exp())
    return (x.sin(),)


def product_in_place(x, w):
    return (x.mul_(w) * w,)


def part_in_place(x, w):
    x[1:].exp_()
    return (x * 2,)


def nothing_saved(x, w):
    return (x.mul_(3) + w,)


WRITING = [result_in_place, read_behind, product_in_place, part_in_place, nothing_saved]


@pytest.mark.parametrize("of_x", [True, False], ids=["x", "result"])
@pytest.mark.parametrize("fn", WRITING, ids=lambda f: f.__name__)
def test_what_the_function_wrote_is_edited(fn: Callable[..., Any], of_x: bool) -> None:
    found = []
    for call in (tinycompile.compile(fn, fullgraph=True), fn):
        v, w = torch.linspace(0.5, 2, 4).requires_grad_(), torch.linspace(1, 3, 4).requires_grad_()
        x = v * 1
        made = call(x, w)
        x.add_(1)
        try:
            (x if of_x else made[0]).sum().backward()
        except RuntimeError as error:
            found.append(str(error)[: len(EDITED)])
        else:
            found.append([v.grad, w.grad])
    assert type(found[0]) is type(found[1]), found
    torch.testing.assert_close(*found) if isinstance(found[0], list) else None


def edited_itself(y: torch.Tensor) -> None:
    with torch.no_grad():
        y.add_(1)


def edited_through_a_view(y: torch.Tensor) -> torch.Tensor:
    part = y[1:]
    with torch.no_grad():
        part.add_(1)
    return part


def edited_detached(y: torch.Tensor) -> None:
    y.detach().add_(1)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("edit", [edited_itself, edited_through_a_view, edited_detached])
def test_a_result_that_is_gone(edit: Any, backend: Any) -> None:
    """Ours need not have kept it; torch did."""

    def on_the_way(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = x * w
        return h * h, h, x * 2

    def said(fn: Any) -> str:
        x, w = (torch.rand(4).requires_grad_() for _ in range(2))
        kept = [*fn(x, w)]
        rest = edit(kept.pop(1))
        kept.pop().sum().backward(retain_graph=True)  # this one needs nothing of it
        with pytest.raises(RuntimeError) as told:
            kept.pop().sum().backward()
        del rest
        return str(told.value)

    assert said(tinycompile.compile(on_the_way, backend=backend)) == said(on_the_way)
