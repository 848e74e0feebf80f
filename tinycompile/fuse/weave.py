"""Weaves nests into one body: renames axes and values, inlines producers, forwards stored values, and shares equal statements.

The one place that writes fused statements. It is given the nests of a kernel in program order, each with the expression that
every one of its axes becomes; what is inlined, and which buffers vanish, was decided before (``inline``, ``grouping``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.dtypes import NARROW
from tinycompile.base.errors import InternalError
from tinycompile.base.expr import Dim
from tinycompile.fuse.deps import defined, dims_of, names_in, used_values
from tinycompile.ir.constants import fold_constants
from tinycompile.ir.loops import Axis, Buffer, Const, Index, Load, Nest, Reduce, Scalar, Scan, Statement, Store

# Functions with steps, where a rounding more or less gives quite another result: their half arguments are as eager stores them.
_STEPS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "round", "mod", "fmod", "argmax", "argmin"})


@dataclass(frozen=True, slots=True)
class Producer:
    """A nest that is computed again wherever its buffer is read. ``axes``: what each dim of the buffer walks, or None."""

    nest: Nest
    axes: tuple[str | None, ...]


@dataclass
class _Frame:
    """One body being emitted: what its axes and values have become. ``wide``: half loads that stand for a float32 value.
    ``checked``: indirect indices that loads of it, which no further mask guards, check."""

    body: Sequence[Statement]
    dims: dict[str, Dim]
    mask: tuple[Dim, ...] = ()
    makes: tuple[Any, ...] | None = None
    at: int = 0
    values: dict[str, str] = field(default_factory=dict)
    wide: set[str] = field(default_factory=set)
    checked: set[Sym] = field(default_factory=set)

    @functools.cached_property
    def made_by(self) -> dict[str, Const | Scalar]:
        """Constants and scalar statements by name."""
        return {s.name: s for s in self.body if isinstance(s, (Const, Scalar))}


class Weaver:
    """Builds the body of one nest. ``vanish``: buffers that are not stored; ``taken``: names no value may have."""

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        order: Sequence[str],
        producers: Mapping[str, Producer] | None = None,
        vanish: frozenset[str] = frozenset(),
        taken: Iterable[str] = (),
    ) -> None:
        self.buffers, self.order, self.producers, self.vanish = buffers, order, producers or {}, vanish
        self.body: list[Statement] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.absorbed: dict[str, None] = {}
        self._taken = {*taken, *order}
        self._seen: dict[Any, tuple[str, ...]] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        self._checked: dict[tuple[Any, ...], set[Sym]] = {}  # by what was made
        self._stored: dict[str, tuple[tuple[Dim, ...], str]] = {}
        self._writes: dict[str, int] = {}
        self._serial: dict[str, int] = {}

    def add(self, nest: Nest, dims: Mapping[str, Dim]) -> None:
        """Append a nest whose axes are the given expressions over this nest's axes."""
        stack = [_Frame(nest.body, dict(dims))]
        while stack:  # an explicit stack: chains of inlined producers can be longer than Python's
            frame = stack[-1]
            if frame.at == len(frame.body):
                stack.pop()
                continue
            stmt = frame.body[frame.at]
            if isinstance(stmt, Load):
                inner = self._load(frame, stmt)
                if inner is not None:
                    stack.append(inner)  # the load is looked at again when its producer's value is there
                    continue
            else:
                self._compute(frame, stmt)
            frame.at += 1

    def finish(self, name: str, extents: Mapping[str, Dim], origins: Iterable[str]) -> Nest:
        """The nest, without dead statements; an axis is a reduction where something reduces over it."""
        body = without_dead(fold_constants(self.body))
        reduced = {a for s in body for a in (s.axes if isinstance(s, Reduce) else (s.axis,) if isinstance(s, Scan) else ())}
        kinds = {a: "reduction" if a in reduced else "parallel" for a in self.order}
        axes = tuple(Axis(a, extents[a], kinds[a]) for a in self.order)
        return Nest(name, axes, body, tuple(dict.fromkeys(origins)))

    # -- loads -----------------------------------------------------------------------------------------------------

    def _load(self, frame: _Frame, s: Load) -> _Frame | None:
        index = tuple(self._dim(frame, d) for d in s.index)
        own = tuple(m for m in (self._dim(frame, d) for d in s.mask) if not ex.at_least(m, 0))
        if any(ex.at_least(-m, 1) for m in own):  # never read
            half = s.dtype in NARROW
            frame.wide.update((s.name,) if half else ())
            frame.values[s.name] = self._emit(Const(s.name, torch.float32 if half else s.dtype, s.other, s.origin))
            return None
        mask = tuple(dict.fromkeys((*own, *frame.mask)))
        if s.buffer in self.producers:
            key = (s.buffer, index, mask)
            if key not in self._made:
                producer = self.producers[s.buffer]
                self.absorbed.update(dict.fromkeys(producer.nest.origins))
                dims = {axis: d for axis, d in zip(producer.axes, index, strict=True) if axis is not None}
                return _Frame(producer.nest.body, dims, mask, key)
            if not own:
                frame.checked |= self._checked[key]
            self._forward(frame, s, self._made[key], own)
        elif s.buffer in self._stored:
            place, value = self._stored[s.buffer]
            if place != index:
                raise InternalError(f"{s.buffer} is stored at {place} but read at {index} in one kernel")
            self._forward(frame, s, value, own)
        else:
            if mask == frame.mask:
                frame.checked.update(self._indirect(index))
            load = replace(s, index=index, mask=mask, other=s.other if mask else 0)
            frame.values[s.name] = self._emit(load, self._writes.get(s.buffer, 0))
        return None

    def _forward(self, frame: _Frame, s: Load, value: str, own: tuple[Dim, ...]) -> None:
        """Let ``value``, which was to be stored, stand for the load of it."""
        wide = self.dtypes[value] != s.dtype
        if wide and s.buffer not in self.vanish:
            value = self._emit(Scalar(s.name, s.dtype, "cast", (value,), s.origin))
            wide = False
        if own:
            value = self._guard(value, own, s)
        frame.values[s.name] = value
        if wide:
            frame.wide.add(s.name)

    def _guard(self, value: str, mask: tuple[Dim, ...], s: Load) -> str:
        """``value`` where every mask expression is >= 0, else the load's ``other``."""
        return self._where(emit_condition(self, mask, s.origin), value, s.other, s.name, s.origin)

    def _where(self, keep: str, value: str, other: Any, name: str, origin: str) -> str:
        dtype = self.dtypes[value]
        if dtype in NARROW:  # no arithmetic on halves and float8
            wide = self._emit(Scalar(name, torch.float32, "cast", (value,), origin))
            return self._emit(Scalar(name, dtype, "cast", (self._where(keep, wide, other, name, origin),), origin))
        no = self._emit(Const(f"{name}_other", dtype, other, origin))
        return self._emit(Scalar(name, dtype, "where", (keep, value, no), origin))

    def _indirect(self, index: Iterable[Dim]) -> set[Sym]:
        """The values that name places in memory."""
        return {s for d in index for s in ex.symbols(d) if s.name in self.dtypes and s.stop is not None}

    def _where_in_range(self, frame: _Frame, value: str, s: Store) -> str:
        """What an inlined producer made, where the indices are in range at which it was read. Its loads check those that they
        read at; one that is made without (a count, a constant, padding) has no such load."""
        assert frame.makes is not None
        for index in sorted(self._indirect(frame.makes[1]) - frame.checked, key=lambda i: i.name):
            inside = self._in_range(index, s.origin)
            if frame.mask:
                keep = emit_condition(self, frame.mask, s.origin)
                outside = self._emit(Scalar("outside", torch.bool, "not", (keep,), s.origin))
                inside = self._emit(Scalar("inside", torch.bool, "or", (outside, inside), s.origin))
            checked = self._emit(Scalar("checked", torch.bool, "checked", (inside,), s.origin))
            nothing = torch.zeros((), dtype=self.dtypes[value], device="cpu").item()
            value = self._where(checked, value, nothing, s.value, s.origin)
            frame.checked.add(index)
        return value

    def _in_range(self, index: Sym, origin: str) -> str:
        dtype = self.dtypes[index.name]
        zero = self._emit(Const("zero", dtype, 0, origin))
        size = self._emit(Const("size", dtype, index.stop, origin))
        low = self._emit(Scalar("inside", torch.bool, "ge", (index.name, zero), origin))
        high = self._emit(Scalar("inside", torch.bool, "lt", (index.name, size), origin))
        return self._emit(Scalar("inside", torch.bool, "and", (low, high), origin))

    # -- everything else -------------------------------------------------------------------------------------------

    def _compute(self, frame: _Frame, s: Statement) -> None:
        if isinstance(s, Const):
            value = self._dim(frame, s.value) if isinstance(s.value, ex.Expr) else s.value
            frame.values[s.name] = self._emit(replace(s, value=value))
        elif isinstance(s, Index):
            frame.values[s.name] = self._emit(replace(s, expr=self._dim(frame, s.expr)))
        elif isinstance(s, Scalar):
            self._scalar(frame, s)
        elif isinstance(s, Reduce):
            args = self._args(frame, s.kind, s.args, s.origin)
            names = self._emit_many(replace(s, args=args, axes=self._axes(frame, s.axes)))
            frame.values.update(zip(s.names, names, strict=True))
        elif isinstance(s, Scan):
            args = tuple(self._narrow(frame, a, s.origin) for a in s.args)
            names = self._emit_many(replace(s, args=args, axis=self._axes(frame, (s.axis,))[0]))
            frame.values.update(zip(s.names, names, strict=True))
        elif isinstance(s, Store):
            self._store(frame, s)

    def _scalar(self, frame: _Frame, s: Scalar) -> None:
        if s.op == "cast":
            value = frame.values[s.args[0]]
            if not s.dtype.is_floating_point:
                value = self._as_stored(frame, s.args[0], frame.made_by.get(s.args[0]), s.origin)
            same = self.dtypes[value] == s.dtype and s.args[0] in frame.wide
            frame.values[s.name] = value if same else self._emit(replace(s, args=(value,)))
            return
        frame.values[s.name] = self._emit(replace(s, args=self._args(frame, s.op, s.args, s.origin)))

    def _args(self, frame: _Frame, op: str, names: tuple[str, ...], origin: str) -> tuple[str, ...]:
        """The values of arguments. To compare with zero takes no rounding: that keeps signs."""
        given = [frame.made_by.get(a) for a in names] if op in _STEPS else []
        if not given or any(isinstance(g, Const) and g.value == 0 for g in given):
            return tuple(self._narrow(frame, a, origin) for a in names)
        return tuple(self._as_stored(frame, a, g, origin) for a, g in zip(names, given, strict=True))

    def _as_stored(self, frame: _Frame, name: str, made_by: Const | Scalar | None, origin: str) -> str:
        """The value of a name, rounded if it is a half value that was widened."""
        if isinstance(made_by, Scalar) and made_by.op == "cast" and made_by.args[0] in frame.wide:
            half = self._narrow(frame, made_by.args[0], origin)
            return self._emit(Scalar(name, made_by.dtype, "cast", (half,), origin))
        return self._narrow(frame, name, origin)

    def _store(self, frame: _Frame, s: Store) -> None:
        value = frame.values[s.value]
        target = self.buffers[s.buffer].meta.dtype
        if s.value in frame.wide and target not in NARROW:
            value = self._narrow(frame, s.value, s.origin)
        if frame.makes is not None:  # inside an inlined producer
            if s.buffer == frame.makes[0]:
                self._made[frame.makes] = self._where_in_range(frame, value, s)
                self._checked[frame.makes] = frame.checked
            return
        index = tuple(self._dim(frame, d) for d in s.index)
        self._writes[s.buffer] = self._writes.get(s.buffer, 0) + 1
        if s.mode == "plain":
            self._stored[s.buffer] = (index, value)
        if s.buffer not in self.vanish:
            self.body.append(replace(s, index=index, value=value))

    def _narrow(self, frame: _Frame, name: str, origin: str) -> str:
        """The value of a name at the dtype its nest gave it: a half stand-in is rounded here."""
        value = frame.values[name]
        if name not in frame.wide:
            return value
        load = next(s for s in frame.body if isinstance(s, Load) and s.name == name)
        return self._emit(Scalar(name, load.dtype, "cast", (value,), origin))

    def _axes(self, frame: _Frame, axes: tuple[str, ...]) -> tuple[str, ...]:
        """What reduction axes have become: in their own order where each is one axis, else in this nest's order."""
        lone = [ex.as_sym(frame.dims[a]) for a in axes]
        if all(s is not None for s in lone):
            return tuple(s.name for s in lone if s is not None)
        found = {n for a in axes for n in names_in(frame.dims[a])}
        return tuple(a for a in self.order if a in found)

    def _dim(self, frame: _Frame, d: Dim) -> Dim:
        if isinstance(d, int):
            return d
        lone = ex.as_sym(d)
        if lone is not None and lone.name in frame.dims:
            return frame.dims[lone.name]
        moved: dict[str, Dim] = {}
        for s in ex.symbols(d):
            if s.name in frame.dims:
                moved[s.name] = frame.dims[s.name]
            elif s.name in frame.values:
                moved[s.name] = ex.sym(frame.values[s.name], s.lo, s.stop)
        return ex.substitute(d, moved)

    # -- emission with sharing -------------------------------------------------------------------------------------

    def _emit(self, s: Load | Const | Index | Scalar, version: int = 0) -> str:
        key = _key(s, version)
        found = self._seen.get(key)
        if found is None:
            name = self._fresh(s.name)
            self.body.append(replace(s, name=name))
            self.dtypes[name] = s.dtype
            found = self._seen[key] = (name,)
        return found[0]

    def _emit_many(self, s: Reduce | Scan) -> tuple[str, ...]:
        key = replace(s, names=(), origin="")
        found = self._seen.get(key)
        if found is None:
            found = tuple(self._fresh(n) for n in s.names)
            self.body.append(replace(s, names=found))
            self.dtypes.update(zip(found, s.dtypes, strict=True))
            self._seen[key] = found
        return found

    def emit(self, s: Load | Const | Index | Scalar) -> str:
        """Append one statement, or find an equal one; returns the value's name."""
        return self._emit(s)

    def emit_reduce(self, s: Reduce) -> tuple[str, ...]:
        """Append a reduction, or find an equal one; returns the values' names."""
        return self._emit_many(s)

    def _fresh(self, base: str) -> str:
        if base not in self._taken:
            self._taken.add(base)
            return base
        stem = re.sub(r"_\d+$", "", base)
        n = self._serial.get(stem, 1) + 1
        while f"{stem}_{n}" in self._taken:
            n += 1
        self._serial[stem] = n
        self._taken.add(f"{stem}_{n}")
        return f"{stem}_{n}"


def _key(s: Load | Const | Index | Scalar, version: int) -> tuple[Any, ...]:
    """Equal for statements that compute the same; numbers by their repr, since 0.0 == -0.0 and 1 == True."""
    if isinstance(s, Scalar):
        return (s.op, s.dtype, s.args)
    if isinstance(s, Load):
        return ("load", s.buffer, s.index, s.mask, repr(s.other), version)
    return ("const", s.dtype, repr(s.value)) if isinstance(s, Const) else ("index", s.dtype, s.expr)


def emit_condition(weaver: Weaver, mask: Sequence[Dim], origin: str = "") -> str:
    """A bool value: every mask expression is >= 0."""
    keep = ""
    for m in mask:
        at = weaver.emit(Index("at", torch.int64, m, origin))
        zero = weaver.emit(Const("zero", torch.int64, 0, origin))
        here = weaver.emit(Scalar("inside", torch.bool, "ge", (at, zero), origin))
        keep = here if not keep else weaver.emit(Scalar("inside", torch.bool, "and", (keep, here), origin))
    return keep


def without_dead(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements that some store needs."""
    defines = {name for s in body for name in defined(s)}
    needed: set[str] = set()
    kept: list[Statement] = []
    for s in reversed(body):
        if isinstance(s, Store) or any(name in needed for name in defined(s)):
            kept.append(s)
            needed |= used_values(s, defines)
    return tuple(reversed(kept))


def identity(nest: Nest) -> dict[str, Dim]:
    """Every axis stays itself."""
    return {a.name: ex.sym(a.name, 0, a.extent) for a in nest.axes}


def without_idle_axes(nest: Nest) -> Nest:
    """The nest without axes of extent 1 or that nothing mentions; a Reduce or Scan whose axes would all go keeps one."""
    mentioned: set[str] = set()
    for s in nest.body:
        mentioned.update(*(names_in(d) for d in dims_of(s)))
        mentioned.update(s.axes if isinstance(s, Reduce) else (s.axis,) if isinstance(s, Scan) else ())
    ones = {a.name for a in nest.axes if a.extent == 1 or a.name not in mentioned}
    if not ones:
        return nest
    for s in nest.body:
        if isinstance(s, Reduce) and set(s.axes) <= ones:
            ones.discard(s.axes[0])
        elif isinstance(s, Scan):
            ones.discard(s.axis)
    zero: dict[str, Dim] = dict.fromkeys(ones, 0)
    body = tuple(_at(s, zero) for s in nest.body)
    return replace(nest, axes=tuple(a for a in nest.axes if a.name not in ones), body=body)


def _at(s: Statement, dims: Mapping[str, Dim]) -> Statement:
    """A statement with axes replaced by constants (dropped from a Reduce)."""
    if isinstance(s, Reduce):
        return replace(s, axes=tuple(a for a in s.axes if a not in dims))
    return with_dims(s, lambda d: ex.substitute(d, dims))


def with_dims(s: Statement, fn: Any) -> Statement:
    """A statement with ``fn`` applied to each of its index expressions."""
    if isinstance(s, Load):
        return replace(s, index=tuple(fn(d) for d in s.index), mask=tuple(fn(d) for d in s.mask))
    if isinstance(s, Store):
        return replace(s, index=tuple(fn(d) for d in s.index))
    return replace(s, expr=fn(s.expr)) if isinstance(s, Index) else s
