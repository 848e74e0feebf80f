"""An index that is a tensor of one integer names a view: writes through it, and to what it is of, are seen on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

T = torch.Tensor


def _through(x: T, i: T) -> Any:
    y = x[i]
    y.add_(1)
    return x * 1


def _through_a_view(x: T, i: T) -> Any:
    y = x[i][1:]
    y.mul_(2)
    return x * 1, y * 1


def _behind(x: T, i: T) -> Any:
    y = x[i]
    x.add_(1)
    return y * 1


def _of_a_copy(x: T, i: T) -> Any:
    z = x * 2
    y = z[i]
    y.zero_()
    return z * 1


def _copy_behind(x: T, i: T) -> Any:
    z = x * 2
    y = z[:, i]
    z[0] = 7
    return y + 1, z


def _augmented(x: T, i: T) -> Any:
    x[i] += 1
    x[i, 0] *= 3
    return x * 1


def _after_a_write(x: T, i: T) -> Any:
    x.add_(1)
    return x[i] * 2


WRITING = (_through, _through_a_view, _behind, _of_a_copy, _copy_behind, _augmented, _after_a_write)


@pytest.mark.parametrize("fn", WRITING)
def test_writes_are_seen_on_both_sides(fn: Callable[[T, T], Any]) -> None:
    f = tinycompile.compile(fn, backend="aot_eager")
    for at in (1, -1):
        mine, theirs = (torch.arange(12.0).reshape(3, 4) for _ in range(2))
        torch.testing.assert_close(f(mine, torch.tensor(at)), fn(theirs, torch.tensor(at)))
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("fn", [lambda x, i: x[i] * 2, lambda x, i: x[:, i] + x[i, 0], _after_a_write])
def test_reading_takes_no_break(fn: Callable[[T, T], Any]) -> None:
    f = tinycompile.compile(fn, backend="aot_eager", fullgraph=True)
    x = torch.arange(9.0).reshape(3, 3)
    torch.testing.assert_close(f(x.clone(), torch.tensor(2)), fn(x.clone(), torch.tensor(2)))
