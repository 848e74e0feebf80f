"""A tensor that torch saved for a backward, and that is written to before it: torch's error in compiled code too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu
EDITED = "one of the variables needed for gradient computation has been modified by an inplace operation"


def result(x, w):
    y = x.exp()
    z = y.sum()
    y.add_(1)
    return z, y


def argument(x, w):
    y = (w * x).sum()
    w.add_(1)
    return y


def in_place_result(x, w):
    y = x * 2
    y.exp_()
    y.mul_(3)
    return y.sin_()


def through_a_view(x, w):
    y = x.sin()
    v = y[1]
    z = v * v
    y.mul_(2)
    return z


def of_a_detached(x, w):
    y = x.exp()
    y.detach().zero_()
    return y * 2


def library(x, w):
    y = x * 2
    z = torch.nn.functional.linear(y, x.view(1, -1))
    y.add_(1)
    return z


def twice(x, w):
    y = x * 3
    y.mul_(2)
    z = y * y
    y.add_(1)
    return z


def with_itself(x, w):
    """The first argument is copied for the backward, the second is not."""
    y = x * 2
    y.mul_(y)
    return y


REFUSED = [result, argument, in_place_result, through_a_view, of_a_detached, library, twice, with_itself]


def not_saved(x, w):
    y = x * 2
    z = y.sum() + y.relu()
    y.add_(1)
    return z, y


def in_place_itself(x, w):
    y = x * 2
    y.mul_(w)
    y.exp_()
    return y * 2


def added_to_itself(x, w):
    y = x * 2
    y.add_(y)
    return y.exp()


def other_operand(x, w):
    y = x * 2
    z = y * w
    y[0] = 1
    return z


def other_branch(x, w):
    y = x.exp()
    z = y.sum()
    y.add_(1)
    return x * 2, z.detach(), y.detach()


def constant_edited(x, w):
    w.add_(1)
    return x * w


ALLOWED = [not_saved, in_place_itself, added_to_itself, other_operand, other_branch, constant_edited]


def backward(fn: Callable[..., Any]) -> tuple[torch.Tensor | None, str]:
    """The gradient, or the words of the error."""
    torch.manual_seed(0)
    x, w = torch.randn(4, requires_grad=True), torch.randn(4)
    made = fn(x, w)
    first = made[0] if isinstance(made, tuple) else made
    try:
        first.sum().backward()
    except RuntimeError as error:
        return None, str(error)
    return x.grad, ""


@pytest.mark.parametrize("backend", ["cpp", "aot_eager", "eager"])
@pytest.mark.parametrize("fn", [*REFUSED, *ALLOWED], ids=lambda f: f.__name__)
def test_edited_inside(fn: Callable[..., Any], backend: str) -> None:
    (mine, said), (theirs, wanted) = backward(tinycompile.compile(fn, fullgraph=True, backend=backend)), backward(fn)
    assert said.startswith(EDITED) == wanted.startswith(EDITED) == (fn in REFUSED), (said, wanted)
    if theirs is not None:
        torch.testing.assert_close(mine, theirs)


def test_only_where_the_gradient_flows() -> None:
    compiled = tinycompile.compile(result, fullgraph=True)
    x = torch.randn(4, requires_grad=True)
    z, y = compiled(x, x.detach())
    torch.testing.assert_close(torch.autograd.grad(z, z)[0], torch.ones(()))
    with pytest.raises(RuntimeError, match=EDITED):
        z.backward()
