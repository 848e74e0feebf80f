"""Views by ``as_strided`` on our tape: gradients and writes go through them as through torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure

# Name -> from 24 numbers to what is viewed.
BASES: dict[str, Callable[[Any], Any]] = {
    "flat": lambda y: y,
    "by rows": lambda y: y.view(4, 6),
    "by columns": lambda y: y.view(4, 6).t(),
    "permuted": lambda y: y.view(2, 3, 4).permute(2, 0, 1),
    "its middle": lambda y: y.view(4, 6)[1:3],
    "every second": lambda y: y.view(4, 6)[:, ::2],
}
# Sizes, strides, offset (None: the tensor's own).
PLACES: list[tuple[tuple[int, ...], tuple[int, ...], int | None]] = [
    ((), (), 7),
    ((3,), (1,), None),
    ((3,), (2,), 6),
    ((2, 3), (3, 1), None),
    ((3, 2), (1, 3), 7),
    ((2, 1, 2), (4, 9, 2), 6),
    ((2, 2, 2), (1, 2, 4), 7),
    ((1, 1), (0, 0), 6),
]
OVERLAPPING: list[tuple[tuple[int, ...], tuple[int, ...], int | None]] = [
    ((3, 2), (1, 1), 6),
    ((3,), (0,), 7),
    ((2, 0, 3), (1, 1, 1), 3),
]
# Name -> what is done to the base and the view.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda y, v: None,
    "to the view": lambda y, v: v.mul_(3).add_(v.sum()),
    "to the base": lambda y, v: y.mul_(3),
    "a fill": lambda y, v: y.zero_(),
    "both": lambda y, v: (y.mul_(2), v.mul_(y.sum())),
}


def outcome(x: Any, base: Callable[[Any], Any], place: Any, write: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    x.requires_grad_()
    y = base(x * 1)
    v = y.as_strided(*place)
    write(y, v)
    ((v * v).sum() + (y * y).sum()).backward()
    return tuple(v.shape), tuple(v.stride()), v.storage_offset(), v.tolist(), y.tolist(), x.grad.tolist()


def compare(base: str, place: Any, write: Callable[[Any, Any], Any], may_refuse: bool) -> None:
    values = torch.arange(24, dtype=torch.float64) / 8
    want = outcome(values.clone(), BASES[base], place, write)
    try:
        got = outcome(tc.from_torch(values.clone()), BASES[base], place, write)
    except NotImplementedError as error:
        assert may_refuse and "through as_strided" in str(error)
        return
    assert got == want


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("base", BASES)
def test_as_torchs(base: str, write: str) -> None:
    """What has gaps has no chain, and what lies beyond the tensor neither: writes there are refused, never lost."""
    for place in PLACES:
        beyond = base in ("every second", "its middle")
        compare(base, place, WRITES[write], may_refuse=beyond and write != "nothing")
    for place in OVERLAPPING:
        if write not in ("to the view", "both"):  # of a write to memory that is there twice torch promises nothing
            compare(base, place, WRITES[write], may_refuse=base == "every second" or base == "its middle")


def test_values_that_the_tape_follows_from_then_on() -> None:
    """A write into a view of what had no gradient; leaves, and views made without gradients, are not written to."""
    x = tc.ones(3).requires_grad_()
    y = tc.zeros(2, 3)
    y.as_strided((3,), (2,)).copy_(x * 2)
    y.sum().backward()
    assert y.requires_grad and x.grad.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x.as_strided((2,), (1,)).mul_(2)
    z = x * 1
    with torch.no_grad():
        view = z.as_strided((2,), (1,))
    assert view.requires_grad and view.is_leaf
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        view.mul_(2)


def test_writes_without_a_chain_are_refused() -> None:
    x = tc.ones(6).requires_grad_()
    y = tc.zeros(6)
    v = y[::2].as_strided((2,), (1,))
    with pytest.raises(NotImplementedError, match="through as_strided"):
        v.copy_(x[:2])
    y.mul_(x)
    with pytest.raises(NotImplementedError, match="through as_strided"):
        v * 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", tc.errors.FallbackWarning)  # one view of all examples
        assert tc.vmap(lambda a: a.as_strided((2,), (1,)) * 2)(tc.ones(2, 3)).tolist() == [[2, 2], [2, 2]]
