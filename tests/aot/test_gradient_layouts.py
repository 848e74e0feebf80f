"""Strides of gradients are torch's, on our tape and compiled: those that torch.autograd.grad gives, and a leaf's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


# By name: a function, and the shape of its argument.
PROGRAMS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "sum": (lambda x: x.sum(0), (4, 3)),
    "mean": (lambda x: x.mean(1), (4, 3)),
    "mean of all": (lambda x: x.mean(), (4, 3)),
    "left of mm": (lambda x: x @ ones(3, 2), (4, 3)),
    "right of mm": (lambda x: ones(2, 4) @ x, (4, 3)),
    "turned left": (lambda x: x.t() @ ones(4, 2), (4, 3)),
    "turned right": (lambda x: ones(2, 3) @ x.t(), (4, 3)),
    "a row, turned": (lambda x: x.t() @ ones(1, 2), (1, 3)),
    "left of a batch": (lambda x: x @ ones(3, 5), (2, 4, 3)),
    "right of a batch": (lambda x: ones(2, 4, 3) @ x, (3, 5)),
    "bmm": (lambda x: torch.bmm(x, ones(2, 3, 5)), (2, 4, 3)),
    "input of linear": (lambda x: F.linear(x, ones(5, 3)), (4, 3)),
    "weight of linear": (lambda x: F.linear(ones(2, 3), x), (5, 3)),
    "weight of linear, with a bias": (lambda x: F.linear(ones(2, 3), x, ones(5)), (5, 3)),
    "weight of linear, of a batch": (lambda x: F.linear(ones(7, 2, 3), x), (5, 3)),
    "addmm": (lambda x: torch.addmm(ones(3), ones(4, 2), x), (2, 3)),
    "softmax": (lambda x: x.softmax(1), (4, 3)),
    "a row of a matrix": (lambda x: x[0] * 2, (4, 3)),
    "broadcast": (lambda x: x + ones(4, 3), (1, 3)),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda t: t,
    "columns": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "gaps": lambda t: torch.stack([t, t], -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape),
}


def strides(fn: Any, leaf: Any, grad: Any) -> tuple[Any, ...]:
    """Of the gradient, and of a leaf's. The gradient that comes in is laid out as the result."""
    result = fn(leaf)
    (found,) = grad(result, leaf, torch.ones_like(result.detach()), retain_graph=True)
    result.backward(torch.ones_like(result.detach()))
    return tuple(found.stride()), tuple(leaf.grad.stride())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_torch(name: str, layout: str) -> None:
    fn, shape = PROGRAMS[name]
    torch.manual_seed(0)
    values = LAYOUTS[layout](torch.randn(shape))
    expected = strides(fn, values.detach().requires_grad_(), torch.autograd.grad)
    assert strides(tinycompile.compile(fn), values.detach().requires_grad_(), torch.autograd.grad) == expected
    ours = tinycompile.from_torch(values.detach()).requires_grad_()
    assert strides(fn, ours, tinycompile.autograd.grad) == expected


def test_a_leafs_gradient_ignores_strides_of_dims_of_one() -> None:
    for leaf in (torch.randn(1, 3).requires_grad_(), tinycompile.from_torch(torch.randn(1, 3)).requires_grad_()):
        leaf.t().backward(torch.ones(3, 1) if isinstance(leaf, torch.Tensor) else tinycompile.ones(3, 1))
        assert leaf.grad is not None and tuple(leaf.grad.stride()) == (1, 1)


def test_gradients_of_means_may_be_written_to() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(tinycompile.compile(lambda x: x.mean(1).sum())(x), x)
    torch.testing.assert_close(grad.mul_(3), torch.ones(4, 3))
