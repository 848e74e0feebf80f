"""Writes in place under vmap by ops with a record, off the tape of their level.

What such a write reads may lie in the memory that it writes to. What it finds there, and whether it is refused, depends on
where torch's own write runs: on all examples at once, or on one after the other. So do ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.base import shapes, torch_private
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key
from tinycompile.eager import batched
from tinycompile.eager.batched import BatchedTensor, example_of, has_memory, mapped, refuse_shared
from tinycompile.eager.batching import Batch, is_aligned, rank_of, rule_of
from tinycompile.eager.tensor import Tensor
from tinycompile.eager.write_checks import expanded
from tinycompile.ops.in_place import name_of
from tinycompile.ops.record import OPS, BoundCall, Op

Function = Callable[..., Any]


def write_record(bound: BoundCall, fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The write itself. NotImplemented: nothing is read where it writes to, so its result may as well be computed first."""
    op, target = bound.op, bound.args[0]
    batch, rank = Batch(op, bound.args), rank_of(*bound.args)
    if batch.size is not None and not batch.has(target):
        refuse_shared(name_of(fn))
    if op.name == "fill" and batch.has(bound.args[1]):  # each example's own number
        op, fn, args, kwargs = OPS["copy"], torch.Tensor.copy_, bound.args, {}
    together = len(dispatcher.tensors_in(bound.args)) == 1 or _runs_together(op, bound.args)
    with local_keys.exclude(Key.AUTOCAST):
        if together and is_aligned(op):
            _call(fn, *mapped((tuple(args), dict(kwargs)), lambda t: batch.aligned(t, rank)))
        elif not reads_where_it_writes(bound.args, apart=is_aligned(op)) and not is_expanded(target):
            return NotImplemented
        elif together and op.name in _RULES_WRITE:
            batch.write = _in_place(op)
            rule_of(op)(batch, *bound.args)
        else:
            write_each(fn, args, kwargs, batch)
    return target


def reads_where_it_writes(args: Sequence[Any], apart: bool = False) -> bool:
    """Whether a call that writes to its first argument may read that memory too. ``apart``: to do so element by element, each
    in its own place, is not meant."""
    target, *others = args[0], *dispatcher.tensors_in(args[1:])
    return any(_meet(target, t) and not (apart and _is_at(target, t)) for t in others)


def is_expanded(target: Any) -> bool:
    """Whether several elements of an example are one: whether they may be written to depends on the function."""
    return isinstance(target, Tensor) and has_memory(target) and expanded(target)


def write_each(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any], batch: Batch) -> None:
    """The write to one example after the other."""
    for i in range(1 if batch.size is None else batch.size):
        _call(fn, *mapped((tuple(args), dict(kwargs)), lambda t: example_of(t, batch.level, i)))  # noqa: B023


def _call(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return Tensor.__torch_function__(fn, (), args, kwargs)


_RULES_WRITE = frozenset(("index_add", "index_put", "scatter_add"))
"""Ops whose rules write to all examples at once if they are given a write for the call that they end in."""


def _in_place(op: Op) -> Function:
    """The op's method that writes, for arguments in schema order."""
    fn = getattr(torch.Tensor, f"{op.name}_")
    count = op.schema.positional

    def write(args: tuple[Any, ...]) -> Any:
        return _call(fn, args[:count], dict(zip((a.name for a in op.schema.args[count:]), args[count:], strict=True)))

    return write


def _runs_together(op: Op, args: Sequence[Any]) -> bool:
    """Whether torch's vmap has a rule for the write of tensors: without one it writes to one example after the other."""
    if op.name in ("masked_fill", "pow") and hasattr(args[-1], "dtype"):  # of numbers alone
        return False
    return f"{op.name}_" in torch_private.ops_with_kernel("FuncTorchBatched")


# --- one memory --------------------------------------------------------------------------------------------------------------


def _meet(a: Any, b: Any) -> bool:
    """Whether an example of the one may have an element in common with an example of the other."""
    if not (isinstance(b, Tensor) and has_memory(a) and has_memory(b)) or a.storage is not b.storage:
        return False
    if not _alike(a, b):
        return True
    (begin, end), (start, stop) = _extent(a), _extent(b)
    return bool(begin < stop and start < end)


def _is_at(a: Any, b: Any) -> bool:
    """Whether the examples are the same elements."""
    same = a.meta.shape == b.meta.shape and a.meta.strides == b.meta.strides and a.meta.offset == b.meta.offset
    return bool(same) and _alike(a, b)


def _alike(a: Any, b: Any) -> bool:
    """Whether both are examples of the same vmaps, an example as far from the next in both, or neither is of any."""
    while isinstance(a, BatchedTensor) and isinstance(b, BatchedTensor):
        if (a.level, a.batched) != (b.level, b.batched):
            return False
        if a.batched and a.value.stride(0) != b.value.stride(0):
            return False
        a, b = a.value, b.value
    return not isinstance(a, BatchedTensor) and not isinstance(b, BatchedTensor) and a.dtype == b.dtype


def _extent(t: Any) -> tuple[int, int]:
    begin: Any = t.meta.offset
    return begin, begin + shapes.reach(t.meta.shape, t.meta.strides)


batched.write_below.append(write_record)
