"""``x[index]`` and ``x[index] = value`` under vmap, where the index holds tensors, lists or masks: the ops ``index`` and
``index_put``, which have batching rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.eager import batched
from tinycompile.eager.batched import BatchedTensor, write_view
from tinycompile.eager.indexing import basic_first, is_basic, plain_index
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.calls import ops

_DYNAMIC = (
    "vmap: We do not support batching operators that can support dynamic shape. Attempting to batch over indexing with a "
    "boolean mask."
)


def read(x: Any, index: Any) -> Any:
    """``x[index]``."""
    view, indices = _resolved(x, index)
    return ops.index(view, indices) if indices else view


def write(target: Any, index: Any, value: Any) -> None:
    """``target[index] = value``."""
    try:
        _write(target, index, value)
    except Exception as error:
        Tensor._reworded(error, torch.Tensor.__setitem__, (target, index, value), {})
        raise


def _write(target: Any, index: Any, value: Any) -> None:
    index = plain_index(index)
    if is_basic(index):
        write_view(target[index], _as_tensor(value, target))
        return
    if _is_mask(index) and not (_is_tensor(value) and len(value.shape)):  # no size depends on the mask
        mask = index
        _check_mask(mask, target, 0)
        if _is_tensor(value) and value.dtype != target.dtype:
            torch.empty(2, dtype=target.dtype)[torch.ones(2, dtype=torch.bool)] = torch.empty(2, dtype=value.dtype)  # raises
        for _ in range(len(target.shape) - len(mask.shape)):
            mask = ops.unsqueeze(mask, -1)
        target.masked_fill_(ops.ne(mask, 0) if mask.dtype is torch.uint8 else mask, _as_tensor(value, target))
        return
    view, indices = _resolved(target, index)
    if not indices:
        write_view(view, _as_tensor(value, target))
        return
    shape = ops.index(view, indices).shape
    given = _as_tensor(value, target)
    while len(given.shape) > len(shape) and given.shape[0] == 1:
        given = given[0]
    if any(i is None for i in indices):
        view, indices, given = _in_front(view, indices, given.expand(tuple(shape)))
    view.index_put_(indices, given)


batched.EXTERN_RULES[torch.Tensor.__getitem__] = read
batched.EXTERN_RULES[torch.Tensor.__setitem__] = write
batched.write_item.append(write)


def _in_front(x: Any, indices: Sequence[Any], value: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """``x[indices] = value``, of the shape that is written to, with the dims that have indices first."""
    places = [p for p, i in enumerate(indices) if i is not None]
    given = tuple(indices[p] for p in places)
    rank = max(len(i.shape) for i in given)
    together = places == list(range(places[0], places[-1] + 1))
    if together:
        value = ops.movedim(value, tuple(range(places[0], places[0] + rank)), tuple(range(rank)))
    rest = [d for d in range(len(x.shape)) if d not in places]
    return ops.permute(x, (*places, *rest)), given, value


def _resolved(x: Any, index: Any) -> tuple[Any, tuple[Any, ...]]:
    """The view that the plain parts name, and the index tensors for its dims; a mask as the indices of what is True."""
    parts = [_part(p, x) for p in (index if _lists_parts(index) else (index,))]
    view, rest = basic_first(x, parts, [_rank(p) for p in parts])
    indices: list[Any] = []
    for part in rest:
        if isinstance(part, bool):  # the dim that a truth adds has one place, or none
            indices.append(ops.full((int(part),), 0, dtype=torch.int64, device=x.device))
        else:
            indices += _where_true(part, view, len(indices)) if _is_mask(part) else [part]
    return view, tuple(indices)


def _lists_parts(index: Any) -> bool:
    """Whether each item is an index: of a tuple, and as in torch of a short list of anything but numbers."""
    if isinstance(index, tuple):
        return True
    kinds = (slice, type(None), type(...), Sequence, Tensor, torch.Tensor)
    return isinstance(index, list) and len(index) < _SHORT and any(isinstance(item, kinds) for item in index)


_SHORT = 32


def _part(part: Any, x: Any) -> Any:
    """None, the Ellipsis, a slice, a number, a truth, or an index tensor of ours."""
    if part is None or part is ... or isinstance(part, (slice, int)):
        return part
    if not _is_tensor(part):
        if isinstance(part, str) or not hasattr(part, "__len__"):
            torch.zeros([1] * len(x.shape))[part]  # raises
        nothing = isinstance(part, Sequence) and not part
        part = torch.tensor(part, device=x.device.torch(), dtype=torch.int64 if nothing else None)
    part = from_torch(part) if isinstance(part, torch.Tensor) else part
    return part if len(part.shape) or not _is_mask(part) else bool(_same_for_all(part))


def _rank(part: Any) -> int:
    """How many dims it takes."""
    if part is None or part is ... or isinstance(part, bool):
        return 0
    return len(part.shape) if _is_mask(part) else 1


def _where_true(mask: Any, x: Any, dim: int) -> list[Any]:
    """A mask over the dims from ``dim`` on as index tensors."""
    _check_mask(mask, x, dim)
    return [from_torch(at) for at in _same_for_all(mask).nonzero(as_tuple=True)]


def _check_mask(mask: Any, x: Any, dim: int) -> None:
    if dim + len(mask.shape) > len(x.shape):
        raise IndexError(f"too many indices for tensor of dimension {len(x.shape)}")
    for i, size in enumerate(mask.shape):
        if size != x.shape[dim + i]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {i} does not match the shape of the indexed tensor "
                f"{list(x.shape)} at index {dim + i}"
            )


def _same_for_all(mask: Any) -> Any:
    """The torch tensor of a mask that no example has of its own."""
    while isinstance(mask, BatchedTensor):
        if mask.batched:
            raise RuntimeError(_DYNAMIC)
        mask = mask.value
    return mask.raw()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, torch.Tensor))


def _is_mask(value: Any) -> bool:
    return _is_tensor(value) and value.dtype in (torch.bool, torch.uint8)


def _as_tensor(value: Any, like: Any) -> Any:
    """A number as a tensor of the dtype of what is written."""
    if _is_tensor(value):
        return from_torch(value) if isinstance(value, torch.Tensor) else value
    return ops.full((), value, dtype=like.dtype, device=like.device)
