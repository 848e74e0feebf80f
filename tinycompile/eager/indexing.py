"""``t[index]`` where the index is basic (ints, slices, None, one Ellipsis): a chain of view ops.

Masks and index tensors are torch's to handle, and under vmap the op ``index``'s.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base.expr import Expr
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key


def is_basic(index: Any) -> bool:
    """Whether the result is a view that :func:`basic_view` can make."""
    parts = index if isinstance(index, tuple) else (index,)
    return sum(part is ... for part in parts) <= 1 and all(
        part is None or part is ... or isinstance(part, (slice, Expr)) or type(part) is int for part in parts
    )


def plain_index(index: Any) -> Any:
    """The index with :func:`plain_number` for its parts. A tensor alone is one of several, in torch's errors."""
    if type(index) is tuple:
        return tuple(map(plain_number, index))
    number = plain_number(index)
    return (number,) if number is not index and getattr(index, "dtype", None) in _INTEGERS else number


def plain_number(value: Any) -> Any:
    """Python's integer for one of numpy's, and for a tensor of 0 dims that holds one; anything else as it is."""
    if type(value) is int or type(value) is bool:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    dtype = getattr(value, "dtype", None)
    holds_one = dtype in _INTEGERS and not len(value.shape) and not getattr(value, "keys", 0) & _WITHOUT_DATA
    return int(value) if holds_one else value


_INTEGERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
_WITHOUT_DATA = Key.META.bit | Key.BATCHED.bit | Key.TRACING.bit


def basic_view(tensor: Any, index: Any) -> Any:
    """The view that a basic index names, never ``tensor`` itself. Raises IndexError and ValueError as torch does."""
    if not isinstance(index, tuple) and not tensor.ndim:
        _refuse_scalar(index)
    result = tensor
    dim = 0  # of the result so far
    parts = index if isinstance(index, tuple) else (index,)
    skipped = _skipped(parts, tensor.ndim)
    for place, part in enumerate(parts):  # torch's errors name the place in the index as the dimension
        if part is ...:
            dim += skipped
            continue
        if part is None:
            result = dispatcher.call("unsqueeze", result, dim)
        elif isinstance(part, slice):
            result = _sliced(result, dim, part)
        else:
            _check_bounds(part, place, result.meta.shape[dim])
            result = dispatcher.call("select", result, dim, part)
            continue
        dim += 1
    return dispatcher.call("alias", result) if result is tensor else result


def basic_first(tensor: Any, parts: Sequence[Any], ranks: Sequence[int]) -> tuple[Any, tuple[Any, ...]]:
    """All parts of an index but its tensors applied, as torch does first: the view, and the rest as of :func:`split_index`."""
    basic, indices = split_index(tensor.ndim, parts, ranks)
    return basic_view(tensor, basic), indices


def split_index(rank: int, parts: Sequence[Any], ranks: Sequence[int]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The basic index that names a view, and an index tensor or None for each dim of that (None at the end is left out). A
    truth is a new dim, and stands in the place of its index tensor. ``rank``: of the tensor; ``ranks``: how many dims each
    part takes, 0 for None, truths and the Ellipsis."""
    rest = rank - sum(ranks)
    if rest < 0:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    basic: list[Any] = []
    indices: list[Any] = []
    for part, rank in zip(parts, ranks, strict=True):
        if part is ...:
            basic += [slice(None)] * rest
            indices += [None] * rest
        elif isinstance(part, bool):
            basic.append(None)
            indices.append(part)
        elif part is None or isinstance(part, (slice, int, Expr)):
            basic.append(part)
            indices += [None] if part is None or isinstance(part, slice) else []
        else:
            basic += [slice(None)] * rank
            indices.append(part)
    while indices and indices[-1] is None:
        indices.pop()
    return tuple(basic), tuple(indices)


def _refuse_scalar(index: Any) -> None:
    if isinstance(index, slice):
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    if isinstance(index, int) and index:
        raise IndexError(f"index {index} is out of bounds for dimension 0 with size 0")
    if isinstance(index, (int, Expr)):
        raise IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim "
            "tensor to a number"
        )


def _skipped(parts: Sequence[Any], rank: int) -> int:
    """How many dims an Ellipsis stands for."""
    named = sum(part is not None and part is not ... for part in parts)
    if named > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    return rank - named


def _sliced(tensor: Any, dim: int, part: slice) -> Any:
    start, stop, step = map(_bound, (part.start, part.stop, part.step))
    step = 1 if step is None else step
    if isinstance(step, int) and step <= 0:
        raise ValueError("slice step cannot be zero" if step == 0 else "step must be greater than zero")
    if start is None and stop is None and isinstance(step, int) and step == 1:
        return tensor
    return dispatcher.call("slice", tensor, dim, start, stop, step)


def _bound(value: Any) -> Any:
    """Whatever Python takes as an index: numpy's integers, tensors of one integer."""
    if value is None or isinstance(value, (int, Expr)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError("slice indices must be integers or None or have an __index__ method") from None


def _check_bounds(index: Any, place: int, size: Any) -> None:
    if isinstance(index, int) and isinstance(size, int) and not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {place} with size {size}")
