"""What is written in place was read before and behind the reduction that it takes part in: a later pass still needs the old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tinycompile

pytestmark = pytest.mark.cpu


def rows(x, w):
    s = (x * w.T).sum(1, True)
    o = (x - s) * w.T
    w.T.add_(s)
    return o


def a_row_by_two_sums(x, w):
    s = x.sum(1, True)
    t = (x * s).sum(1, True)
    o = x * t
    x.sub_(s)
    return o


def columns(x, w):
    s = (x * w).sum(0)
    o = (x - s) * w
    w.add_(s)
    return o


def columns_by_two_sums(x, w):
    s = (x * w).sum(0)
    t = ((x - s) * w).sum(0)
    w.add_(s)
    return x * t * 2 + w * 0


def columns_and_a_number(x, w):
    o = (x - x.sum(0)) * w
    w.mul_(2)
    return o


def columns_of_a_table(x, w):
    s = x.sum(0)
    t = (x * s).sum(0)
    o = x * t
    x.sub_(s)
    return o


def normalised_columns(x, w):
    m = x.mean(0)
    v = ((x - m) ** 2).mean(0)
    o = (x - m) * torch.rsqrt(v + 1e-5) * w
    w.sub_(o.sum(0))
    return o


FUNCTIONS = [
    rows,
    a_row_by_two_sums,
    columns,
    columns_by_two_sums,
    columns_and_a_number,
    columns_of_a_table,
    normalised_columns,
]


@pytest.mark.parametrize("shape", [(4, 8), (9, 70), (300, 64)], ids=str)
@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_eager(fn: Callable[[Tensor, Tensor], Tensor], backend: str, shape: tuple[int, int]) -> None:
    x = torch.randint(-3, 4, shape).double()
    w = torch.randint(1, 4, (shape[1],) if fn is not rows else (1, shape[0])).double()
    theirs, ours = (x.clone(), w.clone()), (x.clone(), w.clone())
    torch.testing.assert_close(tinycompile.compile(fn, backend=backend, fullgraph=True)(*ours), fn(*theirs))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("make", [
    lambda: (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(16, 8)),
    lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)).to(memory_format=torch.channels_last),
        torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last),
    ),
], ids=["rows", "channels_last"])  # fmt: skip
def test_steps_with_batch_norm(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    """Its weight is read by the backward and written by the optimizer, in one graph."""
    found: list[Any] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, x = make()
        model, x = model.double(), x.double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x: Tensor, model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = tinycompile.compile(step) if compiled else step
        found.append(([run(x).detach() for _ in range(4)], [p.detach() for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0])
