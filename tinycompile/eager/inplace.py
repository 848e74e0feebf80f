"""Writes in place under the tape: ``add_``, ``copy_``, ``x[i] = y``. Their checks and wordings are torch's.

The write itself is torch's on the shared memory, which counts versions. The history is that of the functional op: a tensor
that is written to becomes its result; a base whose view is written to becomes the result of :class:`CopySlices`, and all its
views look their history up anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key
from tinycompile.eager.batched import BatchedTensor, level_of, mapped, overwrite, write_view
from tinycompile.eager.batched_in_place import reads_where_it_writes, write_record
from tinycompile.eager.hooks import laid_out
from tinycompile.eager.in_parts import in_parts
from tinycompile.eager.indexing import basic_view, is_basic
from tinycompile.eager.kept import behind_result, keeper
from tinycompile.eager.overlapping import keeping_one_gradient, overlaps
from tinycompile.eager.recording import OPAQUE, call_torch, edge_of, refresh, refusal
from tinycompile.eager.saved import OpNode, reads_of
from tinycompile.eager.tape import (
    AUTOGRAD,
    AutogradMeta,
    Edge,
    Node,
    ViewInfo,
    edges_of,
    generation_of,
    renew_history,
    set_history,
    tape_of,
)
from tinycompile.eager.tensor import Tensor, run_on_handles, same_memory
from tinycompile.eager.torch_names import THROUGH_A_VIEW
from tinycompile.eager.torch_words import REFUSED_VIEWS
from tinycompile.eager.write_checks import expanded, refuse_expanded
from tinycompile.ops.calls import ops
from tinycompile.ops.gradients import differentiable_form
from tinycompile.ops.in_place import name_of
from tinycompile.ops.record import OPS, BoundCall, Decompose, Extern, Op


def write(bound: BoundCall, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run ``fn``, which writes into its first argument, and record it."""
    name = getattr(fn, "__name__", bound.op.name)
    if bound.out is not None:
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
            "requires grad."
        )
    target, op = bound.args[0], bound.op
    if not isinstance(target, Tensor):
        return write_to_torchs(fn, args, kwargs)
    if op.name in _KEEP_HISTORY:
        if level_of(bound.args):
            return write_record(bound, fn, args, kwargs)
        _run(bound, fn, args, kwargs)
        return target
    check_writable(target)
    with keeping_one_gradient(target):
        return _write(bound, fn, args, kwargs)


def _write(bound: BoundCall, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    target, op = bound.args[0], bound.op
    if level_of(bound.args):
        with local_keys.exclude(Key.AUTOCAST):
            result = dispatcher.call_bound(op.name, (_copy_of(target), *bound.args[1:]))
        if reads_where_it_writes(bound.args) and write_record(bound, fn, args, kwargs) is not NotImplemented:
            return rebase(target, edge_of(result))
        return replace(target, result)
    if target.dtype.is_complex or op.name in _REFUSED:
        return call(fn, args, kwargs)
    if op.vjp is not None:
        needs, edges = edges_of(bound.args, edge_of)
        before = (_copy_of(target), *bound.args[1:]) if _reads_target(op, needs) else bound.args
        node = OpNode(reads_of(op, needs), before, edges)
        _run(bound, fn, args, kwargs)
        node.close((target,))
        edge = Edge(node, 0) if any(e is not None for e in edges) else None
        return rebase(target, behind_result(edge, target) if op.name in _KEEP_RESULT else edge)
    form = differentiable_form(op)
    before = (_copy_of(target), *bound.args[1:])  # what the parts save is not to be written to
    result = NotImplemented if form is None else in_parts(op, form, before)
    if result is NotImplemented and (isinstance(op.lowering, (Extern, Decompose)) or target.dtype.is_floating_point):
        return call(fn, args, kwargs)
    kept = None if result is NotImplemented else keeper(op, before, (result,), edge_of)
    if result is not NotImplemented and not _is_written_as_it_goes(bound.args):
        replace(target, result)
    else:
        _run(bound, fn, args, kwargs)
        rebase(target, None if result is NotImplemented else edge_of(result))  # of integers there is nothing to follow
    if kept is not None:
        kept.close((target,))
    return target


def _is_written_as_it_goes(args: Sequence[Any]) -> bool:
    """Whether a write into the first argument leaves something else there than its result, which was computed apart."""
    return reads_where_it_writes(args) or (not level_of(args) and overlaps(args[0]))


_KEEP_HISTORY = frozenset(("logical_and", "logical_not", "logical_or", "logical_xor"))
"""Records to whose gradients torch gives no thought: written in place, also to leaves, they let them through."""


_REFUSED = frozenset(("acosh", "asinh", "atanh"))  # torch has no derivative of these in place, and says so in the backward


_KEEP_RESULT = frozenset(("celu", "elu", "leaky_relu", "selu"))
"""Records of which torch's formula reads, in place, the result instead of the input."""


def write_to_torchs(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A write into a torch tensor of what our tape follows: torch's tape records it, and goes on in ours.

    Raises RuntimeError for examples of a vmap and on registered devices, for neither is there a tensor of torch's."""
    given = (*args, *kwargs.values())
    if level_of(given) or any(getattr(t, "lacks_handle", False) for t in dispatcher.tensors_in(given)):
        name = getattr(fn, "__name__", "write")
        raise RuntimeError(f"{name}: our tape can't follow a write into a torch tensor; wrap it by from_torch first")
    return fn(*_as_torchs(tuple(args)), **_as_torchs(dict(kwargs)))


def _as_torchs(value: Any) -> Any:
    return mapped(value, lambda t: t.torch() if isinstance(t, Tensor) else t)


def _run(bound: BoundCall, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The write itself."""
    if bound.args[0].lacks_handle:
        with torch.no_grad():
            Tensor.elsewhere.write(bound, fn, args, kwargs)
    else:
        run_on_handles(fn, args, kwargs)


def _run_as_it_is(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The same of a function without a record, or of a view in place."""
    with torch.no_grad():
        if args[0].lacks_handle:
            Tensor.elsewhere.call(fn, args, kwargs)
        else:
            run_on_handles(fn, args, kwargs)


def _reads_target(op: Op, needs: Sequence[Any]) -> bool:
    """Whether the formula reads what the write destroys."""
    assert op.vjp is not None
    return op.schema.args[0].name in op.vjp.reads(op.schema, needs)


def _copy_of(target: Tensor) -> Tensor:
    """Its value and history as they are now."""
    edge_of(target)  # a view's history is looked up anew after a write to its base
    if isinstance(target, BatchedTensor):
        return target.copied()
    copy = same_memory(target, keep_history=True)
    with torch.no_grad():
        if target.lacks_handle:
            made = ops.clone(target)
            copy._meta, copy._storage, copy._writes = made.meta, made.storage, made.storage.writes
        else:
            copy._handle, copy._meta, copy._storage, copy._viewed = target.raw().clone(), None, None, None
    return copy


def call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A torch function without a record that writes into its first argument, or leaves it as it is (a dropout in evaluation):
    torch differentiates it on a copy."""
    check_writable(args[0])
    if name_of(fn) in VIEWS_IN_PLACE:
        return view_in_place(fn, args, kwargs)
    written = keeps_result = False
    name = name_of(fn) or "write"

    def on_copy(first: torch.Tensor, *rest: Any, **named: Any) -> Any:
        nonlocal written, keeps_result
        copy = first.clone()
        fn(copy, *rest, **named)
        written |= copy._version > 0
        keeps_result |= hasattr(copy.grad_fn, "_saved_result")
        return copy

    on_copy.__name__ = name
    with keeping_one_gradient(args[0]):
        result = call_torch(on_copy, args, kwargs)
    if not written:
        return args[0]
    if _is_written_as_it_goes((*args, *kwargs.values())):
        _run_as_it_is(fn, args, kwargs)
        return rebase(args[0], edge_of(result))
    return replace(args[0], result, keeps_result)


VIEWS_IN_PLACE = frozenset(("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_"))


def view_in_place(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """``x.t_()``: no element moves; from now on the tensor is this view of what it was.

    Raises NotImplementedError where it has views, whose way from it would no longer lead there."""
    target: Tensor = args[0]
    name = name_of(fn)
    if any(view() is not None for view in target._views or ()):
        raise NotImplementedError(f"{name} of a tensor that has views which gradients go through: use {name[:-1]}")
    if name != "as_strided_":  # what torch refuses it refuses in the words of this function
        sizes: Any = tuple(target.shape)  # no symbols: those are FakeTensor's
        fn(torch.empty((), device="cpu").expand(sizes), *args[1:], **kwargs)
    view = getattr(target, name[:-1])(*args[1:], **kwargs)
    edge = edge_of(view)
    _run_as_it_is(fn, args, kwargs)
    if target._view is not None:
        target._view = view._view
    return target if edge is None else set_history(target, *edge)


def write_item(target: Tensor, index: Any, value: Any) -> None:
    """``target[index] = value``."""
    if is_basic(index):
        view = basic_view(target, index)
        if not level_of((view,)) and expanded(view):  # torch copies a number as it does a tensor
            refuse_expanded()
        write_view(view, value)
        return
    check_writable(target)

    def on_copy(first: torch.Tensor, at: Any, new: Any) -> torch.Tensor:
        copy = first.clone()
        copy[at] = new
        return copy

    on_copy.__name__ = "index_put_"
    with keeping_one_gradient(target):
        result = call_torch(on_copy, (target, index, value), {})
    if _is_written_as_it_goes((target, index, value)):
        _run_as_it_is(torch.Tensor.__setitem__, (target, index, value), {})
        rebase(target, edge_of(result))
    else:
        replace(target, result)


def replace(target: Tensor, result: Tensor, kept: bool = False) -> Tensor:
    """Write a computed value into the memory; its history becomes the target's. ``kept``: torch keeps it."""
    if level_of((target, result)):  # a tape of a lower level follows the write too
        overwrite(target, result, "an in-place op")
    else:
        with torch.no_grad():
            if target.lacks_handle:
                Tensor.elsewhere.put(target, result)
            else:
                target.raw().copy_(result.raw())
    edge = edge_of(result)
    return rebase(target, behind_result(edge, target) if kept else edge)


def check_writable(target: Tensor) -> None:
    """torch's refusals: leaves, views of leaves, views that came in groups, under no_grad or out of an autograd.Function."""
    info = target._view
    if info is not None and info.detour and not info.origin:  # what is written goes on from the base
        target._view = info = info._replace(detour=False, generation=-1)
        refresh(target)
    if not _has_gradients(target):
        return
    if info is None:
        if target._autograd is not None and tape_of(target).grad_fn is None:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        return
    if info.origin == "opaque":
        raise NotImplementedError(OPAQUE)
    if info.origin in REFUSED_VIEWS:
        raise refusal(target, info, now=True)
    if info.origin == "leaf" and not info.chain:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    if info.origin == "leaf" or (info.base._autograd is not None and tape_of(info.base).grad_fn is None):
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")


def _has_gradients(target: Tensor) -> bool:
    return target.dtype.is_floating_point or target.dtype.is_complex


# --- new histories -----------------------------------------------------------------------------------------------------------


def rebase(target: Tensor, edge: Edge | None) -> Tensor:
    """``target`` was written to: from now on it is what ``edge`` names (None: a constant, as integers always are)."""
    if not _has_gradients(target):
        edge = None
    info = target._view
    if info is None:
        _renew(target, edge)
        return target
    before = edge_of(info.base)
    if before is not None or edge is not None:
        _renew(info.base, Edge(CopySlices(info, before, edge), 0))
    return target


def _renew(base: Tensor, edge: Edge | None) -> None:
    generation = generation_of(base) + 1
    if edge is None:
        if base._autograd is not None:
            base._autograd, base.keys = None, base.keys & ~AUTOGRAD
        return
    renew_history(base, edge.node, edge.index, generation)
    base.keys |= AUTOGRAD
    for reference in base._views or ():
        view = reference()
        if view is not None and view._view.origin != "leaf":
            view.keys |= AUTOGRAD
            if view._autograd is None:
                view._autograd = AutogradMeta()  # its history is looked up when it is asked for
            elif view._autograd.retained is not None and not view._view.origin:  # of what it is now
                refresh(view)


class CopySlices(Node):
    """A base after a write to a view of it: outside the view what it was before, inside what was written."""

    __slots__ = ("base", "chain")
    label = THROUGH_A_VIEW

    def __init__(self, info: ViewInfo, before: Edge | None, written: Edge | None) -> None:
        super().__init__((before, written), (info.base.meta,))
        self.base, self.chain = info.base.meta, info.chain

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The gradient outside the view, and that of the view (which the base's strides may allow, and others not)."""
        part = laid_out(grads[0], self.base)
        for op_name, rest in self.chain:
            part = dispatcher.call_bound(op_name, (part, *rest))
        outside = None
        if self.edges[0] is not None:
            inside = self._spread(ops.full(tuple(part.shape), True, dtype=torch.bool, device=part.device))
            outside = ops.where(inside, 0.0, grads[0])
        return outside, part

    def _spread(self, part: Any) -> Any:
        """The view's elements at their places in the base."""
        metas: list[TensorMeta] = [self.base]
        for op_name, rest in self.chain:
            found = OPS[op_name].meta(metas[-1], *rest)
            assert isinstance(found, TensorMeta)
            metas.append(found)
        for (op_name, rest), of, made in zip(reversed(self.chain), metas[-2::-1], metas[:0:-1], strict=True):
            vjp = OPS[op_name].vjp
            assert vjp is not None
            like = TensorMeta(of.shape, of.strides, part.dtype, of.device)
            part = vjp.fn((part,), (like, *rest), (made,), (True, *(None for _ in rest)))[0]
        return part
