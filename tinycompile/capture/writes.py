"""Writes in place, made functional: the tensor object, and all that view the same memory, take over new values.

What came from outside is written when the graph ends: ``effects.py``. Where torch would refuse the write, or where its result
depends on the order in which memory is read and written, the graph breaks and eager decides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.base.torch_private import refuses_writes
from tinycompile.capture.breaks import GraphBreak, NotRebuildable
from tinycompile.capture.overlaps import Region, may_overlap
from tinycompile.capture.torch_calls import call_method, tensors_in
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.views import are_known, is_data, line_of, overlaps_itself, placed, put_back, requires_grad_alone
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key
from tinycompile.eager.batched import BatchedTensor
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.tensor import Tensor
from tinycompile.ops.meta_rules import may_overlap_itself, type_name

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def write(
    tr: Tracer, target: TensorValue, compute: Callable[[], Value], operands: Sequence[Value] = (), counted: bool = True
) -> Value:
    """``target`` takes over the value that ``compute`` records, cast and checked as an in-place op would. ``operands``: what
    the op reads. ``counted``: torch's version counters tell of it."""
    line = list(line_of(target))
    _check_memory(tr, line, operands)
    if counted and _is_tracked(tr, line, any(t.requires_grad for t in tensors_in(tr, operands))):
        _check_refused(tr, line)  # torch does so before it looks at what is written
    nodes = len(tr.builder.nodes)
    value = _computed(tr, target, compute)
    own = frozenset(itertools.islice(tr.builder.nodes, nodes, None))
    _check_history(tr, line, value)
    _commit(tr, line, line, value, own, _is_tracked(tr, line, value.requires_grad), counted)
    return target


def write_itself(tr: Tracer, target: TensorValue) -> None:
    """``x[0] = x[0]``: the values stay, but torch checks the write, and counts it: what was saved before is edited by it."""
    line = list(line_of(target))
    root = line[-1]
    _check_memory(tr, line, ())
    _check_history(tr, line, target)
    changed, value, own = list[TensorValue](), target, frozenset[str]()
    if tr.root_grad_enabled and any(t.obj.requires_grad for t, _ in tr.given.values()):  # else nothing is saved
        changed, nodes = [root], len(tr.builder.nodes)
        made = call_method(tr, root, "clone", [], {})
        assert isinstance(made, TensorValue)
        value, own = made, frozenset(itertools.islice(tr.builder.nodes, nodes, None))
    _commit(tr, line, changed, value, own, _is_tracked(tr, line, target.requires_grad))


def _commit(
    tr: Tracer,
    line: Sequence[TensorValue],
    changed: Sequence[TensorValue],
    value: TensorValue,
    by: frozenset[str],
    tracked: bool,
    counted: bool = True,
) -> None:
    """``changed``, the end of the line, takes over a value that the nodes ``by`` computed, and torch counts a write."""
    root = line[-1]
    version = root.memory.version
    if root.memory.outside:
        tr.effects.write(tr, root, tracked=tracked)
    root.memory.version += counted and not is_data(line[0])
    if not changed:
        return
    tr.effects.note_edit(line, by, version, tracked, len(tr.builder.nodes))
    _take_over(tr, changed, value)
    root.memory.contents = [value.fake, *(t.fake for t in changed)]
    if tracked and root.memory.followed is None:
        root.memory.followed = root.memory.writes


def _is_tracked(tr: Tracer, line: Sequence[TensorValue], with_grad: bool) -> bool:
    """Whether the write becomes a part of the tensor's history: what was cut off from one has none but the value's.
    ``with_grad``: that requires grad."""
    own = any(t.view is not None and t.view.cut and t.view.origin != "no_grad" for t in line)
    return tr.grad_enabled and (with_grad or (line[-1].requires_grad and not own))


# --- what is refused -----------------------------------------------------------------------------------------------------


def _check_memory(tr: Tracer, line: Sequence[TensorValue], operands: Sequence[Value]) -> None:
    target, root = line[0], line[-1]
    if tr.grad_enabled and requires_grad_alone(target):
        raise GraphBreak("input-mutation", f"{target.describe()}, a view that torch lets nobody write to, is written in place")
    if root.memory.lent:
        what = f"{target.describe()} is written in place, and it is an argument under tinycompile.func"
        raise GraphBreak("input-mutation", what)
    if root.memory.outside and not _may_be_written(root):
        raise GraphBreak("input-mutation", f"{root.describe()} is written in place, and it exists outside the graph")
    if any(t is not root and (t.view is None or not are_known(t.view.steps)) for t in root.memory.members):
        raise GraphBreak("input-mutation", f"{target.describe()} is written in place, and others share its memory")
    if any(t.view is not None and overlaps_itself(t.view.steps) for t in line):
        raise GraphBreak("input-mutation", f"{target.describe()} is written in place, and its elements overlap")
    here = None
    for other in tensors_in(tr, operands):
        if other.memory is target.memory and other is not target:
            here = here or _region(target)
            there = _region(other)
            if there != here and may_overlap(here, there):
                what = f"{target.describe()} is written in place with what is in the same memory"
                raise GraphBreak("input-mutation", what)


def _region(t: TensorValue) -> Region:
    """Where a tensor lies in the memory of its owner."""
    meta = placed(t)
    shapes.pin_symbols((meta.offset, *meta.shape, *meta.strides))
    offset, *rest = (shapes.hint(d) for d in (meta.offset, *meta.shape, *meta.strides))
    return Region(offset, tuple(rest[: meta.rank]), tuple(rest[meta.rank :]))


def is_same_place(a: TensorValue, b: TensorValue) -> bool:
    """Whether two tensors are the same elements of one memory."""
    if a.memory is not b.memory or a.meta.dtype != b.meta.dtype:
        return False
    lines = list(line_of(a)), list(line_of(b))
    if not all(t.view is None or are_known(t.view.steps) for line in lines for t in line):
        return a is b
    return lines[0][-1] is lines[1][-1] and _region(a) == _region(b)


def _may_be_written(root: TensorValue) -> bool:
    """Whether a tensor from outside can take over its new data after the graph."""
    plain = root.is_input and root.source is not None and root.cls in (torch.Tensor, torch.nn.Parameter)
    return plain and not may_overlap_itself(root.meta)


def _check_history(tr: Tracer, line: Sequence[TensorValue], value: TensorValue) -> None:
    """Whether the value can become a part of the tensor's history."""
    if levels(value.fake) - levels(line[0].fake):
        raise GraphBreak(
            "input-mutation", f"{line[0].describe()} is one for all examples, and each writes its own values to it"
        )
    if not _is_tracked(tr, line, value.requires_grad):
        return
    _check_refused(tr, line)
    if value.requires_grad and any(t.view is not None and t.view.cut for t in line):
        what = f"{line[0].describe()}, which is cut off from what it views, is written with a value that requires grad"
        raise GraphBreak("input-mutation", what)


def _check_refused(tr: Tracer, line: Sequence[TensorValue]) -> None:
    """Leaves that require grad, and views that torch keeps no history for, can't be written to where gradients are followed."""
    root = line[-1]
    if root.is_input and root.source is not None:
        refused, asked = refuses_writes(root.obj), tr.guards.hold(refuses_writes, "refuses_writes").name
        tr.guards.check(f"{asked}({root.source.text}) is {refused}", f"torch refuses writes to {root.source.label}: {refused}")
        if refused:
            what = "a leaf that requires grad, or a view that torch lets nobody write to,"
            text = f"{root.describe()}, {what} is written in place"
            # (torch's error tells how a view was made: then all of the frame is plain Python's)
            raise GraphBreak("input-mutation", text) if line[0] is root else NotRebuildable(line[0], text, "input-mutation")
        tr.guards.check(f"{root.source.text}.is_leaf is {root.obj.is_leaf}", f"{root.source.label}.is_leaf")
    if any(t.view is not None and t.view.origin in ("no_grad", "several") for t in line):
        raise GraphBreak("input-mutation", f"{line[0].describe()}, a view that torch lets nobody write to, is written in place")


def levels(fake: Tensor) -> set[int]:
    """The levels of vmap at which a value differs from example to example."""
    found = set[int]()
    while isinstance(fake, BatchedTensor):
        found |= {fake.level} if fake.batched else set()
        fake = fake.value
    return found


# --- the new values ------------------------------------------------------------------------------------------------------


def _computed(tr: Tracer, target: TensorValue, compute: Callable[[], Value]) -> TensorValue:
    before = target.meta
    with local_keys.exclude(Key.AUTOCAST):  # what writes in place has no policy
        value = compute()
    assert isinstance(value, TensorValue)
    if value.meta.shape != before.shape and not shapes.same_shape(value.meta.shape, before.shape):
        raise RuntimeError(f"output with shape {list(before.shape)} doesn't match the broadcast shape {list(value.meta.shape)}")
    return _fresh(_cast_back(tr, value, before))


def _take_over(tr: Tracer, line: Sequence[TensorValue], value: TensorValue) -> None:
    """New values from the tensor up to the owner of the memory."""
    root = line[-1]
    cut = not tr.grad_enabled or any(t.view is not None and t.view.cut for t in line)
    silent = cut and root.requires_grad and tr.root_grad_enabled
    grad = tr.grad_enabled and value.requires_grad
    part, made = value.fake, list[FakeTensor]()
    for t in line:
        made.append(part if part.meta.strides == t.meta.strides else dispatcher.call("restride", part, t.meta.strides))
        if t.view is not None:  # not the one with the view's strides, which may leave gaps
            part = put_back(t.view.steps, t.view.base.fake, part)
    if silent:  # new data under the same history
        made[-1] = dispatcher.call("with_data", root.fake, dispatcher.call("detach", made[-1]))
    flags = [t.requires_grad or grad for t in line]
    root.memory.writes += 1
    for t, fake, flag in zip(line, made, flags, strict=True):
        if t is root or not silent:  # the others look their values up again
            t.become(fake, flag)


def _fresh(value: TensorValue) -> TensorValue:
    """The result of a view op shares memory with its source: it needs a copy before it can be another tensor's data."""
    if len(value.memory.members) > 1:
        return TensorValue(dispatcher.call("clone", value.fake), value.cls, value.requires_grad)
    return value


def _cast_back(tr: Tracer, value: TensorValue, before: TensorMeta) -> TensorValue:
    if value.meta.dtype == before.dtype:
        return value
    if not torch.can_cast(value.meta.dtype, before.dtype):
        shown = type_name(value.meta.dtype), type_name(before.dtype)
        raise RuntimeError(f"result type {shown[0]} can't be cast to the desired output type {shown[1]}")
    made = call_method(tr, value, "to", [Const(before.dtype)], {})
    assert isinstance(made, TensorValue)
    return made
