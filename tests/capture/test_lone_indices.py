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


def _written_after(x: T, i: T) -> Any:
    v = x[i]
    v.mul_(2)
    return x


def _zeroed(x: T, i: T) -> Any:
    x[i].zero_()
    x[i, :1].add_(3)
    return x


def _by_a_helper(x: T, i: T) -> Any:
    def write(v: T) -> None:
        v += 1

    write(x[i])
    return x


def _behind_a_break(x: T, i: T) -> Any:
    v, w = x[i], x[:, i][1:]
    tinycompile.graph_break()
    v.mul_(2)
    w.add_(1)
    return x, v, w


def _returned(x: T, i: T) -> Any:
    y = x * 1
    return y, y[i], x[i], x[i][1:]


def _number_changes(x: T, i: T) -> Any:
    i = i * 1
    v = x[i]
    i.mul_(0)
    return v, x[i]


def _held_in_a_list(x: T, i: T) -> Any:
    views = [x[i], x[0]]
    views[0].mul_(2)
    views.append(x[i] + 1)
    return views


def _without_gradients(x: T, i: T) -> Any:
    with torch.no_grad():
        v = x[i]
    return v


WRITING = (
    _written_after,
    _zeroed,
    _by_a_helper,
    _behind_a_break,
    _returned,
    _number_changes,
    _held_in_a_list,
    _without_gradients,
    _through,
    _through_a_view,
    _behind,
    _of_a_copy,
    _copy_behind,
    _augmented,
    _after_a_write,
)


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


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_what_is_returned_is_a_view(dtype: torch.dtype) -> None:
    f = tinycompile.compile(lambda x, i: (x[i], x[:, i][1:], (x * 2)[i]), backend="aot_eager", fullgraph=True)
    for at in (1, -1):
        x = torch.arange(12.0).reshape(3, 4).clone()
        row, column, own = f(x, torch.tensor(at, dtype=dtype))
        assert row._base is x and column._base is x and own._base is not None
        row.mul_(5)
        column.add_(1)
        theirs = torch.arange(12.0).reshape(3, 4)
        theirs[at].mul_(5)
        theirs[1:, at].add_(1)
        assert torch.equal(x, theirs)


def test_gradients_reach_what_is_indexed() -> None:
    def f(x: T, i: T) -> tuple[T, T]:
        y = x * 2
        return y[i], x[i] * 3

    compiled = tinycompile.compile(f, backend="aot_eager")
    grads = []
    for g in (compiled, f):
        x = torch.ones(3, 4, requires_grad=True)
        a, b = g(x, torch.tensor(1))
        (a.sum() + b.sum()).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
