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


def compare(base: str, place: Any, write: Callable[[Any, Any], Any]) -> None:
    values = torch.arange(24, dtype=torch.float64) / 8
    assert outcome(tc.from_torch(values.clone()), BASES[base], place, write) == outcome(
        values.clone(), BASES[base], place, write
    )


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("base", BASES)
def test_as_torchs(base: str, write: str) -> None:
    """Elements in the gaps of the tensor, or beyond it, are its base's."""
    for place in PLACES:
        compare(base, place, WRITES[write])
    for place in OVERLAPPING:
        if write not in ("to the view", "both"):  # of a write to memory that is there twice torch promises nothing
            compare(base, place, WRITES[write])


# What is done to the base, to what is viewed and to the view; then the first two are asked for, or the last.
ACTS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda b, v: None,
    "mul_": lambda b, v: v.mul_(3),
    "mul_ of what is viewed": lambda b, v: b.mul_(3),
    "copy_": lambda b, v: v.copy_(v * 0 + 7),
    "zero_": lambda b, v: v.zero_(),
}
BEYOND = [((4,), (1,), 0), ((2, 2), (6, 1), 0), ((3,), (2,), 18), ((4,), (1,), 10), ((2, 3), (12, 1), 0), ((2,), (1,), 3)]


@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("base", BASES)
def test_beyond_the_tensors_own_elements(base: str, act: str, no_grad: bool, leaf: bool) -> None:
    """With gradients and without: what is made in ``no_grad`` is a leaf."""

    def made(x: Any, place: Any) -> Any:
        y = x.requires_grad_() if leaf else x.requires_grad_() * 1
        with torch.set_grad_enabled(not no_grad):
            b = BASES[base](y)
            v = b.as_strided(*place)
            ACTS[act](b, v)
        found = [v.tolist(), y.tolist(), v.requires_grad, v.is_leaf, v.stride(), v.storage_offset()]
        ((y * y * y).sum() + (0 if no_grad else (v * v).sum() + (b * b).sum())).backward()
        return [*found, x.grad.tolist()]

    def outcome(x: Any, place: Any) -> Any:
        try:
            return made(x, place)
        except RuntimeError as error:
            return str(error)

    for place in BEYOND:
        values = torch.arange(24, dtype=torch.float64) / 8
        assert outcome(tc.from_torch(values.clone()), place) == outcome(values.clone(), place)


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
    y = tc.from_torch(torch.zeros(12)[::2])
    v = y.as_strided((2,), (1,))
    with pytest.raises(NotImplementedError, match="through as_strided"):
        v.copy_(x[:2])
    y.mul_(x)
    with pytest.raises(NotImplementedError, match="through as_strided"):
        v * 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", tc.errors.FallbackWarning)  # one view of all examples
        assert tc.vmap(lambda a: a.as_strided((2,), (1,)) * 2)(tc.ones(2, 3)).tolist() == [[2, 2], [2, 2]]
