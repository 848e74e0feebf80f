"""What the caller writes to after the call: results that share memory, results that torch saved, parts of a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.aot.attach import attach
from tinycompile.base.errors import KernelError

pytestmark = pytest.mark.cpu


def whole_and_view(x):
    y = x * 2
    return y, y.view(3, 1)


def whole_and_part(x):
    y = x.exp()
    return y, y[0]


def two_parts(x):
    y = x * 2
    return y[0:1], y[1:]


def view_and_other(x):
    y = x * 2
    return y.view(3, 1), x.sin()


def lone_view(x):
    return ((x * 2)[1:],)


def of_several(x):
    y = x * 2
    return y, y.unbind()[0]


def of_the_input(x):
    return x, x[1:], x.view(3, 1)


def written_inside(x):
    y = x * 2
    part = y[1:]
    part.mul_(3)
    return y, part


def constants(x):
    i = torch.arange(4)
    return x * 2, i, i[1:]


def plain_views(x):
    other = torch.arange(4.0)
    return x * 2, other[1:], x.detach()[1:]


def saved(x):
    return (x.exp(),)


def saved_below(x):
    return (((x * x).relu()).view(3, 1),)


def saved_for_another(x):
    y = x.softmax(0)
    return y.relu(), y


def not_saved(x):
    return ((x * 2) + 1, x.exp().sum())


FUNCTIONS = [
    whole_and_view, whole_and_part, two_parts, view_and_other, lone_view, of_several, of_the_input, written_inside, constants,
    plain_views, saved, saved_below, saved_for_another, not_saved,
]  # fmt: skip


def first_edited(made: tuple[torch.Tensor, ...]) -> None:
    made[0].add_(1)
    made[0].sum().backward()


def last_edited(made: tuple[torch.Tensor, ...]) -> None:
    made[-1].mul_(2)
    made[0].sum().backward()


def last_zeroed(made: tuple[torch.Tensor, ...]) -> None:
    made[-1].zero_()
    (made[0].sum() + made[-1].sum()).backward()


def item_set(made: tuple[torch.Tensor, ...]) -> None:
    made[0].view(-1)[0] = 7
    made[0].sum().backward()


def outcome(fn: Callable[..., Any], edit: Callable[[Any], None], leaf: bool) -> tuple[Any, str]:
    start = torch.arange(3.0).requires_grad_()
    made = fn(start if leaf else start * 1)
    try:
        edit(made)
    except RuntimeError as error:
        return None, str(error)[:60]
    return [*(t.data for t in made), *(torch.tensor(t.requires_grad) for t in made), start.grad], ""


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "inner"])
@pytest.mark.parametrize("edit", [first_edited, last_edited, last_zeroed, item_set], ids=lambda f: f.__name__)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_in_eager(fn: Callable[..., Any], edit: Callable[[Any], None], leaf: bool) -> None:
    (mine, said), (theirs, wanted) = outcome(tinycompile.compile(fn, fullgraph=True), edit, leaf), outcome(fn, edit, leaf)
    assert said == wanted
    torch.testing.assert_close(mine, theirs)


def test_a_result_may_die_before_the_backward() -> None:
    x = torch.arange(3.0).requires_grad_()
    y = tinycompile.compile(saved, fullgraph=True)(x)[0]
    total = (y * 2).sum()
    del y
    total.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())


def test_a_kernel_that_refuses_its_input_in_a_backward_is_run_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refusing(*given: Any) -> Any:
        calls.append(given)
        raise KernelError("kernel grad_x_kernel: an index is out of range")

    def attached(split: Any, forward: Any, backward: Any, *rest: Any) -> Any:
        return attach(split, forward, replace(backward, call=refusing), *rest)

    monkeypatch.setattr("tinycompile.training.attach", attached)
    x = torch.arange(3.0).requires_grad_()
    tinycompile.compile(lambda x: (x.sin() * x).sum(), fullgraph=True)(x).backward()
    assert len(calls) == 1
    torch.testing.assert_close(x.grad, torch.cos(x.detach()) * x.detach() + torch.sin(x.detach()))
