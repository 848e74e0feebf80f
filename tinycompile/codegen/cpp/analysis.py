"""Normalise a nest for the CPU: flat offsets, simple reductions, and as few and as long axes as the accesses allow.

In a flat nest a Load's or Store's ``index`` is ``(offset, *checked)``: one offset in elements from the tensor's first element,
then the symbols that name indirect indices to check against their range. Compound reductions are gone (``compound.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Call
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim, Expr
from tinycompile.codegen.cpp.compound import simplified
from tinycompile.ir.loops import Axis, Buffer, Const, Index, Load, Nest, Reduce, Scalar, Scan, Statement, Store


@dataclass(frozen=True, slots=True)
class FlatNest:
    """A normalised nest; see the module's docstring."""

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]

    def axis(self, name: str) -> Axis:
        """The axis of that name."""
        return next(a for a in self.axes if a.name == name)


def flatten(nest: Nest, buffers: Mapping[str, Buffer]) -> FlatNest:
    """Normalise ``nest``. Raises BackendError where it reads back what it wrote at another index."""
    body = simplified(tuple(_forward_stores(nest.body)), nest.axes, dtypes_of(nest.body))
    body = tuple(_flat_access(s, buffers) for s in _share_equal(body))
    flat = FlatNest(nest.name, _in_order(nest), body)
    for step in (_drop_unit_axes, _split_divided_axes, _merge_axes):
        flat = step(flat)
    return flat


def _in_order(nest: Nest) -> tuple[Axis, ...]:
    """The axes. Where points may meet at one place, those along which they may are walked in order by one thread, as reduction
    axes are: all but the axes that are a coordinate of the place themselves."""
    meeting = set[str]()
    for s in nest.body:
        if isinstance(s, Store) and s.mode != "plain":
            meeting |= {a.name for a in nest.axes} - {symbol.name for d in s.index if (symbol := ex.as_sym(d)) is not None}
    return tuple(dataclasses.replace(a, kind="reduction") if a.name in meeting else a for a in nest.axes)


def defined(s: Statement) -> tuple[str, ...]:
    """The values that a statement makes."""
    if isinstance(s, (Reduce, Scan)):
        return s.names
    return () if isinstance(s, Store) else (s.name,)


def dtypes_of(body: Iterable[Statement]) -> dict[str, torch.dtype]:
    """The dtype of each value."""
    return {
        name: dtype
        for s in body
        if not isinstance(s, Store)
        for name, dtype in zip(defined(s), s.dtypes if isinstance(s, (Reduce, Scan)) else (s.dtype,), strict=True)
    }


def expressions(s: Statement) -> tuple[Dim, ...]:
    """The index expressions in a statement."""
    if isinstance(s, Load):
        return (*s.index, *s.mask)
    if isinstance(s, Store):
        return s.index
    return (s.expr,) if isinstance(s, Index) else ()


def operands(s: Statement) -> tuple[str, ...]:
    """The values that a statement names as operands (those named inside index expressions not counted)."""
    if isinstance(s, (Scalar, Reduce, Scan)):
        return s.args
    return (s.value,) if isinstance(s, Store) else ()


def map_expressions(s: Statement, fn: Callable[[Dim], Dim]) -> Statement:
    """The statement with ``fn`` applied to every index expression."""
    if isinstance(s, Load):
        return dataclasses.replace(s, index=tuple(map(fn, s.index)), mask=tuple(map(fn, s.mask)))
    if isinstance(s, Store):
        return dataclasses.replace(s, index=tuple(map(fn, s.index)))
    return dataclasses.replace(s, expr=fn(s.expr)) if isinstance(s, Index) else s


def locate(body: tuple[Statement, ...], axes: frozenset[str]) -> dict[str, frozenset[str]]:
    """The axes at which each value lives."""
    at: dict[str, frozenset[str]] = {}
    for s in body:
        here = loops_of(s, at, axes)
        for name in defined(s):
            at[name] = here - set(s.axes) if isinstance(s, Reduce) else here
    return at


def loops_of(s: Statement, at: Mapping[str, frozenset[str]], axes: frozenset[str]) -> frozenset[str]:
    """The axes whose loops a statement stands in: where its operands live, its indices, and what it reduces or scans."""
    found = frozenset[str]().union(*(at[a] for a in operands(s)))
    for symbol in (t for d in expressions(s) for t in ex.symbols(d)):
        found |= {symbol.name} if symbol.name in axes else at.get(symbol.name, frozenset())
    if isinstance(s, Reduce):
        found |= set(s.axes)
    return found | {s.axis} if isinstance(s, Scan) else found


def _forward_stores(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """A load of what the nest stored before becomes the stored value."""
    stored: dict[str, Store] = {}
    for s in body:
        if isinstance(s, Load) and s.buffer in stored:
            store = stored[s.buffer]
            if store.index != s.index or s.mask or store.mode != "plain":
                raise BackendError(f"the nest reads {s.buffer} at {s.index}, where it stored at {store.index}")
            yield Scalar(s.name, s.dtype, "cast", (store.value,), s.origin)
            continue
        if isinstance(s, Store):
            stored[s.buffer] = s
        yield s


def _share_equal(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Make equal values once: the row maximum of a softmax, and the exponentials that its sum and its result share."""
    made: dict[Any, tuple[str, ...]] = {}
    same: dict[str, str] = {}

    def rename(d: Dim) -> Dim:
        named = {t.name: ex.sym(same[t.name], t.lo, t.stop) for t in ex.symbols(d) if same.get(t.name, t.name) != t.name}
        return ex.substitute(d, named)

    for s in body:
        s = map_expressions(s, rename)
        if isinstance(s, (Scalar, Reduce, Scan)):
            s = dataclasses.replace(s, args=tuple(same.get(a, a) for a in s.args))
        elif isinstance(s, Store):
            s = dataclasses.replace(s, value=same.get(s.value, s.value))
        if isinstance(s, Store) or not _anonymous(s):
            yield s
            continue
        known = made.setdefault(_anonymous(s), defined(s))
        if known == defined(s):
            yield s
        same.update(zip(defined(s), known, strict=True))


def _anonymous(s: Statement) -> Any:
    """The statement without its names and origin; None for what is not shared (loads: an index may name their value)."""
    if isinstance(s, (Reduce, Scan)):
        return dataclasses.replace(s, names=(), origin="")
    if isinstance(s, Const):
        return ("const", s.dtype, repr(s.value))
    return dataclasses.replace(s, name="", origin="") if isinstance(s, (Scalar, Index)) else None


def _flat_access(s: Statement, buffers: Mapping[str, Buffer]) -> Statement:
    if not isinstance(s, (Load, Store)):
        return s
    meta = buffers[s.buffer].meta
    offset: Dim = 0
    for place, stride in zip(s.index, meta.strides, strict=True):
        offset = offset + place * stride
    checked = (
        ex.sym(symbol.name, symbol.lo, symbol.stop)
        for place in s.index
        for symbol in sorted(ex.symbols(place), key=lambda t: t.name)
    )
    return dataclasses.replace(s, index=(offset, *dict.fromkeys(checked)))


def drop_axis_symbols(flat: FlatNest) -> FlatNest:
    """Leave in ``index[1:]`` only the symbols that name values (they have a range and are no axis)."""
    axes = {a.name for a in flat.axes}
    values = {name for s in flat.body for name in defined(s)}

    def keep(d: Dim) -> bool:
        symbol = ex.as_sym(d)
        return symbol is not None and symbol.name in values and symbol.name not in axes

    body = (
        dataclasses.replace(s, index=(s.index[0], *filter(keep, s.index[1:]))) if isinstance(s, (Load, Store)) else s
        for s in flat.body
    )
    return dataclasses.replace(flat, body=tuple(body))


def _substitute(
    flat: FlatNest, values: Mapping[str, Dim], axes: tuple[Axis, ...], names: Mapping[str, tuple[str, ...]]
) -> FlatNest:
    """Rewrite index expressions, and the axes that reductions and scans name."""

    def rename(s: Statement) -> Statement:
        s = map_expressions(s, lambda d: ex.substitute(d, values))
        if isinstance(s, Reduce):
            renamed = dict.fromkeys(n for a in s.axes for n in names.get(a, (a,)))
            return dataclasses.replace(s, axes=tuple(renamed))
        if isinstance(s, Scan) and s.axis in names:
            return dataclasses.replace(s, axis=names[s.axis][0])
        return s

    return FlatNest(flat.name, axes, tuple(rename(s) for s in flat.body))


def _drop_unit_axes(flat: FlatNest) -> FlatNest:
    flat = drop_axis_symbols(flat)
    scanned = {s.axis for s in flat.body if isinstance(s, Scan)}
    unit = [a.name for a in flat.axes if isinstance(a.extent, int) and a.extent == 1 and a.name not in scanned]
    axes = tuple(a for a in flat.axes if a.name not in unit)
    zeros: dict[str, Dim] = dict.fromkeys(unit, 0)
    flat = _substitute(flat, zeros, axes, dict.fromkeys(unit, ()))
    return dataclasses.replace(flat, body=tuple(_without_empty_reduce(s) for s in flat.body))


def _without_empty_reduce(s: Statement) -> Statement:
    """A reduction over nothing but axes of extent 1 is its argument."""
    if not isinstance(s, Reduce) or s.axes:
        return s
    return Scalar(s.names[0], s.dtypes[0], "cast", (s.args[0],), s.origin)


def _split_divided_axes(flat: FlatNest) -> FlatNest:
    """Where an index has ``i // k`` or ``i % k`` with ``k`` dividing the extent: two axes, and the division is gone."""
    scanned = {s.axis for s in flat.body if isinstance(s, Scan)}
    for _ in range(8):
        found = next(((a, k) for a in flat.axes for k in _divisors(flat, a) if a.name not in scanned), None)
        if found is None:
            return flat
        axis, k = found
        assert isinstance(axis.extent, int)
        outer = Axis(f"{axis.name}_hi", axis.extent // k, axis.kind)
        inner = Axis(f"{axis.name}_lo", k, axis.kind)
        value = ex.sym(outer.name, 0, outer.extent) * k + ex.sym(inner.name, 0, k)
        axes = tuple(x for a in flat.axes for x in ((outer, inner) if a is axis else (a,)))
        flat = _substitute(flat, {axis.name: value}, axes, {axis.name: (outer.name, inner.name)})
    return flat


def _divisors(flat: FlatNest, axis: Axis) -> Iterator[int]:
    if not isinstance(axis.extent, int):
        return
    for s in flat.body:
        for call in (c for d in expressions(s) for c in _calls(d)):
            symbol, k = ex.as_sym(call.lhs), call.rhs
            if call.fn in ("//", "%") and symbol is not None and symbol.name == axis.name and isinstance(k, int):
                if 1 < k < axis.extent and axis.extent % k == 0:
                    yield k


def _calls(d: Dim) -> Iterator[Call]:
    if isinstance(d, Expr):
        for atom in (a for mono, _ in d.terms for a in mono):
            if isinstance(atom, Call):
                yield atom
                yield from _calls(atom.lhs)
                yield from _calls(atom.rhs)


def _merge_axes(flat: FlatNest) -> FlatNest:
    """Merge pairs of axes that every expression walks as one: ``i * extent(j) + j``."""
    while True:
        pair = next(((a, b) for a in flat.axes for b in flat.axes if a is not b and _mergeable(flat, a, b)), None)
        if pair is None:
            return flat
        outer, inner = pair
        merged = Axis(f"{outer.name}_{inner.name}", outer.extent * inner.extent, inner.kind)
        axes = tuple(merged if a is inner else a for a in flat.axes if a is not outer)
        values: dict[str, Dim] = {outer.name: 0, inner.name: ex.sym(merged.name, 0, merged.extent)}
        flat = _substitute(flat, values, axes, {outer.name: (merged.name,), inner.name: (merged.name,)})


def _mergeable(flat: FlatNest, outer: Axis, inner: Axis) -> bool:
    for s in flat.body:
        if isinstance(s, Reduce) and (outer.name in s.axes) != (inner.name in s.axes):
            return False
        if isinstance(s, Scan) and s.axis in (outer.name, inner.name):
            return False
        for d in expressions(s):
            by_outer, by_inner = ex.coefficient(d, outer.name), ex.coefficient(d, inner.name)
            if by_outer is None or by_inner is None or by_outer != by_inner * inner.extent:
                return False
    return outer.kind == inner.kind
