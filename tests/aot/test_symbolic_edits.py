"""What torch would save is asked in the backward, too, when the sizes are symbols and no capture is going on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile

pytestmark = [pytest.mark.cpu, pytest.mark.parametrize("backend", ["aot_eager", "cpp"])]

T = torch.Tensor


def _behind_a_break(x: T) -> T | None:
    y = x * 1
    tinycompile.graph_break()
    y.neg_()
    (y * y * x).sum().backward()
    return x.grad


def _part_of_it(x: T) -> T | None:
    y = x * 1
    y[:1].expand(1, 4).sin_()
    tinycompile.graph_break()
    (y * y * x).sum().backward()
    return x.grad


def _by_a_mask(x: T) -> T | None:
    y = x * 1
    y[y > 0] = 0.0
    (y * y * x).sum().backward()
    return x.grad


@pytest.mark.parametrize("fn", [_behind_a_break, _part_of_it, _by_a_mask])
def test_a_write_before_a_backward(fn: Callable[[T], T | None], backend: str) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    for size in (4, 5, 6):
        given = torch.randn(size, 4, dtype=torch.float64)
        mine, theirs = (given.clone().requires_grad_() for _ in range(2))
        got, want = compiled(mine), fn(theirs)
        assert got is not None and want is not None
        torch.testing.assert_close(got, want)


def test_a_slice_that_moves_is_written(backend: str) -> None:
    def f(x: T, i: int, n: int) -> T:
        y = x.clone()
        y[i : i + n] = 1
        y.sum().backward()
        assert x.grad is not None
        return x.grad.clone()

    compiled = tinycompile.compile(f, backend=backend)
    for i, n in ((0, 2), (1, 2), (2, 3)):
        mine, theirs = (torch.ones(7, requires_grad=True) for _ in range(2))
        assert torch.equal(compiled(mine, i, n), f(theirs, i, n))
