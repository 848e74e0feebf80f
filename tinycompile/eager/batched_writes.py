"""Writes in place under vmap by functions that have no batching rule, and methods that make a tensor another view of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.dispatch.keys import Key
from tinycompile.eager import batched
from tinycompile.eager.batched import BatchedTensor, gradients_of_each, level_of, overwrite
from tinycompile.eager.batched_in_place import is_expanded, reads_where_it_writes, write_each
from tinycompile.eager.batching import Batch
from tinycompile.eager.inplace import VIEWS_IN_PLACE, check_writable, rebase
from tinycompile.eager.recording import edge_of
from tinycompile.eager.tape import AUTOGRAD, note_opaque_view, set_history
from tinycompile.eager.tensor import Tensor, from_torch, version_of
from tinycompile.ops.in_place import name_of

Function = Callable[..., Any]


def write(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``fn``, which writes to its first argument: on a copy of each example, which is then copied into the memory of all."""
    target, name = args[0], name_of(fn)
    if isinstance(target, torch.Tensor):
        target = from_torch(target)
    followed = Tensor.tape.follows(args, kwargs)
    if followed:
        check_writable(target)
    if name in VIEWS_IN_PLACE:
        return become(target, getattr(target, name[:-1])(*args[1:], **kwargs))
    if name in ("zero_", "fill_") and isinstance(target, BatchedTensor) and not level_of((args[1:], tuple(kwargs.values()))):
        getattr(target.value, name)(*args[1:], **kwargs)
        rebase(target, None)
        return target
    if target.keys & Key.TRACING.bit:
        raise RuntimeError(f"vmap: {name} writes in place and has no batching rule")
    batch = Batch(None, (*args, *kwargs.values()))
    own = batch.size is None or batch.has(target)
    reads = own and reads_where_it_writes((*args, *kwargs.values()))
    if not followed and (reads or (own and is_expanded(target))):
        write_each(fn, args, kwargs, batch)
        return target
    written = False

    def on_copy(first: Any, *rest: Any, **named: Any) -> Any:
        nonlocal written
        copy = first.clone()
        before = version_of(copy)
        fn(copy, *rest, **named)
        written |= version_of(copy) > before
        return copy

    on_copy.__name__ = name.strip("_")
    edge_of(target)  # a view's history is looked up anew after a write to its base
    before = target.copied() if followed and isinstance(target, BatchedTensor) else target  # the tape saves what it was
    result = gradients_of_each[0](on_copy, (before, *args[1:]), kwargs)
    if written and reads:
        write_each(fn, args, kwargs, batch)
    elif written:
        overwrite(target, result, name)
    return rebase(target, edge_of(result)) if written else target


def become(target: BatchedTensor, view: BatchedTensor) -> Tensor:
    """No element moves; from now on the tensor is this view of what it was. So is, as with torch, what vmap was called with,
    unless a tape follows that."""
    for other in [v for r in target._views or () if (v := r()) is not None and v is not view]:
        note_opaque_view(other, target)  # its way would no longer lead there
    edge = edge_of(view)
    _become(target, view)
    if target._view is not None:
        target._view = view._view
    return target if edge is None else set_history(target, *edge)


def _become(target: BatchedTensor, view: BatchedTensor) -> None:
    value: Any = target.value
    seen: Any = view.value
    if value.keys & AUTOGRAD and torch.is_grad_enabled():  # a tape of a level below
        check_writable(value)
    if isinstance(value, BatchedTensor):
        _become(value, seen)
    elif value.keys & (AUTOGRAD | Key.TRACING.bit) or value.lacks_handle:
        target.value = seen
    else:
        value.as_strided_(seen.shape, seen.stride(), seen.storage_offset())
    target._meta = view.meta


batched.write_each.append(write)
