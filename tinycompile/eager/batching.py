"""The Batched key: runs an op on all examples of a vmap at once, by a rule that most ops' records imply.

Pointwise ops align their inputs; reductions, scans and views move their dims by one; a record that decomposes is its
decomposition. ``batching_rules.py`` and ``batching_library.py`` hold the rest. What has no rule is called once an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager.backends import SEVERAL_VIEWS, is_same, is_view, meta_of, named_results
from tinycompile.eager.batched import BatchedTensor, call_each, is_followed, level_of, mapped
from tinycompile.eager.batched_random import RECORDS, draw_record, is_undecided
from tinycompile.eager.in_parts import in_parts
from tinycompile.eager.tape import note_view
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops import meta_rules
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.gradients import differentiable_form
from tinycompile.ops.outline import NotCoveredError
from tinycompile.ops.record import OPS, Decompose, Op, Pointwise, Reduction, Scan

Rule = Callable[..., Any]
"""``rule(batch, *args)``: the call's arguments in schema order, as the program gave them; the results have the examples along
dim 0. NotImplemented: once an example."""

RULES: dict[str, Rule] = {}


UNCOVERED: dict[str, Rule] = {}
"""Of calls that the record leaves to torch; what has none here is called once an example."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these ops."""

    def register(fn: Rule) -> Rule:
        for name in names:
            RULES[name] = fn
        return fn

    return register


class Batch:
    """The tensors of one call as seen from its highest level."""

    __slots__ = ("level", "op", "size", "write")

    def __init__(self, op: Any, args: Sequence[Any]) -> None:
        """``op``: the record; None for a function that has none."""
        self.op, self.level = op, level_of(args)
        self.write: Callable[[tuple[Any, ...]], Any] | None = None  # instead of the call that a rule ends in
        self.size: Any = next((t.value.shape[0] for t in dispatcher.tensors_in(args) if self.has(t)), None)

    def has(self, tensor: Any) -> bool:
        """Whether each example has its own."""
        return isinstance(tensor, BatchedTensor) and tensor.level == self.level and tensor.batched

    def below(self, value: Any) -> Any:
        """What stands for it one level below; other arguments, and tensors in lists, alike."""
        return mapped(value, self._below)

    def _below(self, tensor: Any) -> Any:
        return tensor.value if isinstance(tensor, BatchedTensor) and tensor.level == self.level else tensor

    def full(self, tensor: Any) -> Any:
        """With the examples along dim 0, whether it has its own for each or not. None stays None."""
        if tensor is None:
            return None
        value = self._below(tensor)
        return value if self.has(tensor) else ops.expand(value, (self.size, *value.shape))

    def aligned(self, tensor: Any, rank: int) -> Any:
        """For an op that broadcasts: the examples along dim 0, if it has its own for each, and one example's dims last."""
        value = self._below(tensor)
        if self.has(tensor):
            for _ in range(rank - len(tensor.shape)):
                value = ops.unsqueeze(value, 1)
        return value

    def spread(self, tensor: Any, rank: int) -> Any:
        """As ``aligned``, with the examples along dim 0 of every tensor."""
        value = self.aligned(tensor, rank)
        if self.has(tensor):
            return value
        ones = [1] * (rank - len(value.shape))
        return ops.expand(ops.reshape(value, (1, *ones, *value.shape)), (self.size, *ones, *value.shape))

    def results(self, value: Any) -> Any:
        """Of ops that a rule called on this level's tensors: one that depends on no example is marked so."""

        def result(tensor: Any) -> Any:
            of_level = isinstance(tensor, BatchedTensor) and tensor.level == self.level
            return tensor if of_level else BatchedTensor(tensor, self.level, batched=False)

        return mapped(value, result)

    def dim(self, dim: int, rank: int) -> int:
        """A dim of one example (of ``rank`` dims) as a dim of all."""
        return shapes.normalize_dim(dim, max(rank, 1)) + 1


def is_tensor(value: Any) -> bool:
    """Ours or torch's."""
    return isinstance(value, (Tensor, torch.Tensor))


def rank_of(*values: Any) -> int:
    """The greatest number of dims that one example of any of the tensors has."""
    return max((len(v.shape) for v in values if is_tensor(v)), default=0)


# --- the kernel --------------------------------------------------------------------------------------------------------------


def run_batched(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """The Batched key's fallback."""
    op = OPS.get(op_name)
    if op is None:
        return call_each(lambda args, _: dispatcher.call_bound(op_name, args), op_name, args, {})
    if is_same(op):
        return args[0]
    if op_name in RECORDS and is_undecided(args):
        return draw_record(op_name, args)
    batch = Batch(op, args)
    covered = _check(op, args)
    if batch.size is None:
        below = dispatcher.call_bound(op_name, batch.below(args))
        return _wrapped(op, below, batch.level, args, batched=False)
    chosen = rule_of(op) if covered else UNCOVERED.get(op_name)
    result = NotImplemented if chosen is None else chosen(batch, *args)
    if result is NotImplemented:
        return call_each(lambda args, _: dispatcher.call_bound(op_name, args), op_name, args, {})
    return _wrapped(op, result, batch.level, args)


def _check(op: Op, args: Sequence[Any]) -> bool:
    """Raise what one example's call would raise. Returns whether the record knows: else it is torch's to judge."""
    try:
        op.meta(*(meta_of(a) for a in args))
    except NotCoveredError:
        return False
    return True


def _wrapped(op: Op, result: Any, level: int, args: Sequence[Any], batched: bool = True) -> Any:
    if isinstance(result, (tuple, list)):
        each = [_wrapped(op, r, level, args, batched) for r in result]
        if op.name in SEVERAL_VIEWS and isinstance(args[0], BatchedTensor):
            for piece in each:
                note_view(piece, args[0], op.name, tuple(args[1:]), several=True)
        return named_results(op, each) if isinstance(result, tuple) else each
    if isinstance(result, BatchedTensor) and result.level == level:  # of a rule that called ops on the level's tensors
        return result
    made = BatchedTensor(result if isinstance(result, Tensor) else from_torch(result), level, batched)
    if is_view(op) and op.name != "detach" and isinstance(args[0], BatchedTensor):
        note_view(made, args[0], op.name, tuple(args[1:]))
    return made


def rule_of(op: Op) -> Rule:
    """Its own, or the one that the record implies."""
    found = RULES.get(op.name)
    if found is None:
        found = RULES[op.name] = _derived(op)
    return found


def _derived(op: Op) -> Rule:
    """The rule that the record implies."""
    lowering = op.lowering
    if isinstance(lowering, Pointwise):
        return pointwise
    if isinstance(lowering, Reduction):
        return reduction
    if isinstance(lowering, Scan):
        return along_dim
    if isinstance(lowering, Decompose):
        return decomposed
    return lambda batch, *args: NotImplemented


def rule_in_words(op: Op) -> str:
    """How vmap runs the op."""
    own = RULES.get(op.name)
    if own is not None and own not in _DERIVED:
        return "a rule of its own" if own is not as_it_is else "on all examples as it is"
    found = own or _derived(op)
    return _DERIVED.get(found, "once an example")


# --- derived rules -----------------------------------------------------------------------------------------------------------


def decomposed(batch: Batch, *args: Any) -> Any:
    """The ops that the record's are, on one example each. Where they may be differentiated later, those by which it is: where
    values tie they differ."""
    form = batch.op.lowering.fn
    if any(map(_may_be_followed, dispatcher.tensors_in(args))):
        if batch.op.name in _OWN_DERIVATIVE:
            return NotImplemented
        form = differentiable_form(batch.op) or form
    result = in_parts(batch.op, form, args)
    return result if result is NotImplemented else batch.results(result)


def _may_be_followed(tensor: Any) -> bool:
    """Whether a tape of a level below follows it, or may follow the graph that is being captured."""
    value = tensor
    while isinstance(value, BatchedTensor):
        value = value.value
    return is_followed(tensor) or bool(getattr(value, "keys", 0) & Key.TRACING.bit)


_OWN_DERIVATIVE = frozenset(("multi_margin_loss",))
"""Where values tie the formula differs from that of the parts."""


def pointwise(batch: Batch, *args: Any) -> Any:
    """Inputs aligned so that they broadcast as one example's do; numbers of 0 dims keep their lesser say in the dtype."""
    rank = rank_of(*args)
    scalars = [a for a in args if is_tensor(a) and not len(a.shape)]
    if any(batch.has(a) for a in scalars) and len(dispatcher.tensors_in(args)) > 1:
        args = _promoted(batch.op, args)
    return call(batch, *(batch.aligned(a, rank) if is_tensor(a) else a for a in args))


def is_aligned(op: Op) -> bool:
    """Whether the op is right of all examples at once as soon as its tensors are aligned."""
    return op.name in _ALIGNED or (op.name != "to" and rule_of(op) is pointwise)


_ALIGNED = frozenset(("copy", "fill", "masked_fill"))


def call(batch: Batch, *args: Any) -> Any:
    """The op itself, one level below."""
    if batch.write is not None:
        return batch.write(args)
    return dispatcher.call_bound(batch.op.name, args)


def _promoted(op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """0-d tensors in the dtype in which the op takes its inputs: with the examples' dim they are 0-d no more."""
    lowering = op.lowering
    if not isinstance(lowering, Pointwise) or op.name in ("to", "masked_fill"):
        return tuple(args)
    at = [i for i, a in enumerate(op.schema.args) if a.base == "Tensor" and args[i] is not None]
    if op.name == "where":
        at = at[1:]
    common = meta_rules.result_type([meta_of(args[i]) for i in at])
    return tuple(cast(a, common) if i in at and is_tensor(a) and not len(a.shape) else a for i, a in enumerate(args))


def reduction(batch: Batch, x: Any, *rest: Any) -> Any:
    """``dim`` moved by one; None (or no dim at all) is every dim but the examples'."""
    schema, rank, value = batch.op.schema, len(x.shape), batch.below(x)
    at = schema.positions.get("dim")
    if at is None:
        return _of_all(batch, value)
    args = [value, *rest]
    dim, takes_list = args[at], schema.args[at].is_list
    keep = schema.positions.get("keepdim")
    if not takes_list and dim is None:
        return _of_flat(batch, value, args, at, keep, rank)
    if not rank:
        value = args[0] = ops.unsqueeze(value, 1)
    dims = dim if isinstance(dim, (tuple, list)) else () if dim is None else (dim,)
    moved = tuple(batch.dim(d, rank) for d in dims) or tuple(range(1, max(rank, 1) + 1))
    args[at] = moved if takes_list else moved[0]
    result = call(batch, *args)
    return _squeezed(result) if not rank and keep is not None and args[keep] else result


def _of_all(batch: Batch, value: Any) -> Any:
    """``max_all`` and ``min_all``."""
    flat = ops.reshape(value, (value.shape[0], -1))
    return ops.amax(flat, (1,)) if batch.op.name == "max_all" else ops.amin(flat, (1,))


def _of_flat(batch: Batch, value: Any, args: list[Any], at: int, keep: int | None, rank: int) -> Any:
    """Over all dims, for ops that take one: ``argmax``'s index counts in the flattened example."""
    keepdim = keep is not None and bool(args[keep])
    args[0], args[at] = ops.reshape(value, (value.shape[0], -1)), 1
    if keep is not None:
        args[keep] = False
    result = call(batch, *args)
    for _ in range(rank if keepdim else 0):
        result = ops.unsqueeze(result, 1)
    return result


def _squeezed(result: Any) -> Any:
    return tuple(_squeezed(r) for r in result) if isinstance(result, tuple) else ops.squeeze(result, (1,))


def along_dim(batch: Batch, x: Any, *rest: Any) -> Any:
    """Ops of one tensor whose arguments named ``dim``, ``dims`` (or the like) are dims of it."""
    schema, rank, value = batch.op.schema, len(x.shape), batch.below(x)
    if not rank:
        value = ops.unsqueeze(value, 1)
    args = [value, *rest]
    for name in _DIM_NAMES:
        at = schema.positions.get(name)
        if at is not None and args[at] is not None:
            dims = args[at]
            moved = tuple(batch.dim(d, rank) for d in dims) if isinstance(dims, (tuple, list)) else batch.dim(dims, rank)
            args[at] = moved
    result = call(batch, *args)
    return _squeezed(result) if not rank else result


_DIM_NAMES = ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "source", "destination", "start_dim", "end_dim")


def as_it_is(batch: Batch, *args: Any) -> Any:
    """Ops that don't look at leading dims."""
    return call(batch, *batch.below(args))


_DERIVED = {
    decomposed: "as the ops that it decomposes into",
    pointwise: "on all examples at once, inputs aligned",
    reduction: "on all examples at once, over dims moved by one",
    along_dim: "on all examples at once, along dims moved by one",
}
dispatcher.fallback(Key.BATCHED, run_batched)
