"""Writes the loops of one group of stores: the recursion from open axes to straight-line code.

``scope`` stands at a point where some axes are open. It orders what is wanted there into *stages*: a reduction that is
complete here separates what feeds it from what uses it. Each stage first computes what needs no further loop, then opens one
loop per axis that its roots (stores and reductions) need next. Values needed in a later loop are computed there again, unless
they are kept.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tinycompile.codegen.cpp.accumulators import (
    ADDITIONS,
    Accumulator,
    has_own_type,
    needs_two_levels,
    part_length,
    scan_state,
)
from tinycompile.codegen.cpp.analysis import FlatNest, defined, dtypes_of
from tinycompile.codegen.cpp.dependences import Dependences, Open
from tinycompile.codegen.cpp.fetch import PIECE, claims, group_ahead, later_turn, named_rows, picked_rows, stretches
from tinycompile.codegen.cpp.groups import can_group, group_loops, group_of
from tinycompile.codegen.cpp.jam import JAM, can_jam, jammed_rows
from tinycompile.codegen.cpp.kept import Keep, Pass, keep_dear
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.outer import outer_loops
from tinycompile.codegen.cpp.scalars import C_TYPES, MEMORY_TYPES, c_read
from tinycompile.codegen.cpp.scans import blocked_scans, scanned_blocks
from tinycompile.codegen.cpp.schedule import Schedule, is_along
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.cpp.tiles import tile_lines
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Axis, Index, Load, Reduce, Scalar, Scan, Statement, Store

SHARE_UNIT = 64  # threads share the lane in multiples of this


class LoopNest:
    """Writes one group into ``out``."""

    def __init__(self, flat: FlatNest, plan: Schedule, text: Statements, names: Names, out: Writer) -> None:
        self.flat, self.plan, self.text, self.names, self.out = flat, plan, text, names, out
        self.body, self.dtypes = flat.body, dtypes_of(flat.body)
        self.lanes = plan.lane if plan.lane_is_parallel else None  # the axis along which values are arrays
        self.deps = Dependences(flat, [*plan.outer, *([self.lanes] if self.lanes else []), *plan.inner], text.has)
        self.loops = self.deps.loops
        self.accumulators: dict[int, Accumulator] = {}
        self.kept: dict[str, str] = {}
        self.fetched: set[str] = set()  # loads of a row that an earlier pass makes, too
        self.share = (0, 1)  # which pass over a row this is, of how many: each asks for a part of a later turn's
        self.claimed: list[int] = []  # the stores of the next pass over a row: the current one asks for what they write

    def write(self, roots: Sequence[int]) -> None:
        """All loops of the group whose stores are ``roots``."""
        with outer_loops(self.plan, self.text, self.names, self.out):
            with self.tile_loop(self.plan.tile) if self.plan.tile is not None else contextlib.nullcontext():
                self.scope(frozenset(a.name for a in self.plan.outer), list(roots))

    @contextlib.contextmanager
    def tile_loop(self, tile: Axis) -> Iterator[None]:
        """Fill the arrays of transposed blocks, then open the loop over ``tile``."""
        row = self.names.value(tile.name)
        before, in_row = tile_lines(self.plan, self.body, self.text, self.names)
        for line in before:
            self.out.line(line)
        with self.out.block(f"for (int64_t {row} = {row}_begin; {row} < {row}_end; ++{row}) {{", "}"):
            for line in in_row:
                self.out.line(line)
            yield

    # --- the recursion ---

    def opened(self, open_axes: Open) -> Open:
        """Axes that need no further loop here: lanes loops are written around straight-line code wherever it is."""
        return open_axes | {self.lanes.name} if self.lanes else open_axes

    def scope(self, open_axes: Open, roots: Sequence[int]) -> None:
        """Perform ``roots`` (stores; reductions, begun outside or not) at a point where ``open_axes`` are open."""
        opened = self.opened(open_axes)
        items = self.deps.closure(roots)
        stage = self.deps.stages(items, opened)
        here = [i for i in items if self.loops[i] <= opened]
        stage |= dict.fromkeys(self.overwriting(here, items), 1 + max(stage.values(), default=0))
        wanted = set(roots)
        goals = [i for i in items if i not in here and (i in wanted or self.deps.completes(i, opened))]
        passes = [
            (step, axis, [i for i in goals if stage[i] == step and self.deps.next_axis(i, opened) == axis])
            for step in range(max(stage.values(), default=0) + 1)
            for axis in sorted(
                {self.deps.next_axis(i, opened) for i in goals if stage[i] == step}, key=self.deps.rank.__getitem__
            )
        ]
        keep: Keep = {}
        if self.lanes is None and self.plan.lane and self.plan.lane.name != self.plan.split:
            keep = keep_dear(self.deps, passes, self.plan.lane, opened, self.kept, self.names, self.out)
        around, share = self.claimed, self.share
        readers = self.readers(passes, keep, opened) if share == (0, 1) else []
        claimed = claims(self.deps, passes, self.plan.lane, opened) if self.lanes is None and self.plan.lane else {}
        for step in range(max(stage.values(), default=0) + 1):
            self.straight(self.deps.closure(i for i in here if stage[i] == step), items)
            for one in (p for p in passes if p[0] == step):
                _, axis, targets = one
                self.claimed = claimed.get((step, axis), around)
                self.share = (readers.index(one), len(readers)) if one in readers else share
                self.loop(open_axes, self.flat.axis(axis), targets)
                for name, array in keep.pop((step, axis), []):
                    self.text.texts[name] = array
                    self.kept.pop(name, None)
        self.claimed, self.share = around, share

    def readers(self, passes: Sequence[Pass], keep: Keep, opened: Open) -> list[Pass]:
        """The passes with :meth:`rows_read`: not those that find in an array what an earlier one read and kept."""
        found, arrays = [], set[str]()
        for step, axis, roots in passes:
            if self.rows_read(self.deps.pass_items(roots, opened, arrays)):
                found.append((step, axis, roots))
            arrays |= {name for name, _ in keep.get((step, axis), ())}
        return found

    def rows_read(self, items: Iterable[int]) -> list[Load]:
        """What ``items`` read along the lane, where it is asked for some turns before."""
        lane = self.plan.lane
        if lane is None or not self.plan.turns_ahead:
            return []
        loads = [s for i in items if isinstance(s := self.body[i], Load)]
        return [s for s in loads if is_along(s, lane)]

    def overwriting(self, here: Sequence[int], items: Sequence[int]) -> list[int]:
        """Stores to what is read here too: they come last, for a later loop over lanes reads its values anew."""
        read = {s.buffer for i in items if isinstance(s := self.body[i], Load)}
        return [i for i in here if isinstance(s := self.body[i], Store) and s.buffer in read]

    def loop(self, open_axes: Open, axis: Axis, roots: Sequence[int]) -> None:
        """Open ``axis`` for ``roots``, with the reductions that begin here."""
        fresh = [i for i in roots if isinstance(s := self.body[i], Reduce) and not set(s.axes) & open_axes]
        new = [self.begin(i, axis, roots) for i in fresh]
        self.declare([(a.total_type, a.total, a.combine.start, a.lanes) for a in new])
        if axis.name == self.plan.split:
            self.shared_loop(open_axes, axis, roots, new)
        else:
            self.chunks(open_axes, axis, roots, "0", self.text.dim(axis.extent))
        for i, a in zip(fresh, new, strict=True):
            self.finish(i, a)

    def begin(self, i: int, axis: Axis, roots: Sequence[int]) -> Accumulator:
        s = self.body[i]
        assert isinstance(s, Reduce)
        lanes = self.lanes is not None and self.lanes.name in self.loops[i]
        short = len(s.axes) == 1 and isinstance(axis.extent, int) and axis.extent <= self.chunk(axis, roots)
        name = s.names[0]
        if needs_two_levels(s, lanes) and not short:
            total, part = self.names.value(f"{name}.total"), self.names.value(f"{name}.part")
        else:
            total = part = self.names.value(f"{name}.lanes" if lanes else name if has_own_type(s, lanes) else f"{name}.so_far")
        made = self.accumulators[i] = Accumulator(s, total, part, lanes, self.one_by_one(roots))
        return made

    def finish(self, i: int, a: Accumulator) -> None:
        """Name the value of a reduction after its last loop."""
        name = a.reduce.names[0]
        variable = self.names.value(name)
        if a.lanes:
            variable = a.result(self.place)
        elif variable != a.total:
            self.out.line(f"const {C_TYPES[a.dtype]} {variable} = {a.result('')};")
        self.text.texts[name] = variable

    def chunk(self, axis: Axis, roots: Sequence[int]) -> int:
        """How many values make a part of a sum: along the lane a vector's elements share them, unless they go one by one."""
        return self.plan.chunk if axis == self.plan.lane and not self.one_by_one(roots) else ADDITIONS

    def one_by_one(self, roots: Sequence[int]) -> bool:
        """Whether a loop along the lane sums entries picked by checked indices: vectorised by g++ 12 it read wild addresses."""
        adds = self.lanes is None and any(isinstance(self.body[i], Reduce) for i in roots)
        found = map(self.body.__getitem__, self.deps.closure(roots if adds else ()))
        return any(self.text.may_fault(s) and self.deps.picks_along(s, self.plan.lane) for s in found)

    def chunks(self, open_axes: Open, axis: Axis, roots: Sequence[int], begin: str, end: str) -> None:
        """The loop over ``axis`` from ``begin`` to ``end``, cut into chunks where parts must be added to totals now and then.
        What scans along ``axis`` have come to outlives the chunks."""
        scans = [s for i in self.deps.closure(roots) if isinstance(s := self.body[i], Scan) and s.axis == axis.name]
        parts = [a for i, a in self.accumulators.items() if i in roots and a.two_levels and self.innermost(a) == axis.name]
        step = part_length(self.chunk(axis, roots), axis.extent, parts)
        whole = not parts or (isinstance(axis.extent, int) and axis.extent <= step)
        with contextlib.ExitStack() as stack:
            if scans:
                stack.enter_context(self.out.block("{", "}"))
            self.declare([(scan_state(s)[0], self.scan_variable(s), scan_state(s)[1], self.scan_lanes(s)) for s in scans])
            if not whole:
                name = self.names.fresh(f"{self.names.value(axis.name)}_chunk")
                stack.enter_context(self.out.block(f"for (int64_t {name} = {begin}; {name} < {end}; {name} += {step}) {{", "}"))
                stop = self.names.fresh(f"{self.names.value(axis.name)}_stop")
                self.out.line(f"const int64_t {stop} = tc::least<int64_t>({name} + {step}, {end});")
                begin, end = name, stop
            self.declare([(a.part_type, a.part, a.combine.start, a.lanes) for a in parts])
            self.one_loop(open_axes, axis, roots, begin, end)
            self.for_each_lane([(a.lanes, a.flush(self.place if a.lanes else "")) for a in parts])

    def innermost(self, a: Accumulator) -> str:
        return max(a.reduce.axes, key=self.deps.rank.__getitem__)

    def one_loop(self, open_axes: Open, axis: Axis, roots: Sequence[int], begin: str, end: str) -> None:
        items = self.deps.closure(roots)
        saved = dict(self.text.texts)
        name = self.names.value(axis.name)
        inside = self.opened(open_axes | {axis.name})
        if can_jam(self.deps, self.text, inside, axis, self.lanes, roots):
            begin = self.jammed_loop(axis, roots, items, begin, end)
            if isinstance(axis.extent, int) and axis.extent % JAM == 0 and axis.name != self.plan.split:
                return  # no rows are left, and chunks are whole groups
        scans = blocked_scans(self.deps, self.text, inside, axis, roots) if self.lanes is None else []
        running = {i: self.scan_variable(self.body[i]) for i in scans}
        if scans:
            begin = scanned_blocks(self.deps, self.text, self.names, self.out, self.statement, axis, roots, running, begin, end)
        if axis == self.plan.lane:
            self.check_ahead(items, axis)
            reduces = [i for i in roots if isinstance(self.body[i], Reduce)]
            shared = self.lanes is None and all(self.accumulators[i].in_vectors for i in reduces)
            if reduces and shared and can_group(axis, self.plan, [self.body[i] for i in items], self.text):
                begin = self.grouped_loop(open_axes, axis, roots, begin, end)
                if isinstance(axis.extent, int) and axis.extent % self.plan.group == 0 and axis.name != self.plan.split:
                    self.text.texts = saved
                    return  # nothing is left, and chunks are whole groups
        with contextlib.ExitStack() as stack:
            if axis == self.plan.lane:
                read = self.rows_read(items) if self.lanes is None and not reduces else []
                lines = functools.partial(later_turn, read, self.plan, self.text, self.names, self.share, PIECE)
                begin, end = stack.enter_context(self.pieces(axis, begin, end, lines))
                self.out.line(self.simd(items, reduces))
            stack.enter_context(self.out.block(f"for (int64_t {name} = {begin}; {name} < {end}; ++{name}) {{", "}"))
            self.text.forget_comment()
            self.scope(open_axes | {axis.name}, roots)
        self.text.texts = saved

    def grouped_loop(self, open_axes: Open, axis: Axis, roots: Sequence[int], begin: str, end: str) -> str:
        """The loop over whole groups of elements along a row. Returns where the elements that are left begin."""
        name, size, saved = self.names.value(axis.name), self.plan.group, dict(self.text.texts)
        ones = {i: self.accumulators[i] for i in roots if isinstance(self.body[i], Reduce)}
        groups = {i: group_of(a, size, self.names) for i, a in ones.items()}
        whole = self.names.fresh(f"{name}_whole")
        self.out.line(f"const int64_t {whole} = {end} - ({end} - {begin}) % {size};")
        items = self.deps.closure(roots)
        loads = [s for i in items if isinstance(s := self.body[i], Load) and s.name not in self.fetched]
        self.fetched |= {s.name for s in loads}
        written = [] if loads else self.claimed  # a pass that waits for memory asks for no more
        claimed = [s for i in written if isinstance(s := self.body[i], Store) and self.loops[i] <= open_axes | {axis.name}]
        read = self.rows_read(items)
        ahead = functools.partial(group_ahead, loads, read, claimed, self.plan, self.text, self.names, self.share)
        with group_loops(self.out, self.names, name, list(groups.values()), begin, whole, ahead) as place:
            self.text.forget_comment()
            self.accumulators |= {i: g.at(place) for i, g in groups.items()}
            self.scope(open_axes | {axis.name}, roots)
        self.accumulators |= ones
        self.text.texts = saved
        return whole

    def jammed_loop(self, axis: Axis, roots: Sequence[int], items: Sequence[int], begin: str, end: str) -> str:
        """The loop over whole groups of rows, whose accumulators are in registers meanwhile. Each takes in the same values in
        the same order as row by row. Returns where the rows that are left begin."""
        name, saved = self.names.value(axis.name), dict(self.text.texts)
        first, whole = self.names.fresh(f"{name}_first"), self.names.fresh(f"{name}_whole")
        ones = {i: self.accumulators[i] for i in roots}
        self.out.line(f"const int64_t {whole} = {end} - ({end} - {begin}) % {JAM};")
        with self.out.block(f"for (int64_t {first} = {begin}; {first} < {whole}; {first} += {JAM}) {{", "}"):
            with self.lane_loop(()), jammed_rows(self.out, self.names, name, first, ones, self.place) as here:
                self.accumulators |= here
                for i in items:
                    self.statement(i)
        self.accumulators |= ones
        self.text.texts = saved
        return whole

    def check_ahead(self, items: Iterable[int], axis: Axis) -> None:
        """Indices that are the same along a vectorised loop are checked before it."""
        for i in items:
            self.text.check_ahead(self.body[i], lambda name: axis.name not in self.deps.at[name])

    def simd(self, items: Iterable[int], reductions: Sequence[int] = ()) -> str:
        """The pragma of a vectorised loop, or why it is none."""
        faults, sums = any(self.text.may_fault(self.body[i]) for i in items), [self.accumulators[i] for i in reductions]
        if sums and (faults or not all(a.in_vectors for a in sums)):
            return "// one by one: indices are checked"
        found = [f"reduction({a.combine.clause}: {a.part})" for a in sums if not a.lanes]
        return " ".join(["#pragma omp simd", *found, *(["reduction(|: fault)"] if faults else [])])

    # --- straight-line code ---

    def straight(self, items: Sequence[int], scope: Sequence[int]) -> None:
        """Statements that need no further loop; those along the lanes stand in one loop over them."""
        along = [i for i in items if self.lanes and self.lanes.name in self.loops[i]]
        for i in items:
            if i not in along:
                self.statement(i)
        elsewhere = {d for i in scope if i not in along for d in self.deps.needs(i)}
        shared = [i for i in along if i in elsewhere and isinstance(self.body[i], (Scalar, Scan))]
        along = self.deps.only_useful(along, shared)
        if not along:
            return
        arrays = {}
        for i in shared:
            (name,) = defined(self.body[i])
            arrays[name] = self.names.fresh(f"{self.names.value(name)}_lanes")
            self.out.line(f"{MEMORY_TYPES[self.dtypes[name]]} {arrays[name]}[{self.lane_count}];")
        assert self.lanes is not None
        self.check_ahead(along, self.lanes)
        saved = dict(self.text.texts)
        with self.lane_loop(along):
            for i in along:
                self.statement(i)
                for name in (n for n in defined(self.body[i]) if n in arrays):
                    self.out.line(f"{arrays[name]}{self.place} = {self.text.texts[name]};")
        self.text.texts = saved | {n: c_read(f"{array}{self.place}", self.dtypes[n]) for n, array in arrays.items()}

    def statement(self, i: int) -> None:
        s = self.body[i]
        if isinstance(s, Store):
            self.text.store(s)
        elif isinstance(s, Reduce):
            a = self.accumulators[i]
            self.out.line(a.update(self.place if a.lanes else "", self.text.texts[s.args[0]]))
        elif isinstance(s, Scan):
            self.scan_step(s)
        elif isinstance(s, (Load, Index, Scalar)):
            self.text.write(s)
            if s.name in self.kept:
                self.out.line(f"{self.kept[s.name]} = {self.text.texts[s.name]};")

    # --- arrays along the lanes ---

    @property
    def place(self) -> str:
        """The subscript of the current lane in an array of a block."""
        assert self.lanes is not None
        name = self.names.value(self.lanes.name)
        return f"[{name} - {name}_begin]" if self.plan.block else f"[{name}]"

    @property
    def lane_count(self) -> str:
        """The size of arrays along the lanes."""
        assert self.lanes is not None
        return str(self.plan.block or self.lanes.extent)

    @contextlib.contextmanager
    def lane_loop(self, items: Sequence[int]) -> Iterator[None]:
        """The vectorised loop over the lanes of the current block."""
        assert self.lanes is not None
        name = self.names.value(self.lanes.name)
        begin, end = (f"{name}_begin", f"{name}_end") if self.plan.block else ("0", self.text.dim(self.lanes.extent))
        around = [self.body[i] for i in items]
        for line in named_rows(around, self.body, self.plan, self.text, self.names):
            self.out.line(line)

        def lines(piece: str) -> list[str]:
            picked = picked_rows(around, self.plan, self.text, self.names, f"{piece} - {begin}")
            if not picked and not self.plan.each_line:
                return []
            return picked + stretches(around, self.plan, self.text, self.names, piece)

        with self.pieces(self.lanes, begin, end, lines) as (first, stop):
            self.out.line(self.simd(items))
            with self.out.block(f"for (int64_t {name} = {first}; {name} < {stop}; ++{name}) {{", "}"):
                self.text.forget_comment()
                yield

    @contextlib.contextmanager
    def pieces(self, axis: Axis, begin: str, end: str, ahead: Callable[[str], Sequence[str]]) -> Iterator[tuple[str, str]]:
        """A loop over PIECE elements of ``axis`` at a time, which begins with lines that ask ``ahead``; none without those.
        Yields the bounds of the loop inside."""
        piece = self.names.fresh(f"{self.names.value(axis.name)}_piece")
        lines = ahead(piece)
        if not lines:
            yield begin, end
            return
        with self.out.block(f"for (int64_t {piece} = {begin}; {piece} < {end}; {piece} += {PIECE}) {{", "}"):
            for line in lines:
                self.out.line(line)
            whole = isinstance(axis.extent, int) and axis.extent % PIECE == 0
            yield piece, f"{piece} + {PIECE}" if whole else f"tc::least<int64_t>({piece} + {PIECE}, {end})"

    def for_each_lane(self, lines: Sequence[tuple[bool, str]]) -> None:
        """Lines as they are, but those of arrays inside one loop over the lanes."""
        for line in (text for lanes, text in lines if not lanes):
            self.out.line(line)
        if any(lanes for lanes, _ in lines):
            with self.lane_loop(()):
                for lanes, line in lines:
                    if lanes:
                        self.out.line(line)

    def declare(self, variables: Sequence[tuple[str, str, str, bool]]) -> None:
        """Accumulators: (type, name, start, is it an array along the lanes?)."""
        for kind, name, start, lanes in variables:
            self.out.line(f"{kind} {name}[{self.lane_count}];" if lanes else f"{kind} {name} = {start};")
        self.for_each_lane([(True, f"{name}{self.place} = {start};") for _, name, start, lanes in variables if lanes])

    def scan_variable(self, s: Statement) -> str:
        return f"{self.names.value(defined(s)[0])}_so_far"

    def scan_lanes(self, s: Scan) -> bool:
        return self.lanes is not None and self.lanes.name in self.deps.at[s.names[0]]

    def scan_step(self, s: Scan) -> None:
        """Take in a value; the scan's value here is the running one."""
        kind, _, join = scan_state(s)
        running = self.scan_variable(s) + (self.place if self.scan_lanes(s) else "")
        variable, dtype = self.names.value(s.names[0]), C_TYPES[s.dtypes[0]]
        self.text.comment(s)
        self.out.line(f"{running} = {join.format(a=running, b=self.text.texts[s.args[0]])};")
        self.out.line(f"const {dtype} {variable} = {running if kind == dtype else f'({dtype})({running})'};")
        self.text.texts[s.names[0]] = variable

    # --- a reduction axis that threads share ---

    def shared_loop(self, open_axes: Open, axis: Axis, roots: Sequence[int], new: Sequence[Accumulator]) -> None:
        """Each thread walks its stretch of ``axis``; their totals join in the order of threads, so results repeat exactly."""
        out, extent = self.out, self.text.dim(axis.extent)
        partial = {a.total: self.names.fresh(f"{a.total}_of") for a in new}
        for a in new:
            out.line(f"{a.total_type} {partial[a.total]}[workers]{f'[{self.lane_count}]' if a.lanes else ''};")
        unit = SHARE_UNIT if axis == self.plan.lane else 1
        team = self.names.fresh("team")
        if new:
            out.line(f"int {team} = 1;")
        out.line("#pragma omp parallel num_threads(workers) reduction(|: fault)")
        with out.block("{", "}"):
            out.line("const int thread = omp_get_thread_num();")
            out.line(f"const tc::Share mine = tc::share({extent}, {unit}, thread, omp_get_num_threads());")
            if new:
                out.line(f"if (thread == 0) {team} = omp_get_num_threads();")
            self.declare([(a.total_type, a.total, a.combine.start, a.lanes) for a in new])
            self.chunks(open_axes, axis, roots, "mine.begin", "mine.end")
            here = [(a.lanes, self.place if a.lanes else "", a) for a in new]
            self.for_each_lane([(lanes, f"{partial[a.total]}[thread]{at} = {a.total}{at};") for lanes, at, a in here])
        if new:
            with out.block(f"for (int thread = 0; thread < {team}; ++thread) {{", "}"):
                self.for_each_lane(
                    [(lanes, a.join_total(a.total + at, f"{partial[a.total]}[thread]{at}")) for lanes, at, a in here]
                )
