"""Writes to views of tensors that have gaps between their elements, and to views of such views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.pure


def a_row(x):
    x[1].add_(1)
    return x + 0


def a_row_of_a_slice(x):
    x[:, 1:][0].mul_(3)
    return x + 0


def a_slice_of_slices(x):
    x[:, 1:][:, ::2][1:].mul_(3)
    return x * 2


def a_diagonal(x):
    x.t()[1:].diagonal().add_(5)
    x[:, 1:3].diagonal().add_(5)
    return x + 0


def a_view_that_is_kept(x):
    y = x[:, 1:]
    y[0] = 7
    y[:, 2].mul_(2)
    return x + 0, y + 1


def read_and_written(x):
    x[..., 1:][..., 0] = x[..., 1]
    return x.sum()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda memory: memory[:64].view(8, 8),
    "gaps": lambda memory: memory.as_strided((8, 8), (20, 2)),
    "transposed": lambda memory: memory[:64].view(8, 8).t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fn", [a_row, a_row_of_a_slice, a_slice_of_slices, a_diagonal, a_view_that_is_kept, read_and_written])
def test_one_graph_does_what_eager_does(fn: Callable[[Tensor], object], layout: str) -> None:
    """Results, the memory written to and the gaps in it."""
    theirs, ours = torch.arange(160.0), torch.arange(160.0)
    want = fn(LAYOUTS[layout](theirs))
    got = tinycompile.compile(fn, fullgraph=True, backend="eager")(LAYOUTS[layout](ours))
    torch.testing.assert_close(got, want)
    assert torch.equal(ours, theirs)
