"""How a nest is run on the CPU: which loops, in which order, which one is vectorised, what threads share. The cost model.

A group of stores that live at the same parallel axes becomes one set of loops: the ``outer`` parallel axes, then, if the
``lane`` is parallel, blocks of it, then the reduction axes. Every innermost loop runs along the lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tinycompile.base import expr as ex
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.codegen.cpp.accumulators import ADDITIONS
from tinycompile.codegen.cpp.analysis import FlatNest, defined, locate, loops_of
from tinycompile.codegen.cpp.scalars import COST
from tinycompile.ir.loops import Axis, Load, Reduce, Scalar, Scan, Statement, Store

POINTWISE_BLOCK = 4096  # elements of a block without reductions: the unit that threads share
COLUMN_BLOCK = 1024  # lanes of a block with reductions, at most: accumulators stay in L1, each row gives a page in a stretch
COLUMN_UNIT = 64  # such blocks are multiples of it
BALANCED = 4  # blocks a thread from which on it matters little that one has one more
PANEL = 128  # rows of blocks where some loads are contiguous across the lanes, before those of the next lanes
CACHE_LINE = 64  # bytes that are read together
PAGE = 4096  # bytes in which a CPU foresees what is read
RUN = 256  # bytes that are written in a stretch, at least, where reading in order counts for more
AHEAD = 8192  # bytes between what is read and what is asked for, at least
SMALL = 8  # an axis shorter than this is a poor lane
UNKNOWN_SIZE = 1024  # what a size symbol without a hint is taken for


@dataclass(frozen=True, slots=True)
class Schedule:
    """``lane``: the axis of the innermost loops. ``block``: lanes in a block when the lane is parallel (0: it is none, or runs
    whole). ``inner``: reduction axes, outermost first. ``split``: the reduction axis that threads share where the parallel
    axes offer too little. ``tile``: the parallel axis along which some loads are contiguous instead of along the lane;
    ``tile_rows``: how much of it is in a block, ``panel`` in the blocks of the same lanes that follow each other. ``cost``:
    of one point. ``chunk``: values of a sum along the lane that make one part of its total. ``group``: elements along the lane
    that have accumulators of their own: four vectors of float32.
    ``each_line``: what is read along the lane comes from memory, and the CPU does not foresee it: it is asked for line by line.
    ``turns_ahead``: how many turns of the outer loops before, each pass over a row a share of them; 0: along the lane.
    """

    outer: tuple[Axis, ...]
    lane: Axis | None
    block: int
    inner: tuple[Axis, ...]
    split: str | None = None
    tile: Axis | None = None
    tile_rows: int = 0
    panel: int = 0
    cost: int = 1
    chunk: int = ADDITIONS * 8
    group: int = 16
    each_line: bool = False
    turns_ahead: int = 0

    @property
    def lane_is_parallel(self) -> bool:
        """Whether values and accumulators are arrays along the lane."""
        return self.lane is not None and self.lane.kind == "parallel"


def schedule(
    flat: FlatNest, body: Sequence[Statement], parallel: frozenset[str], hints: Mapping[str, int], target: Target
) -> Schedule:
    """Choose for the statements ``body`` of ``flat``, whose stores live at the ``parallel`` axes."""
    return _Choice(flat, body, parallel, hints, target).choose()


class _Choice:
    def __init__(
        self, flat: FlatNest, body: Sequence[Statement], parallel: frozenset[str], hints: Mapping[str, int], target: Target
    ) -> None:
        self.flat, self.body, self.hints, self.target = flat, body, hints, target
        axes = frozenset(a.name for a in flat.axes)
        at = locate(flat.body, axes)
        self.loops = [loops_of(s, at, axes) for s in body]
        used = frozenset[str]().union(*self.loops)
        self.parallel = [a for a in flat.axes if a.name in parallel]
        self.reduced = [a for a in flat.axes if a.kind == "reduction" and a.name in used]
        self.after = self._order_rules(at, axes)
        self.meets = any(isinstance(s, Store) and s.mode != "plain" for s in body)  # points may, along reduction axes

    def _order_rules(self, at: Mapping[str, frozenset[str]], axes: frozenset[str]) -> set[tuple[str, str]]:
        """Pairs (x, y) where the loop over x must enclose the loop over y: what a reduction leaves encloses what it drops."""
        rules: set[tuple[str, str]] = set()
        for s in self.body:
            if isinstance(s, Reduce):
                rules |= {(x, y) for x in at[defined(s)[0]] for y in s.axes}
            elif isinstance(s, Scan):
                rules |= {(x, s.axis) for x in at[s.names[0]] if x != s.axis}
        return rules

    def size(self, d: Dim) -> int:
        """The extent in the call being compiled, or a guess."""
        return ex.evaluate(d, {s.name: self.hints.get(s.name, UNKNOWN_SIZE) for s in ex.symbols(d)})

    def choose(self) -> Schedule:
        lane = self.lane()
        inner = self.inner_order(lane)
        first = next((s for s in self.body if isinstance(s, Store)), None)
        by_stores = self.by_stride((a for a in self.parallel if a != lane), first)
        outer = self.as_read(by_stores, lane) if lane and not inner else by_stores
        tile = self.tile_axis(lane, outer) if not inner and lane is not None and lane.kind == "parallel" else None
        block, rows, panel = self.tile_block(lane, tile) if lane and tile else (self.block(lane, outer, inner), 0, 0)
        items = self.count(outer) * (-(-self.size(lane.extent) // block) if lane and block else 1)
        split = inner[0].name if inner and self.shareable(inner[0], items) else None
        chunk = ADDITIONS * self.target.vector // 4  # so the error does not depend on the width
        foreseen = self.target.foresees and outer == by_stores and self.writes_much()
        each_line = not foreseen and self.bytes_read() > self.target.l2
        turns, group = self.turns_ahead(outer, inner) if each_line else 0, self.target.vector
        return Schedule(outer, lane, block, inner, split, tile, rows, panel, self.cost(), chunk, group, each_line, turns)

    def count(self, axes: Iterable[Axis]) -> int:
        total = 1
        for a in axes:
            total *= self.size(a.extent)
        return total

    def cost(self) -> int:
        """Additions an iteration point is worth."""
        return 1 + sum(COST.get(s.op, 1) for s in self.body if isinstance(s, Scalar)) // 2

    def happen(self, kind: type[Load] | type[Store]) -> list[tuple[Statement, int]]:
        """The accesses of a kind, and how often each happens."""
        axes = {a.name: a for a in self.flat.axes}
        both = zip(self.body, self.loops, strict=True)
        return [(s, self.count(axes[n] for n in loops)) for s, loops in both if isinstance(s, kind)]

    def bytes_read(self) -> int:
        """By all loads, each as often as it happens."""
        return sum(s.dtype.itemsize * times for s, times in self.happen(Load) if isinstance(s, Load))

    def writes_much(self) -> bool:
        """Whether a store happens a quarter as often as all loads."""
        stores, loads = ([times for _, times in self.happen(kind)] for kind in (Store, Load))
        return 4 * max(stores, default=0) >= sum(loads)

    def turns_ahead(self, outer: Sequence[Axis], inner: Sequence[Axis]) -> int:
        """As many turns of ``outer`` as read AHEAD, if they stay in the second cache until then."""
        turn = max(self.bytes_read() // max(self.count(outer), 1), 1)
        return -(-AHEAD // turn) if outer and inner and turn <= self.target.l2 // 4 else 0

    def accesses(self) -> list[tuple[Dim, float]]:
        """(offset, weight) of loads and stores. The weight is how often it happens, and more for a store: writing with a stride
        costs most."""
        axes = {a.name: a for a in self.flat.axes}
        return [
            (s.index[0], (1.5 if isinstance(s, Store) else 1.0) * self.count(axes[n] for n in loops))
            for s, loops in zip(self.body, self.loops, strict=True)
            if isinstance(s, (Load, Store))
        ]

    def lane(self) -> Axis | None:
        """The axis along which most accesses are contiguous and fewest are strided; of equals the innermost."""
        best, best_score = None, (False, -1e30)
        for axis in [*self.parallel, *self.reduced]:
            if not self.may_be_lane(axis):
                continue
            score = 0.0
            for offset, weight in self.accesses():
                step = ex.coefficient(offset, axis.name)
                score += weight if step == 1 else 0 if step == 0 else -weight
            key = (self.size(axis.extent) >= SMALL, score)
            if key >= best_score:
                best, best_score = axis, key
        return best

    def may_be_lane(self, axis: Axis) -> bool:
        """A scan runs in order, and so do points that may meet, but for an axis along which they are written in a stretch. A
        reduction axis must be able to stand innermost. And where a scan runs along the contiguous
        axis, a lane across it would read with strides: then there is none."""
        scanned = {s.axis for s in self.body if isinstance(s, Scan)}
        if axis.name in scanned or (self.meets and not self.writes_along(axis)):
            return False
        if scanned and not any(ex.coefficient(offset, axis.name) == 1 for offset, _ in self.accesses()):
            return False
        return axis.kind == "parallel" or not any(x == axis.name for x, _ in self.after)

    def writes_along(self, axis: Axis) -> bool:
        """Whether the stores walk memory element by element along an axis, and points never meet there."""
        offsets = (s.index[0] for s in self.body if isinstance(s, Store))
        return axis.kind == "parallel" and all(ex.coefficient(d, axis.name) == 1 for d in offsets)

    def by_stride(self, axes: Iterable[Axis], s: Load | Store | None) -> tuple[Axis, ...]:
        """Outermost first: the order in which an access walks memory."""
        return tuple(sorted(axes, key=lambda a: self.stride(s, a), reverse=True) if s is not None else axes)

    def stride(self, s: Load | Store, axis: Axis) -> int:
        """Elements between neighbours along ``axis``, where that is known; else 0."""
        step = ex.coefficient(s.index[0], axis.name)
        return self.size(step) if step is not None else 0

    def as_read(self, outer: tuple[Axis, ...], lane: Axis) -> tuple[Axis, ...]:
        """``outer``, outermost first, in the order of the stores; or of the loads, where those read rows of less than a page
        that lie far apart in the order of the stores: no CPU foresees them, and a row that is written anywhere costs less. The
        pages that are then written in turns must stay in the second cache. What lacks an axis doesn't count. Measured with
        heads of 16 to 128 to the front: 0.83 to 0.97 of the time."""
        whole = [s for s in self.body if isinstance(s, (Load, Store)) and all(self.stride(s, a) for a in outer)]
        loads = [s for s in whole if isinstance(s, Load)]
        orders = {self.by_stride(outer, s) for s in loads}
        if len(orders) != 1 or outer in orders or not all(is_along(s, lane) for s in whole):
            return outer
        (order,) = orders
        rows = [self.size(lane.extent) * s.dtype.itemsize for s in loads]
        pages = self.count(order[order.index(outer[-1]) + 1 :])
        return order if min(rows) >= RUN and max(rows) < PAGE and 2 * pages * PAGE <= self.target.l2 else outer

    def inner_order(self, lane: Axis | None) -> tuple[Axis, ...]:
        """Reduction axes so that every rule holds, the lane last, else as the nest has them."""
        waiting = sorted(self.reduced, key=lambda a: a == lane)
        placed: list[Axis] = []
        while waiting:
            names = {a.name for a in waiting}
            free = next((a for a in waiting if not any(y == a.name and x in names and x != y for x, y in self.after)), None)
            if free is None:
                raise BackendError(f"nest {self.flat.name}: its reductions and scans fit into no one order of loops")
            placed.append(free)
            waiting.remove(free)
        return tuple(placed)

    def block(self, lane: Axis | None, outer: Sequence[Axis], inner: Sequence[Axis]) -> int:
        if lane is None or lane.kind != "parallel":
            return 0
        block = self.column_block(lane, max(self.count(outer), 1)) if inner else POINTWISE_BLOCK
        if isinstance(lane.extent, int) and lane.extent <= block:
            return 0
        return block

    def column_block(self, lane: Axis, items: int) -> int:
        """Lanes of a block with reductions, so that threads get as many blocks each. ``items``: times that lanes are walked."""
        size = self.size(lane.extent)
        pieces = max(-(-size // COLUMN_BLOCK), 1)
        if items * pieces < BALANCED * self.target.units:
            pieces = -(-items * pieces // self.target.units) * self.target.units // items
        return max(-(-size // (pieces * COLUMN_UNIT)), 1) * COLUMN_UNIT

    def shareable(self, axis: Axis, items: int) -> bool:
        """Whether threads had better share this reduction axis than the ``items`` parallel pieces of work."""
        per_item = self.count(self.reduced)
        scanned = any(isinstance(s, Scan) and s.axis == axis.name for s in self.body)
        return (
            not scanned and not self.meets and items < self.target.units and per_item >= 32768 and self.size(axis.extent) >= 64
        )

    def tile_axis(self, lane: Axis | None, outer: Sequence[Axis]) -> Axis | None:
        """An outer axis along which an unmasked load is contiguous while it strides along the lane."""
        if lane is None or self.size(lane.extent) < 16:
            return None
        for axis in outer:
            if self.size(axis.extent) >= 16 and any(is_across(s, axis, lane) for s in self.body):
                return axis
        return None

    def tile_block(self, lane: Axis, tile: Axis) -> tuple[int, int, int]:
        """Lanes and rows of a block, and rows of a panel of blocks: a line of what is contiguous along the lanes by a line of
        what is along the rows, which stays in L1; where a panel ends, a few lines of the latter have been read from each page.
        Measured with 2048 by 2048 elements: 0.8 of the time of blocks of 64 lanes of 64 rows of float32, 0.75 of 64 lanes of
        128 rows of bfloat16; panels of half or twice as many rows take 1.02 of the time, two lines a block 1.15."""
        sizes = [(s.dtype.itemsize, is_across(s, tile, lane)) for s in self.body if isinstance(s, Load) and not s.mask]
        lanes = self.part(lane, CACHE_LINE // min(size for size, _ in sizes))
        rows = self.part(tile, CACHE_LINE // min(size for size, across in sizes if across))
        return lanes, rows, max(PANEL // rows, 1) * rows if self.size(tile.extent) > rows else rows

    def part(self, axis: Axis, line: int) -> int:
        """As much of an axis as a line has elements, or all of it where a second line would not be full."""
        size = self.size(axis.extent)
        return size if size < 2 * line else line


def is_across(s: Statement, tile: Axis, lane: Axis) -> TypeGuard[Load]:
    """Whether a statement loads what is contiguous along ``tile`` and strided along ``lane``."""
    if not isinstance(s, Load) or s.mask or len(s.index) > 1:
        return False
    return ex.coefficient(s.index[0], tile.name) == 1 and ex.coefficient(s.index[0], lane.name) not in (0, 1, None)


def is_along(s: Statement, lane: Axis) -> TypeGuard[Load | Store]:
    """Whether a statement loads or stores what is contiguous along ``lane``."""
    if not isinstance(s, (Load, Store)) or len(s.index) > 1:
        return False
    plain = s.mode == "plain" if isinstance(s, Store) else not s.mask
    return plain and ex.coefficient(s.index[0], lane.name) == 1
