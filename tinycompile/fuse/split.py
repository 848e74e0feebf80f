"""Split reductions: one with too few rows for the target becomes two nests, joined by a buffer of partial results.

The first nest reduces chunks of the outermost reduction axis, in parallel; the second combines them and does what followed.
Welford combines as Chan, Golub and LeVeque (1983): ``mean = sum(n_k*mean_k)/n``,
``m2 = sum(m2_k) + sum(n_k*(mean_k - mean)^2)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.fuse.coalesce import fastest_is_parallel
from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import analyse, defined, statement_axes, used_values
from tinycompile.fuse.weave import Weaver, emit_condition, with_dims, without_dead
from tinycompile.ir.loops import Axis, Buffer, Const, Index, Load, Nest, Reduce, Scalar, Scan, Statement, Store

WHOLE = 16384  # elements that a program keeps in registers


@dataclass(frozen=True, slots=True)
class Split:
    """How a nest is split: ``axis`` into ``count`` chunks of ``chunk`` (the last may be shorter unless ``even``)."""

    axis: Axis
    count: int
    chunk: Dim
    even: bool


@dataclass(frozen=True, slots=True)
class _Parts:
    """A nest's statements: ``before`` any reduction's result is needed, and ``after``. ``lives``: value -> axes."""

    before: tuple[Statement, ...]
    reduces: tuple[Reduce, ...]
    after: tuple[Statement, ...]
    lives: Mapping[str, frozenset[str]]


def choose(nest: Nest, cost: Cost) -> Split | None:
    """Whether and how to split a nest."""
    facts = analyse(nest)
    accesses = (*facts.loads, *facts.stores)
    if not cost.starved(facts.axes, facts.reduction, accesses) or _parts(nest) is None:
        return None
    axis = next(a for a in nest.axes if a.kind == "reduction")  # outermost: chunks are whole stretches of memory
    wanted = math.ceil(cost.limits.wanted / max(cost.programs(facts.axes, facts.reduction, accesses), 1))
    if cost.size(axis.extent) * 2 < wanted:
        axis = max((a for a in nest.axes if a.kind == "reduction"), key=lambda a: cost.size(a.extent))
    extent = cost.size(axis.extent)
    lanes = cost.limits.lanes if fastest_is_parallel(nest, accesses, cost) else 1
    wanted = min(wanted, max(cost.points(facts.axes, facts.reduction) * lanes // cost.limits.least_chunk, 2), extent)
    if wanted < 2:
        return None
    even = _divisor_near(axis.extent, wanted)
    if even is not None:
        return Split(axis, even, ex.floordiv(axis.extent, even), True)
    full_stores = any(a.axes & facts.reduction for a in facts.stores)
    if facts.faults or full_stores:  # neither may happen at points beyond the end
        return None
    align = next(a for a in (1024, 64, 16, 1) if a == 1 or extent >= 8 * a * wanted)  # chunks begin at aligned addresses
    chunk = ex.ceildiv(axis.extent, wanted * align) * align
    if isinstance(chunk, int) and any(s.kind == "welford" for s in nest.body if isinstance(s, Reduce)):
        chunk = min(1 << (chunk.bit_length() - 1), WHOLE)  # its mean comes first: a chunk that is kept is not read twice
    return Split(axis, math.ceil(extent / chunk) if isinstance(chunk, int) else wanted, chunk, False)


def _divisor_near(extent: Dim, wanted: int) -> int | None:
    """A divisor of ``extent`` between half of ``wanted`` and twice it, the nearest."""
    if not isinstance(extent, int):
        return None
    near = [d for d in range(max(2, wanted // 2), min(extent, 2 * wanted) + 1) if extent % d == 0]
    return min(near, key=lambda d: abs(math.log(d / wanted)), default=None)


def _parts(nest: Nest) -> _Parts | None:
    """The statements by place; None when something over the full space needs a reduction's result, or a kind does not split."""
    axes = frozenset(a.name for a in nest.axes)
    reduction = frozenset(a.name for a in nest.axes if a.kind == "reduction")
    lives: dict[str, frozenset[str]] = {}
    fed: set[str] = set()
    before: list[Statement] = []
    after: list[Statement] = []
    reduces: list[Reduce] = []
    for s in nest.body:
        at = statement_axes(s, axes, lives)
        lives.update(dict.fromkeys(defined(s), at))
        needs = bool(used_values(s, lives) & fed)
        if isinstance(s, Scan):
            return None
        if isinstance(s, Reduce):
            if needs or frozenset(s.axes) != reduction or s.kind.startswith("arg"):
                return None
            reduces.append(s)
            fed.update(s.names)
        elif needs:
            if at & reduction:
                return None
            after.append(s)
            fed.update(defined(s))
        else:
            rows_only = isinstance(s, Store) and not at & reduction
            (after if rows_only else before).append(s)
    return _Parts(tuple(before), tuple(reduces), tuple(after), lives)


def split(nest: Nest, how: Split, cost: Cost, taken: set[str]) -> tuple[Nest, Nest, tuple[Buffer, ...]]:
    """The two nests and the buffers between them. ``taken``: names that are in use."""
    return _Splitter(nest, how, cost, taken).run()


class _Splitter:
    def __init__(self, nest: Nest, how: Split, cost: Cost, taken: set[str]) -> None:
        parts = _parts(nest)
        assert parts is not None
        self.nest, self.how, self.cost, self.parts, self.taken = nest, how, cost, parts, taken
        self.rows = [a for a in nest.axes if a.kind == "parallel"]
        values = {name for s in nest.body for name in defined(s)}
        names = {a.name for a in nest.axes} | values | taken
        self.part = Axis(_fresh("part", names), how.count)
        self.inner = Axis(how.axis.name, how.chunk, "reduction")
        self.at = ex.sym(self.part.name, 0, how.count)
        start = self.at * how.chunk
        self.position = start + ex.sym(self.inner.name, 0, how.chunk)
        self.left = how.axis.extent - start  # points from the chunk's start to the end
        facts = analyse(nest)
        self.part_first = fastest_is_parallel(nest, (*facts.loads, *facts.stores), cost)
        self.device = cost.buffers[(facts.stores or facts.loads)[0].buffer].meta.device
        self.buffers: list[Buffer] = []
        self.others = ex.product(a.extent for a in nest.axes if a.kind == "reduction" and a.name != how.axis.name)

    def run(self) -> tuple[Nest, Nest, tuple[Buffer, ...]]:
        order = [self.part.name, *(a.name for a in self.nest.axes)]
        first, second = Weaver(self.cost.buffers, order), Weaver(self.cost.buffers, order)
        names: dict[str, str] = {}  # what the nest's values are called in the first, then in the second nest
        for s in self.parts.before:
            _emit(first, self.chunked(s), names)
        partial = [self.reduce_chunk(first, replace(r, args=tuple(names[a] for a in r.args))) for r in self.parts.reduces]
        names = {}
        for s in self.parts.before:
            if not self.over_chunk(s):
                _emit(second, s, names)
        for r, buffers in zip(self.parts.reduces, partial, strict=True):
            names.update(zip(r.names, self.combine(second, r, buffers), strict=True))
        for s in self.parts.after:
            _emit(second, s, names)
        return (*self.nests(first, second), tuple(self.buffers))

    def nests(self, first: Weaver, second: Weaver) -> tuple[Nest, Nest]:
        chunked = tuple(self.inner if a.name == self.inner.name else a for a in self.nest.axes)
        one = Nest(f"{self.nest.name}_partial", (self.part, *chunked), without_dead(first.body), self.nest.origins)
        part = replace(self.part, kind="reduction")
        axes = (part, *self.rows) if self.part_first else (*self.rows, part)
        return one, Nest(self.nest.name, axes, without_dead(second.body), self.nest.origins)

    def over_chunk(self, s: Statement) -> bool:
        names = defined(s)
        reduction = {a.name for a in self.nest.axes if a.kind == "reduction"}
        return bool(names and self.parts.lives[names[0]] & reduction) or isinstance(s, Store)

    def chunked(self, s: Statement) -> Statement:
        """The statement at the chunk's points; loads beyond the end of an uneven split read nothing."""
        dims = {self.how.axis.name: self.position}
        moved = with_dims(s, lambda d: ex.substitute(d, dims))
        if isinstance(moved, Load) and not self.how.even and self.over_chunk(s):
            return replace(moved, mask=(*moved.mask, self.bound()))
        return moved

    def bound(self) -> Dim:
        return self.how.axis.extent - 1 - self.position

    # -- first nest ------------------------------------------------------------------------------------------------

    def reduce_chunk(self, w: Weaver, r: Reduce) -> list[Buffer]:
        """Reduce one chunk and store it; returns the buffers."""
        values: tuple[str, ...]
        if r.kind == "welford" and not self.how.even:
            values = self.welford_of_short_chunk(w, r)
        else:
            args = r.args if self.how.even else tuple(self.inside(w, r, a, identity_of(r.kind, r.dtypes[0])) for a in r.args)
            values = w.emit_reduce(replace(r, args=args, names=tuple(f"{n}_part" for n in r.names)))
        stored = []
        for name, value, dtype in zip(r.names, values, r.dtypes, strict=True):
            buffer = self.partial_buffer(name, dtype)
            w.body.append(Store(buffer.name, self.place(), value, origin=r.origin))
            stored.append(buffer)
        return stored

    def inside(self, w: Weaver, r: Reduce, value: str, other: Any) -> str:
        """``value``, or ``other`` beyond the end."""
        if other == 0 and _is_plain_load(w, value):
            return value  # a masked load gives 0 there
        keep = emit_condition(w, (self.bound(),), r.origin)
        nothing = w.emit(Const(f"{value}_none", w.dtypes[value], other, r.origin))
        return w.emit(Scalar(f"{value}_in", w.dtypes[value], "where", (keep, value, nothing), r.origin))

    def welford_of_short_chunk(self, w: Weaver, r: Reduce) -> tuple[str, str]:
        """A welford over a known count does not fit a chunk that may be shorter: two sums do."""
        (x,), dtype, (mean, m2) = r.args, r.dtypes[0], r.names
        total = w.emit_reduce(Reduce((f"{mean}_sum",), (dtype,), "sum", (self.inside(w, r, x, 0.0),), r.axes, r.origin))[0]
        count = self.count(w, dtype, r.origin)
        mean_k = w.emit(Scalar(f"{mean}_part", dtype, "div", (total, count), r.origin))
        off = w.emit(Scalar(f"{x}_off", dtype, "sub", (x, mean_k), r.origin))
        square = w.emit(Scalar(f"{x}_square", dtype, "mul", (off, off), r.origin))
        kept = self.inside(w, r, square, 0.0)
        return mean_k, w.emit_reduce(Reduce((f"{m2}_part",), (dtype,), "sum", (kept,), r.axes, r.origin))[0]

    def count(self, w: Weaver, dtype: torch.dtype, origin: str) -> str:
        """The number of points of the chunk; at least 1, so that an empty chunk divides by something."""
        points = ex.maximum(ex.minimum(self.left, self.how.chunk), 1) * self.others
        if isinstance(points, int):
            return w.emit(Const("count", dtype, float(points), origin))
        return w.emit(Scalar("count", dtype, "cast", (w.emit(Index("points", torch.int64, points, origin)),), origin))

    def partial_buffer(self, name: str, dtype: torch.dtype) -> Buffer:
        rows = tuple(a.extent for a in self.rows)
        shape = (self.how.count, *rows) if self.part_first else (*rows, self.how.count)
        unique = _fresh(f"{name}_part", self.taken)
        self.taken.add(unique)
        buffer = Buffer(unique, TensorMeta.contiguous(shape, dtype, self.device))
        self.buffers.append(buffer)
        return buffer

    def place(self) -> tuple[Dim, ...]:
        rows = tuple(ex.sym(a.name, 0, a.extent) for a in self.rows)
        return (self.at, *rows) if self.part_first else (*rows, self.at)

    # -- second nest -----------------------------------------------------------------------------------------------

    def combine(self, w: Weaver, r: Reduce, partial: list[Buffer]) -> tuple[str, ...]:
        """Reduce the chunks' results to what the whole reduction would give; returns the values' names."""
        parts = [w.emit(Load(f"{b.name}_k", b.meta.dtype, b.name, self.place(), origin=r.origin)) for b in partial]
        if r.kind == "welford":
            return self.combine_welford(w, r, *parts)
        if r.kind == "online_softmax":
            return self.combine_softmax(w, r, *parts)
        return w.emit_reduce(replace(r, args=tuple(parts), axes=(self.part.name,)))

    def sum(self, w: Weaver, r: Reduce, name: str, value: str) -> str:
        return w.emit_reduce(Reduce((name,), (w.dtypes[value],), "sum", (value,), (self.part.name,), r.origin))[0]

    def combine_welford(self, w: Weaver, r: Reduce, mean_k: str, m2_k: str) -> tuple[str, str]:
        dtype, (mean, m2), origin = r.dtypes[0], r.names, r.origin

        def op(name: str, word: str, *args: str) -> str:
            return w.emit(Scalar(name, dtype, word, args, origin))

        n_k = self.count(w, dtype, origin)
        n = w.emit(Const("count_all", dtype, _number(self.how.axis.extent * self.others), origin))
        weighted = op(f"{mean}_weighted", "mul", mean_k, self.live(w, n_k, dtype, origin))
        whole = op(mean, "div", self.sum(w, r, f"{mean}_total", weighted), n)
        off = op(f"{mean}_off", "sub", mean_k, whole)
        between = op(f"{mean}_between", "mul", op(f"{mean}_off2", "mul", off, off), self.live(w, n_k, dtype, origin))
        return whole, op(m2, "add", self.sum(w, r, f"{m2}_within", m2_k), self.sum(w, r, f"{m2}_between", between))

    def live(self, w: Weaver, n_k: str, dtype: torch.dtype, origin: str) -> str:
        """The chunk's count, 0 where a chunk of a symbolic size begins beyond the end."""
        if self.how.even or ex.at_least(self.left, 1):
            return n_k
        keep = emit_condition(w, (self.left - 1,), origin)
        zero = w.emit(Const("none", dtype, 0.0, origin))
        return w.emit(Scalar("live", dtype, "where", (keep, n_k, zero), origin))

    def combine_softmax(self, w: Weaver, r: Reduce, max_k: str, sum_k: str) -> tuple[str, str]:
        dtype, (top, total), origin = r.dtypes[0], r.names, r.origin

        def op(name: str, word: str, *args: str, to: torch.dtype = dtype) -> str:
            return w.emit(Scalar(name, to, word, args, origin))

        whole = w.emit_reduce(Reduce((top,), (dtype,), "max", (max_k,), (self.part.name,), origin))[0]
        scaled = op(f"{total}_scaled", "mul", sum_k, op("scale", "exp", op("below", "sub", max_k, whole)))
        lowest = w.emit(Const("lowest", dtype, -math.inf, origin))
        empty = op("empty", "eq", max_k, lowest, to=torch.bool)  # exp(-inf - -inf) is nan
        zero = w.emit(Const("none", dtype, 0.0, origin))
        return whole, self.sum(w, r, total, op(f"{total}_k", "where", empty, zero, scaled))


def _is_plain_load(w: Weaver, value: str) -> bool:
    """Whether a value is a load, perhaps cast, that gives 0 beyond the end."""
    made = {s.name: s for s in w.body if isinstance(s, (Load, Scalar))}
    s = made.get(value)
    if isinstance(s, Scalar) and s.op == "cast" and s.dtype is not torch.bool:
        s = made.get(s.args[0])
    return isinstance(s, Load) and len(s.mask) == 1 and s.other == 0


def identity_of(kind: str, dtype: torch.dtype) -> Any:
    """What a point contributes that is not there."""
    if kind in ("any", "all"):
        return kind == "all"
    if kind in ("sum", "prod"):
        return (1 if kind == "prod" else 0) if not dtype.is_floating_point else float(kind == "prod")
    if dtype is torch.bool:
        return kind == "min"
    lowest = kind in ("max", "online_softmax")
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def _emit(weaver: Weaver, s: Statement, names: dict[str, str]) -> None:
    """Append a statement whose values are called as ``names`` says, and note what its own value is called."""
    moved = _renamed(s, names)
    if isinstance(moved, Store):
        weaver.body.append(moved)
    elif not isinstance(moved, (Reduce, Scan)):
        names[moved.name] = weaver.emit(moved)


def _number(d: Dim) -> Any:
    return float(d) if isinstance(d, int) else d


def _renamed(s: Statement, names: Mapping[str, str]) -> Statement:
    if isinstance(s, Store):
        s = replace(s, value=names.get(s.value, s.value))
    elif isinstance(s, (Scalar, Reduce, Scan)):
        s = replace(s, args=tuple(names.get(a, a) for a in s.args))
    moved = {old: new for old, new in names.items() if old != new}

    def dim(d: Dim) -> Dim:
        found = {x.name: ex.sym(moved[x.name], x.lo, x.stop) for x in ex.symbols(d) if x.name in moved}
        return ex.substitute(d, found)

    return with_dims(s, dim) if moved else s


def _fresh(base: str, taken: set[str]) -> str:
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name
