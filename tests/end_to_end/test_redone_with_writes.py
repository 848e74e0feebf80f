"""Functions that write to their arguments and meet a bad value: each write that came before the error happens once, none that
came after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def before_and_after(x, m, i):
    x.add_(1)
    y = torch.linalg.cholesky(m)
    x.mul_(2)
    return y


def only_after(x, m, i):
    y = torch.linalg.cholesky(m)
    x.add_(y.sum())
    return y


def part(x, m, i):
    x[0] = 7
    return torch.linalg.inv(m)


def read_before(x, m, i):
    y = x * 2
    x.add_(1)
    return torch.linalg.inv(m).sum() + y


def caught(x, m, i):
    x.add_(1)
    try:
        y = torch.linalg.inv(m)
    except RuntimeError:
        y = m + 5
    x.mul_(3)
    return y * 2


def bad_index(x, m, i):
    x.add_(1)
    y = m[i]
    x.mul_(2)
    return y


def divided(x, m, i):
    x.mul_(2)
    return torch.arange(2) // (i - i[1]) + 1


FUNCTIONS = [before_and_after, only_after, part, read_before, caught, bad_index, divided]


def outcome(fn: Callable[..., Any], bad: bool, with_gradient: bool) -> list[Any]:
    start = torch.arange(3.0).requires_grad_(with_gradient)
    x = start * 1 if with_gradient else start
    m = torch.zeros(3, 3) if bad else torch.eye(3)
    try:
        made = fn(x, m, torch.tensor([0, 9 if bad else 1]))
    except (RuntimeError, IndexError) as error:
        made = (type(error).__name__, str(error))
    return [made.tolist() if isinstance(made, torch.Tensor) else made, x.tolist(), x._version]


@pytest.mark.parametrize("backend", ["cpp", "aot_eager", "eager"])
@pytest.mark.parametrize("with_gradient", [False, True], ids=["plain", "gradient"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_each_write_happens_once(fn: Callable[..., Any], with_gradient: bool, backend: str) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    for bad in (False, True, True, False):
        assert str(outcome(compiled, bad, with_gradient)) == str(outcome(fn, bad, with_gradient))
