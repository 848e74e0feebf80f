"""What a nest reads and writes, where, and what must run before what."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.ir.effects import is_pure, may_refuse, written
from tinycompile.ir.graph import Node, Ref
from tinycompile.ir.loops import Const, ExternCall, Index, Load, Nest, Reduce, Scalar, Scan, Statement, Store, TensorView

Step = Nest | ExternCall

# Relative cost of one evaluation; what is not named costs 1. Only ratios matter.
WEIGHTS: Mapping[str, int] = {
    "div": 4, "sqrt": 4, "rsqrt": 4, "reciprocal": 4, "exp": 6, "exp2": 4, "log": 6, "log2": 4, "log10": 6, "sigmoid": 10,
    "tanh": 14, "erf": 16, "erfc": 16, "expm1": 12, "log1p": 12, "sin": 16, "cos": 16, "tan": 20, "pow": 24, "atan2": 24,
    "asin": 20, "acos": 20, "atan": 20, "sinh": 16, "cosh": 16, "asinh": 20, "acosh": 20, "atanh": 20, "lgamma": 40,
    "philox": 60, "floordiv": 12, "truncdiv": 12, "mod": 12, "fmod": 16, "cast": 1, "where": 1,
}  # fmt: skip
_DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "fmod"})
_ORDERED_KINDS = frozenset({"argmax", "argmin"})


@functools.lru_cache(maxsize=65536)
def names_in(d: Dim) -> frozenset[str]:
    """The names of all symbols in a dim."""
    return frozenset(s.name for s in ex.symbols(d))


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store. ``axes``: those at which it happens, also through indirect indices and (stores) the value.
    ``kind``: ``load``, ``store`` or ``atomic``."""

    buffer: str
    index: tuple[Dim, ...]
    axes: frozenset[str]
    kind: str = "load"
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What the planner needs to know of a nest. ``reduction``: axes that a Reduce or Scan runs over. ``ordered``: their order
    matters (argmax, scans). ``faults``: it divides integers by what is no constant or checks an index, so it must not run on
    made-up values."""

    axes: Mapping[str, Dim]
    reduction: frozenset[str]
    ordered: bool
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    weight: int
    faults: bool

    @property
    def pointwise(self) -> bool:
        """No Reduce and no Scan."""
        return not self.reduction

    @property
    def parallel(self) -> frozenset[str]:
        """The axes that nothing reduces over."""
        return frozenset(self.axes) - self.reduction


def value_axes(nest: Nest) -> dict[str, frozenset[str]]:
    """The axes at which each SSA value lives."""
    axes = frozenset(a.name for a in nest.axes)
    lives: dict[str, frozenset[str]] = {}
    for stmt in nest.body:
        at = statement_axes(stmt, axes, lives)
        for name in defined(stmt):
            lives[name] = at
    return lives


def statement_axes(stmt: Statement, axes: frozenset[str], lives: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The axes at which a statement's result (or its store) exists, given those of the values before it."""
    found: set[str] = set()
    for d in dims_of(stmt):
        for name in names_in(d):
            if name in axes:
                found.add(name)
            elif name in lives:
                found |= lives[name]
    for arg in args_of(stmt):
        found |= lives[arg]
    if isinstance(stmt, Reduce):
        found -= set(stmt.axes)
    elif isinstance(stmt, Scan):
        found.add(stmt.axis)
    return frozenset(found)


def dims_of(stmt: Statement) -> tuple[Dim, ...]:
    """Every index expression in a statement."""
    if isinstance(stmt, Load):
        return stmt.index + stmt.mask
    if isinstance(stmt, Store):
        return stmt.index
    return (stmt.expr,) if isinstance(stmt, Index) else ()


def args_of(stmt: Statement) -> tuple[str, ...]:
    """The values a statement names as arguments (indirect indices not included)."""
    if isinstance(stmt, (Scalar, Reduce, Scan)):
        return stmt.args
    return (stmt.value,) if isinstance(stmt, Store) else ()


def defined(stmt: Statement) -> tuple[str, ...]:
    """The values a statement defines."""
    if isinstance(stmt, (Reduce, Scan)):
        return stmt.names
    return () if isinstance(stmt, Store) else (stmt.name,)


def used_values(stmt: Statement, known: Container[str]) -> set[str]:
    """Arguments and indirect indices, among the ``known`` value names."""
    used = set(args_of(stmt))
    for d in dims_of(stmt):
        used |= {n for n in names_in(d) if n in known}
    return used


def analyse(nest: Nest) -> Facts:
    """Read off the facts of one nest."""
    axes = frozenset(a.name for a in nest.axes)
    lives: dict[str, frozenset[str]] = {}
    constants: dict[str, Any] = {}
    loads: list[Access] = []
    stores: list[Access] = []
    reduction: set[str] = set()
    weight, ordered, faults = 0, False, False
    for stmt in nest.body:
        at = statement_axes(stmt, axes, lives)
        lives.update(dict.fromkeys(defined(stmt), at))
        if isinstance(stmt, Load):
            loads.append(Access(stmt.buffer, stmt.index, at, "load", bool(stmt.mask)))
        elif isinstance(stmt, Store):
            stores.append(Access(stmt.buffer, stmt.index, at, "store" if stmt.mode == "plain" else "atomic"))
        elif isinstance(stmt, Scalar):
            weight += WEIGHTS.get(stmt.op, 1)
            if stmt.op in _DIVISIONS:
                by = constants.get(stmt.args[1])
                faults |= not stmt.dtype.is_floating_point and (isinstance(by, ex.Expr) or not by)
            faults |= stmt.op == "checked"
        elif isinstance(stmt, Const):
            constants[stmt.name] = stmt.value
        elif isinstance(stmt, Reduce):
            reduction |= set(stmt.axes)
            weight += 2 * len(stmt.names)
            ordered |= stmt.kind in _ORDERED_KINDS
        elif isinstance(stmt, Scan):
            reduction.add(stmt.axis)
            ordered = True
    extents = {a.name: a.extent for a in nest.axes}
    return Facts(extents, frozenset(reduction), ordered, tuple(loads), tuple(stores), weight, faults)


def views_in(arg: Any) -> list[str]:
    """The buffers that an extern call's argument (or a plan's outputs) mentions."""
    if isinstance(arg, TensorView):
        return [arg.buffer]
    if isinstance(arg, (tuple, list)):
        return [name for item in arg for name in views_in(item)]
    return []


def reads_of(step: Step) -> frozenset[str]:
    """The buffers that a step reads."""
    if isinstance(step, ExternCall):
        return frozenset(views_in(step.args) + views_in(tuple(v for _, v in step.kwargs)))
    return frozenset(s.buffer for s in step.body if isinstance(s, Load))


def _refs(arg: Any) -> Any:
    if isinstance(arg, TensorView):
        return Ref(arg.buffer)
    return tuple(map(_refs, arg)) if isinstance(arg, (tuple, list)) else arg


def _node(call: ExternCall) -> Node:
    kwargs = tuple((k, _refs(v)) for k, v in call.kwargs)
    return Node(call.name, call.kind, call.target, _refs(call.args), kwargs)


def changed_by(call: ExternCall) -> list[str]:
    """The buffers that a library call changes in place."""
    return [ref.name for ref in written(_node(call))]


def writes_of(step: Step) -> frozenset[str]:
    """The buffers that a step writes, makes, or changes in place."""
    if isinstance(step, ExternCall):
        return frozenset([*(o for o in step.outputs if o is not None), *changed_by(step)])
    return frozenset(s.buffer for s in step.body if isinstance(s, Store))


def may_fail(nest: Nest) -> bool:
    """Whether a kernel can find at run time that torch must redo the call: an index out of range, an integer divided by 0."""
    values = {name for s in nest.body for name in defined(s)}
    indirect = any(names_in(d) & values for s in nest.body if isinstance(s, (Load, Store)) for d in s.index)
    return indirect or analyse(nest).faults


def predecessors(steps: Sequence[Step], inputs: Container[str] = ()) -> list[set[int]]:
    """For each step the earlier ones that must run before it: it reads what they write, or overwrites what they touch.

    Calls that draw random numbers, or of which nothing is known, stay in order among themselves. What writes to ``inputs``
    waits for all that may fail, so that a call can be redone."""
    failing = [i for i, s in enumerate(steps) if (may_fail(s) if isinstance(s, Nest) else may_refuse(s.target))]
    impure: int | None = None
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    before: list[set[int]] = []
    for i, step in enumerate(steps):
        reads, writes = reads_of(step), writes_of(step)
        needs: set[int] = set()
        for name in reads:
            needs.update(writers.get(name, ()))
        for name in writes:
            needs.update(writers.get(name, ()))
            needs.update(readers.get(name, ()))
            if name in inputs:
                needs.update(j for j in failing if j < i)
        if isinstance(step, ExternCall) and not is_pure(_node(step)):
            needs.update(() if impure is None else (impure,))
            impure = i
        needs.discard(i)
        before.append(needs)
        for name in reads:
            readers.setdefault(name, []).append(i)
        for name in writes:
            writers.setdefault(name, []).append(i)
    return before


class Reach:
    """Which nodes can be reached from which, as bit sets, kept up to date while nodes are merged."""

    def __init__(self, before: Sequence[set[int]]) -> None:
        count = len(before)
        self.above = [0] * count
        self.below = [0] * count
        for i, needs in enumerate(before):
            for j in needs:
                self.above[i] |= self.above[j] | (1 << j)
        for i in range(count - 1, -1, -1):
            for j in before[i]:
                self.below[j] |= self.below[i] | (1 << i)

    def between(self, a: int, b: int) -> int:
        """The set of third nodes on a path between ``a`` and ``b``, in either direction."""
        outside = ~((1 << a) | (1 << b))
        return ((self.below[a] & self.above[b]) | (self.below[b] & self.above[a])) & outside

    def merge(self, a: int, b: int) -> None:
        """``b`` becomes part of ``a``."""
        gone = ~((1 << a) | (1 << b))
        self.above[a] = (self.above[a] | self.above[b]) & gone
        self.below[a] = (self.below[a] | self.below[b]) & gone
        below, above = self.below[a] | (1 << a), self.above[a] | (1 << a)
        clear_b = ~(1 << b)
        for i in bits(self.above[a]):
            self.below[i] = (self.below[i] | below) & clear_b
        for i in bits(self.below[a]):
            self.above[i] = (self.above[i] | above) & clear_b


def bits(mask: int) -> list[int]:
    """The positions of the set bits."""
    octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return found
