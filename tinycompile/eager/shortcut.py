"""The short way of small calls: straight to torch's own function where nothing else would run.

A call's whole way is: which record is meant (``ops/table.py``), its key set and what that chooses (``dispatcher``), the kernel.
Most of it comes out the same for every call of a function with arguments of the same types. So it is remembered by these, and
a call whose key set the dispatcher knows to end in torch (:func:`~tinycompile.dispatch.dispatcher.leaves`) is made at once; one
that the tape follows leaves its node behind it. Whatever is special takes the whole way, and so does an error, to be worded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tinycompile.base.torch_private import any_autocast
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key
from tinycompile.dispatch.local_keys import LOCAL
from tinycompile.ops import table
from tinycompile.ops.gradients import CUT
from tinycompile.ops.record import BoundCall, Op

_AUTOGRAD = Key.AUTOGRAD.bit
_SIMPLE = frozenset((int, float, bool, torch.dtype, type(None)))


class Known(NamedTuple):
    """What calls with arguments of these types mean: the op, its further arguments, and the key sets that end in torch.
    ``has_node``: the tape follows the op by its own formula. ``reads``: what that reads (``saved.py``), by which arguments need
    gradients."""

    leaves: set[int]
    op: Op
    rest: tuple[Any, ...]
    has_node: bool
    reads: dict[tuple[Any, ...], Any]


Ends = dict[tuple[Any, ...], "Known | None"]

on_tape: list[Callable[..., Any]] = []
"""``on_tape[0](known, fn, args, raws)``: the call and its node. Set by ``recording.py``, which stands above this file."""


def short_call(ends: Ends, key: tuple[Any, ...], fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of ``fn``, as ours; None where the whole way must be taken."""
    known = ends.get(key)
    if known is None:
        return None
    mask = 0
    raws = []
    for arg in args:
        if type(arg) not in _SIMPLE:
            mask |= arg.keys
            arg = arg._handle
            if arg is None:
                return None
        raws.append(arg)
    if mask not in known.leaves or LOCAL.changed or any_autocast():
        return None
    try:
        if mask & _AUTOGRAD and torch.is_grad_enabled():
            return on_tape[0](known, fn, args, raws) if mask & ~_AUTOGRAD in known.leaves else None
        return sibling(fn(*raws), args, raws)
    except RuntimeError:
        return None


def sibling(result: Any, args: Sequence[Any], raws: Sequence[Any]) -> Any:
    """torch's result as ours, on the device of the first argument; None if it is one of the arguments, or no single tensor."""
    if type(result) is not torch.Tensor:
        return None
    for raw in raws:
        if raw is result:
            return None
    return args[0]._sibling(result)


def learn(ends: Ends, key: tuple[Any, ...], bound: BoundCall | None, fn: Callable[..., Any], args: Sequence[Any]) -> None:
    """After the whole way was found for a call: note what such calls mean, if the types of the arguments alone decide it."""
    if key in ends:
        return
    kind = type(args[0])
    fixed = bound is not None and not bound.inplace and bound.out is None and table.names_one_op(fn)
    if not fixed or not hasattr(args[0], "_handle") or not all(type(a) is kind or type(a) in _SIMPLE for a in args):
        ends[key] = None
        return
    assert bound is not None
    op, count = bound.op, len(args)
    same = len(bound.args) >= count and all(a is b for a, b in zip(args, bound.args, strict=False))
    if not same or [r.type for r in op.schema.returns] != ["Tensor"]:
        ends[key] = None
        return
    has_node = op.vjp is not None and op.name not in CUT
    ends[key] = Known(dispatcher.leaves(op.name), op, bound.args[count:], has_node, {})
