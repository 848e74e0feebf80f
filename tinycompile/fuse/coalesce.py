"""Smallest rank for code generation: drops axes of extent 1, merges axes that every access walks as one, fastest axis last."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Call
from tinycompile.base.expr import Dim
from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import Access, analyse, defined, dims_of, names_in
from tinycompile.fuse.weave import with_dims, without_idle_axes
from tinycompile.ir.loops import Axis, Load, Nest, Reduce, Scan, Statement, Store


def coalesce(nest: Nest, cost: Cost) -> Nest:
    """The same nest over fewer axes, in memory order; parallel axes are named ``i0, i1, ...``, reductions ``r0, r1, ...``."""
    nest = without_idle_axes(nest)
    while (pair := _mergeable(nest, cost)) is not None:
        nest = _merged(nest, *pair)
    return _renamed(_in_memory_order(nest, cost))


def _forms(nest: Nest, cost: Cost) -> list[Dim]:
    """Every integer expression that code is generated for: element offsets, masks and index values."""
    found: dict[Dim, None] = {}
    for s in nest.body:
        if isinstance(s, (Load, Store)):
            found[cost.offset(s.buffer, s.index)] = None
            found.update(dict.fromkeys(s.mask if isinstance(s, Load) else ()))
        else:
            found.update(dict.fromkeys(dims_of(s)))
    return [d for d in found if not isinstance(d, int)]


def _mergeable(nest: Nest, cost: Cost) -> tuple[Axis, Axis] | None:
    """An (outer, inner) pair of one kind that all expressions walk as ``outer*extent + inner``."""
    if len(nest.axes) < 2:
        return None
    forms = _forms(nest, cost)
    scanned = {s.axis for s in nest.body if isinstance(s, Scan)}
    for outer, inner in itertools.permutations(nest.axes, 2):
        if outer.kind != inner.kind or {outer.name, inner.name} & scanned:
            continue
        if all(_walks_as_one(d, outer, inner) for d in forms) and _reduces_as_one(nest, outer.name, inner.name):
            return outer, inner
    return None


def _walks_as_one(d: Dim, outer: Axis, inner: Axis) -> bool:
    names = names_in(d)
    if outer.name not in names and inner.name not in names:
        return True
    a, b = ex.coefficient(d, outer.name), ex.coefficient(d, inner.name)
    if a is not None and b is not None:
        return a == b * inner.extent
    flat = _flat(outer, inner)
    merged = ex.substitute(d, flat)  # e.g. (outer*8 + inner) // 4: fine if no new quotient or remainder is left
    return _calls(merged) <= _calls(d)


def _calls(d: Dim) -> int:
    return sum(isinstance(a, Call) for mono, _ in ex.terms_of(d) for a in mono)


def _flat(outer: Axis, inner: Axis) -> dict[str, Dim]:
    both = ex.sym(outer.name, 0, outer.extent * inner.extent)
    return {outer.name: ex.floordiv(both, inner.extent), inner.name: ex.mod(both, inner.extent)}


def _reduces_as_one(nest: Nest, outer: str, inner: str) -> bool:
    """Each Reduce drops both axes or neither; argmax sees their order."""
    for s in nest.body:
        if isinstance(s, Reduce) and (outer in s.axes or inner in s.axes):
            if not (outer in s.axes and inner in s.axes):
                return False
            if s.kind.startswith("arg") and s.axes.index(outer) + 1 != s.axes.index(inner):
                return False
    return True


def _merged(nest: Nest, outer: Axis, inner: Axis) -> Nest:
    flat = _flat(outer, inner)
    both = Axis(outer.name, outer.extent * inner.extent, outer.kind)
    axes = tuple(both if a is outer else a for a in nest.axes if a is not inner)

    def statement(s: Statement) -> Statement:
        if isinstance(s, Reduce):
            return replace(s, axes=tuple(a for a in s.axes if a != inner.name))
        return with_dims(s, lambda d: ex.substitute(d, flat))

    return replace(nest, axes=axes, body=tuple(statement(s) for s in nest.body))


def _in_memory_order(nest: Nest, cost: Cost) -> Nest:
    """Axes by stride, largest first, as the accesses with the most axes walk them (stores before loads)."""
    facts = analyse(nest)
    widest = sorted((*facts.stores, *facts.loads), key=lambda a: -len(a.axes))

    def step(axis: Axis) -> int:
        for a in widest:
            by = ex.coefficient(cost.offset(a.buffer, a.index), axis.name)
            if by is not None and by != 0:
                return -abs(cost.size(by))
        return -(1 << 62)

    return replace(nest, axes=tuple(sorted(nest.axes, key=step)))


def _renamed(nest: Nest) -> Nest:
    values = {name for s in nest.body for name in defined(s)}
    new: dict[str, str] = {}
    for letter, kind in (("i", "parallel"), ("r", "reduction")):
        free = (n for n in map(f"{letter}{{}}".format, itertools.count()) if n not in values)
        new.update({a.name: next(free) for a in nest.axes if a.kind == kind})
    if all(old == name for old, name in new.items()):
        return nest
    dims: dict[str, Dim] = {a.name: ex.sym(new[a.name], 0, a.extent) for a in nest.axes}

    def statement(s: Statement) -> Statement:
        if isinstance(s, Reduce):
            return replace(s, axes=tuple(new[a] for a in s.axes))
        if isinstance(s, Scan):
            return replace(s, axis=new[s.axis])
        return with_dims(s, lambda d: ex.substitute(d, dims))

    axes = tuple(replace(a, name=new[a.name]) for a in nest.axes)
    return replace(nest, axes=axes, body=tuple(statement(s) for s in nest.body))


def fastest_is_parallel(nest: Nest, accesses: Sequence[Access], cost: Cost) -> bool:
    """Whether the widest access walks memory fastest along a parallel axis."""
    fastest = cost.fastest_axis(accesses, {a.name: a.extent for a in nest.axes})
    return any(a.name == fastest and a.kind == "parallel" for a in nest.axes)
