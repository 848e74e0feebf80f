"""``x[index]`` and ``x[index] = value`` under vmap, where the index holds tensors, lists or masks: the ops ``index`` and
``index_put``, which have batching rules."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.eager import batched
from tinycompile.eager.batched import BatchedTensor, write_view
from tinycompile.eager.indexing import basic_first, is_basic
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.calls import cast, ops

_DYNAMIC = (
    "vmap: We do not support batching operators that can support dynamic shape. Attempting to batch over indexing with a "
    "boolean mask."
)


def read(x: Any, index: Any) -> Any:
    """``x[index]``."""
    view, indices = _resolved(x, index)
    return ops.index(view, indices)


def write(target: Any, index: Any, value: Any) -> None:
    """``target[index] = value``."""
    if is_basic(index):
        write_view(target[index], value)
        return
    if _is_mask(index) and not (_is_tensor(value) and len(value.shape)):  # no size depends on the mask
        mask = index
        for _ in range(len(target.shape) - len(mask.shape)):
            mask = ops.unsqueeze(mask, -1)
        target.copy_(ops.where(mask, _as_tensor(value, target), target))
        return
    view, indices = _resolved(target, index)
    given = _as_tensor(value, target)
    while len(given.shape) > len(ops.index(view, indices).shape) and given.shape[0] == 1:
        given = ops.select(given, 0, 0)
    view.copy_(ops.index_put(view, indices, given, False))


batched.EXTERN_RULES[torch.Tensor.__getitem__] = read
batched.EXTERN_RULES[torch.Tensor.__setitem__] = write
batched.write_item.append(write)


def _resolved(x: Any, index: Any) -> tuple[Any, tuple[Any, ...]]:
    """The view that the plain parts name, and the index tensors for its dims; a mask as the indices of what is True."""
    parts = [p for part in (index if isinstance(index, tuple) else (index,)) for p in _parts(part, x)]
    ranks = [0 if p is None or p is ... else 1 for p in parts]
    return basic_first(x, parts, ranks)


def _parts(part: Any, x: Any) -> list[Any]:
    if part is None or part is ... or isinstance(part, slice) or type(part) is int:
        return [part]
    if not _is_tensor(part):
        part = torch.tensor(part, device=x.device.torch())
    if not _is_mask(part):
        return [from_torch(part) if isinstance(part, torch.Tensor) else part]
    while isinstance(part, BatchedTensor):
        if part.batched:
            raise RuntimeError(_DYNAMIC)
        part = part.value
    raw = part.raw() if isinstance(part, Tensor) else part
    return [from_torch(at) for at in raw.nonzero(as_tuple=True)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, torch.Tensor))


def _is_mask(value: Any) -> bool:
    return _is_tensor(value) and value.dtype in (torch.bool, torch.uint8)


def _as_tensor(value: Any, like: Any) -> Any:
    """A number as a tensor; either in the dtype of what is written."""
    if _is_tensor(value):
        return cast(from_torch(value) if isinstance(value, torch.Tensor) else value, like.dtype)
    return ops.full((), value, dtype=like.dtype, device=like.device)
