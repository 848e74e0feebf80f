"""A size plus a tuple, or the other way round, is a size again, also where one of both is empty."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


def joined(x):
    return [
        x.shape + (1,),
        (1,) + x.shape,
        x.shape + (),
        () + x.shape,
        x.shape + x.shape,
        x.shape[:0] + (2,),
        (2,) + x.shape[:0],
    ]


def in_place(x):
    left, right, none = x.shape, (3,), ()
    left += (2,)
    right += x.shape
    none += x.shape
    return left, right, none


def repeated(x):
    return x.shape * 2, 2 * x.shape, x.shape * 0, x.shape * 0 + (1,), torch.Size() + (1,), x.shape[:0]


def tuples_that_are_handed_back(x):
    t = (x.dim(), 2)
    return (t + ()) is t, (() + t) is t, (t + x.shape) is t, (x.shape + t) is t


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("fn", [joined, in_place, repeated, tuples_that_are_handed_back], ids=lambda fn: fn.__name__)
def test_type_and_items(fn: Any, shape: tuple[int, ...]) -> None:
    compiled = tinycompile.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        got, want = compiled(torch.zeros(shape)), fn(torch.zeros(shape))
        assert [(type(s), s) for s in got] == [(type(s), s) for s in want]


EMPTY_SIZES = {
    "sum_to_size": lambda x, s: x.sum_to_size(s),
    "view": lambda x, s: x.view(s),
    "reshape": lambda x, s: x.reshape(s),
    "expand": lambda x, s: x.expand(s),
    "broadcast_to": lambda x, s: x.broadcast_to(s),
    "repeat": lambda x, s: x.repeat(s),
    "permute": lambda x, s: x.permute(s),
    "tile": lambda x, s: x.tile(s),
    "flip": lambda x, s: x.flip(s),
    "new_zeros": lambda x, s: x.new_zeros(s),
    "zeros": lambda x, s: torch.zeros(s),
    "full": lambda x, s: torch.full(s, 2.0),
}


@pytest.mark.parametrize("size", [torch.Size(), (), []], ids=["size", "tuple", "list"])
@pytest.mark.parametrize("fn", EMPTY_SIZES.values(), ids=list(EMPTY_SIZES))
def test_a_size_of_nothing_is_a_size(fn: Any, size: Any) -> None:
    x = torch.tensor(3.0)
    got, want = tinycompile.compile(fn, backend="eager", fullgraph=True)(x, size), fn(x, size)
    assert torch.equal(got, want) and got.shape == want.shape == ()
