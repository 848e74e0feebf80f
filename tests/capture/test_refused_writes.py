"""Writes that torch refuses: its error comes from the program's line, and what is visible then is what came before it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.cpu
LOG: list[str] = []


def alone(x, out):
    x.mul_(2)
    out.append("late")
    LOG.append("late")
    return x


def twice(x, out):
    x.mul_(2)
    x.add_(1)
    out.append("late")


def by_index(x, out):
    out.append("early")
    y = x * 2
    x[0] = 1
    out[0] = "late"
    return y


def behind_another(x, out):
    x.detach().add_(1)
    x.mul_(2)
    out.append("late")


def through_a_view(x, out):
    LOG.append("early")
    x.view(-1).mul_(2)
    out.append("late")


def behind_what_is_made(x, out, kept=[0]):  # noqa: B006
    kept[0] = made = torch.zeros(2)
    made.add_(1)
    x.mul_(2)
    kept[0] = None
    out.append("late")


def caught(x, out):
    w = torch.ones(2)
    try:
        x.mul_(2)
        out.append("inside")
    except RuntimeError as error:
        out.append(str(error))
    return w + len(out)


def caught_through_a_view(x, out):
    try:
        x.view(-1).mul_(2)
        out.append("inside")
    except RuntimeError as error:
        out.append(str(error))
    LOG.append("late")


def called(x, out):
    out.append("early")
    alone(x, out)


def other_values(x, out):
    y = torch.zeros(2)
    y.copy_(x)
    x.copy_(y * 3)
    out.append("late")


WRITES = [
    alone,
    twice,
    by_index,
    behind_another,
    through_a_view,
    behind_what_is_made,
    caught,
    caught_through_a_view,
    called,
    other_values,
]


def leaf() -> Tensor:
    return torch.arange(2.0).requires_grad_()


def leaf_that_is_a_view() -> Tensor:
    return torch.arange(6.0)[1:3].requires_grad_()


def leaf_of_all() -> Tensor:
    return torch.arange(2.0).view(2).requires_grad_()


def parameter_in_a_buffer() -> Tensor:
    return torch.nn.Parameter(torch.arange(6.0)[1:3])


def of_leaf() -> Tensor:
    return torch.arange(4.0).requires_grad_()[:2]


def of_view_of_leaf() -> Tensor:
    return of_leaf().view(-1)


def one_of_several() -> Tensor:
    return (torch.arange(4.0).requires_grad_() * 1).split(2)[0]


def made_under_no_grad() -> Tensor:
    base = torch.arange(4.0).requires_grad_() * 1
    with torch.no_grad():
        return base[:2]


def of_leaf_under_no_grad() -> Tensor:
    base = torch.arange(4.0).requires_grad_()
    with torch.no_grad():
        return base[:2]


def expanded() -> Tensor:
    return torch.ones(1).expand(2)


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(2)


def plain_view() -> Tensor:
    return (torch.arange(4.0).requires_grad_() * 1)[:2]


def detached() -> Tensor:
    return leaf().detach()


TENSORS = [
    leaf, leaf_that_is_a_view, leaf_of_all, parameter_in_a_buffer, of_leaf, of_view_of_leaf, one_of_several, made_under_no_grad, of_leaf_under_no_grad, expanded, inference, plain_view,
    detached,
]  # fmt: skip


def observed(fn: Callable[..., Any], x: Tensor) -> Any:
    LOG.clear()
    out: list[str] = []
    before = 0 if x.is_inference() else x._version
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: Any = fn(x, out)
    except RuntimeError as error:
        result = str(error), [f.lineno for f in traceback.extract_tb(error.__traceback__)[1:] if f.filename == __file__]
    if isinstance(result, Tensor):
        result = result.tolist(), result.requires_grad
    return result, out, list(LOG), x.tolist(), 0 if x.is_inference() else x._version - before


@pytest.mark.parametrize("backend", ["eager", None])
@pytest.mark.parametrize("fn", WRITES, ids=lambda fn: fn.__name__)
def test_only_what_came_before_a_refused_write_is_seen(fn: Callable[..., Any], backend: str | None) -> None:
    """One function for all tensors: what torch lets be written in one call and not in the next has code for each."""
    compiled = tinycompile.compile(fn, backend=backend)
    for make in (*TENSORS, *reversed(TENSORS)):
        assert observed(compiled, make()) == observed(fn, make()), make.__name__
