"""Writes by way of ``.data`` to what torch saved for a gradient. No version tells of them: torch raises no error, and computes the
gradient of what lies in memory then. So do programs that write so after the value was used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile
from tinycompile.base.errors import GraphBreakError

pytestmark = pytest.mark.cpu
BACKENDS = (None, "eager", "aot_eager")


def leaf(x, y):
    w = x.sin()
    x.data.zero_()
    return w


def other_factor(x, y):
    w = x * y
    y.data.mul_(2)
    return w


def own_result(x, y):
    w = x.exp()
    w.data.sigmoid_()
    return w


def through_a_view(x, y):
    w = x.exp() * y
    y[1:].data[0] = 5
    return w


def of_a_copy(x, y):
    h = x * 1
    w = h.sin() + h.view(-1).cos()
    h.view(1, -1).data.add_(1)
    return w


def item_by_item(x, y):
    w = x * y
    x.data[0] = 3
    x.data[1:] = y.data[1:]
    return w


def counted_behind(x, y):
    w = x * y
    y.data.mul_(2)
    with torch.no_grad():
        y.mul_(2)
    return w


def in_a_step(x, y):
    loss = (x * y).sum()
    y.data.mul_(2)
    loss.backward()
    return x.grad * 1


class Clamped(nn.Module):
    """Its weight is clamped when it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = self.inner(x).pow(2) * y
        self.inner.weight.data.clamp_(-0.1, 0.1)
        return made


PROGRAMS = [leaf, other_factor, own_result, through_a_view, of_a_copy, item_by_item, counted_behind, in_a_step]


def outcome(run: Callable[..., Any]) -> Any:
    x, y = (torch.arange(1, 4.0).div(n).requires_grad_() for n in (2, 3))
    try:
        made = run(x, y)
        if made.requires_grad:
            made.sum().backward()
    except RuntimeError as refused:
        return str(refused)
    return [made.detach(), x.detach(), y.detach(), x.grad, y.grad]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_of_what_lies_in_memory(program: Callable[..., Any], backend: str | None) -> None:
    expected, got = outcome(program), outcome(tinycompile.compile(program, backend=backend))
    if isinstance(expected, str):
        assert got == expected
    else:
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_is_clamped(backend: str | None) -> None:
    def gradients(wrap: Callable[[nn.Module], Any]) -> Any:
        torch.manual_seed(0)
        model = Clamped()
        found = outcome(wrap(model))
        return [*found, model.inner.weight.detach(), model.inner.weight.grad]

    compiled = gradients(lambda model: tinycompile.compile(model, backend=backend))
    torch.testing.assert_close(compiled, gradients(lambda model: model))


def before_its_use(x, y):
    x.data.clamp_(-1, 1)
    return x * y


def of_what_nobody_saved(x, y):
    w = x * 2 + y
    x.data.zero_()
    y.data.copy_(x.data)
    return w


def without_a_gradient(x, y):
    w = x.detach() * y.detach()
    x.data.zero_()
    return w + x.detach()


@pytest.mark.parametrize("program", [before_its_use, of_what_nobody_saved, without_a_gradient])
def test_other_writes_stay_in_the_graph(program: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(program, fullgraph=True)
    torch.testing.assert_close(outcome(compiled), outcome(program))
    assert len(compiled.graphs) == 1 and not compiled.breaks


def test_the_break_says_what_is_written_to() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    with pytest.raises(GraphBreakError, match="what w saves for its gradient is written to by way of .data"):
        tinycompile.compile(other_factor, fullgraph=True)(x, y)
    with torch.no_grad():
        torch.testing.assert_close(tinycompile.compile(other_factor, fullgraph=True)(x, y), torch.ones(3))
