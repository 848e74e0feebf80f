"""In anomaly mode a compiled function names what eager does: the op and the forward line of a gradient that is NaN."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.cpu
STATISTICS = torch.nn.BatchNorm1d(2)


def root(x: Tensor) -> Tensor:
    return x.sqrt()


def of_a_line(x: Tensor) -> Tensor:
    y = x * 2
    z = root(y * 0)
    return (z * 0).sum()


def that_reaches_no_leaf(x: Tensor) -> Tensor:
    y = x * 1
    h = (y - 1).sqrt()
    return torch.where(y > 5, h * 0, y).sum()


def behind_a_buffer(x: Tensor) -> Tensor:
    h = STATISTICS(x.view(2, 2))
    return (h - h).log().sum() * 0


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 0 / (x - x)


def of_a_function(x: Tensor) -> Tensor:
    return Wrong.apply(x).sum()


def found(fn: Callable[[Tensor], Tensor]) -> tuple[str, str, str]:
    """The error of a backward, what the warning calls the node, and the innermost line of this file that it shows."""
    with warnings.catch_warnings(record=True) as noted, torch.autograd.detect_anomaly():
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError) as caught:
            fn(torch.ones(4, requires_grad=True)).backward()
    (told,) = (str(w.message) for w in noted if "Traceback of forward call" in str(w.message))
    lines = told.splitlines()
    return str(caught.value), lines[0], [line for line in lines if __file__ in line][-1]


@pytest.mark.parametrize("warm", (False, True))
@pytest.mark.parametrize("fn", (of_a_line, that_reaches_no_leaf, behind_a_buffer, of_a_function), ids=lambda f: f.__name__)
def test_as_eager(fn: Callable[[Tensor], Tensor], warm: bool) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True, backend="aot_eager")
    if warm:
        compiled(torch.ones(4, requires_grad=True))
    assert found(compiled) == found(fn)


def test_gradients_and_statistics_are_as_without() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = norm(x) * w
        return h.exp(), h.detach()

    results = []
    for mode in (False, True):
        norm = torch.nn.BatchNorm1d(3).double()
        compiled = tinycompile.compile(f, fullgraph=True)
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(mode):
            warnings.simplefilter("ignore")
            draw = torch.Generator().manual_seed(0)
            x, w = (torch.randn(4, 3, dtype=torch.float64, generator=draw).requires_grad_() for _ in range(2))
            a, b = compiled(x, w)
            a.sum().backward()
        results.append([a.detach(), b, x.grad, w.grad, norm.running_mean, norm.running_var, norm.num_batches_tracked])
    torch.testing.assert_close(*results)
