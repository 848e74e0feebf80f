"""Alike small products in one launch: the projections of one attention, a list of experts. None of them fills the card, and
each launch costs the host as much as the card takes for one.

Products are alike when their nests differ in buffers alone, and in where in them they start: the same axes, the same
statements, memory laid out in the same way. A later one joins an earlier one, and so runs earlier, where nothing in between
writes what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.fuse.deps import defined
from tinycompile.ir.loops import Const, ExternCall, Load, Nest, Reduce, Scalar, Store, buffers_of, offset_of, starts_of
from tinycompile.ir.plan import Choice, Decision, Kernel

MOST_MEMBERS = 8  # a program compares its number with each
RULE = "product"
Step = Kernel | ExternCall | Choice
Touched = Callable[[Step], tuple[frozenset[str], frozenset[str]]]


def together(
    steps: Sequence[Step],
    metas: Mapping[str, TensorMeta],
    touched: Touched,
    decisions: list[Decision],
) -> list[Step]:
    """The steps with alike products (``Kernel.product``) as one kernel each. ``touched``: what a step reads and writes."""
    made: list[Step] = []
    keys: list[Any] = []
    for step in steps:
        key = _key(step.nest, metas) if isinstance(step, Kernel) and step.product else None
        at = _home(made, keys, step, key, touched)
        if at is None or not isinstance(step, Kernel):
            made.append(step)
            keys.append(key)
            continue
        first = made[at]
        assert isinstance(first, Kernel)
        decisions.append(Decision(first.nest.name, step.nest.name, True, RULE, "alike products: one launch does both"))
        made[at] = _joined(first, step, metas)
    return made


def _home(
    made: Sequence[Step],
    keys: Sequence[Any],
    step: Step,
    key: Any,
    touched: Touched,
) -> int | None:
    """The earlier kernel that a product can join."""
    if key is None:
        return None
    reads, writes = touched(step)
    for at in range(len(made) - 1, -1, -1):
        other = made[at]
        their_reads, their_writes = touched(other)
        if their_writes & (reads | writes) or their_reads & writes:
            return None
        if keys[at] == key and isinstance(other, Kernel) and len(other.nests) < MOST_MEMBERS:
            return at
    return None


def _joined(first: Kernel, second: Kernel, metas: Mapping[str, TensorMeta]) -> Kernel:
    twice: Dim = 0
    for meta in (metas[b] for b in first.reads if b in second.reads):
        twice = twice + meta.numel * meta.dtype.itemsize
    return replace(
        first,
        reads=tuple(dict.fromkeys((*first.reads, *second.reads))),
        writes=(*first.writes, *second.writes),
        bytes_moved=first.bytes_moved + second.bytes_moved - twice,
        flops=first.flops + second.flops,
        more=(*first.more, second.nest),
    )


def _key(nest: Nest, metas: Mapping[str, TensorMeta]) -> Any:
    """Equal for alike nests; None for one with indices that are values, or sizes that change."""
    axes = tuple((a.name, a.extent, a.kind) for a in nest.axes)
    places = {b: i for i, b in enumerate(buffers_of(nest))}
    starts = starts_of(nest, metas)
    values: dict[str, int] = {}
    found = []
    for s in nest.body:
        if isinstance(s, (Load, Store)):
            part = _access(s, {a.name for a in nest.axes}, places[s.buffer], offset_of(s, metas) - starts[s.buffer], values)
        else:
            part = _statement(s, values)
        if part is None:
            return None
        found.append(part)
        values.update((name, len(values)) for name in defined(s))
    return axes, tuple(found), tuple((metas[b].dtype, metas[b].device) for b in places)


def _access(s: Load | Store, axes: set[str], place: int, offset: Dim, values: Mapping[str, int]) -> Any:
    """``offset``: from where its buffer's first access starts."""
    dims = (offset, *s.mask) if isinstance(s, Load) else (offset,)
    if not all(y.name in axes for d in dims for y in ex.symbols(d)):
        return None
    if isinstance(s, Load):
        return "load", s.dtype, place, dims, repr(s.other)
    return "store", values[s.value], place, dims, s.mode


def _statement(s: Any, values: Mapping[str, int]) -> Any:
    if isinstance(s, Scalar):
        return s.op, s.dtype, tuple(values[a] for a in s.args)
    if isinstance(s, Reduce):
        return s.kind, s.dtypes, tuple(values[a] for a in s.args), s.axes
    return (repr(s.value), s.dtype) if isinstance(s, Const) and not isinstance(s.value, ex.Expr) else None
