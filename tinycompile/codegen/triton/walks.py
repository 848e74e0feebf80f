"""Rows that don't fit in registers, walked block by block: once for each reduction that the next one waits for.

The last block of a row stays in registers from the first walk to the last, which saves reading it again. So every other walk
goes backwards: it begins with that block, and goes on with what the walk before read last, the likeliest to be in the caches.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinycompile.codegen.triton import reductions, shared_rows
from tinycompile.codegen.triton.analysis import uses_of
from tinycompile.codegen.triton.nest_writer import NestWriter
from tinycompile.codegen.triton.passes import Numbered, Pass, plan_passes
from tinycompile.codegen.triton.tiles import TileDim
from tinycompile.ir.loops import Load, Reduce, Scan, Store


class Walks(NestWriter):
    """Writes the walks over a row, and what is done once a row between them. ``kept``: values of the block that stays, and
    their variables."""

    kept: dict[str, str]

    def write_passes(self, loop: TileDim) -> None:
        """Alternate between row values and walks."""
        for dim in self.schedule.dims:
            if dim is not loop:
                self.write_axes(dim)
                self.write_masks([dim])
        passes = plan_passes(self.analysis)
        walks = [p for p in passes if p.inside]
        exchange = self.start_exchange() if self.schedule.shared else None
        keeps = self.keeps_last_block(loop, walks)
        if keeps:
            row = "part_count" if self.schedule.shared else self.extent(loop.extent, f"{loop.name}_size")
            self.out.line(f"steps = tl.cdiv({row}, {loop.block})")
        number = 0
        for step in passes:
            self.write_between(step.before)
            if step.inside:
                if keeps:
                    self.write_keeping(loop, step, walks, number)
                else:
                    self.write_walk(loop, step, len(walks), number)
                number += 1
            if exchange is not None:
                self.write_exchange(exchange, [s for _, s in step.reduces if isinstance(s, Reduce)])

    def keeps_last_block(self, loop: TileDim, walks: list[Pass]) -> bool:
        """Whether the row has a last block, of a length known now, that a second walk reads again."""
        scans = any(isinstance(s, Scan) for p in walks for _, s in p.inside)
        return len(walks) > 1 and not scans and isinstance(loop.extent, int) and loop.extent > 0

    # between walks --------------------------------------------------------------------------------------------------------

    def start_exchange(self) -> shared_rows.Exchange:
        """What programs that share a row tell each other, and where."""
        rows = self.analysis.extent(self.analysis.parallel)
        row = self.schedule.scalars[0].name if self.schedule.scalars else "0"
        exchange = shared_rows.Exchange(self.analysis, self.extent(rows, "row_size"), row)
        self.out.lines(*exchange.opening(str(self.schedule.dims[-1].extent)))
        return exchange

    def write_exchange(self, exchange: shared_rows.Exchange, reduces: list[Reduce]) -> None:
        """All programs of the row, with what each found."""
        if reduces:
            self.out.lines(*exchange.meet([(r, tuple(self.body.variables[n] for n in r.names)) for r in reduces]))

    def write_between(self, statements: tuple[Numbered, ...]) -> None:
        """Statements with one element a row. Where programs share it, the first of them stores it."""
        alone = [n for n in statements if self.schedule.shared and isinstance(n[1], Store)]
        self.write_statements([n for n in statements if n not in alone])
        if alone:
            with self.out.block("if part == 0:"):
                self.write_statements(alone)

    # walks ----------------------------------------------------------------------------------------------------------------

    def write_walk(self, loop: TileDim, step: Pass, walks: int, number: int) -> None:
        """One walk that reads all of the row: accumulators before, the body, and their combination after."""
        built = self.accumulators(step)
        for _, s in step.inside:
            if isinstance(s, Scan):
                self.out.line(self.start_carry(s))
        for a in built:
            self.out.lines(*a.start)
        extent = "PART" if self.schedule.shared else self.extent(loop.extent, f"{loop.name}_size")
        backwards = number % 2 == 1 and not any(isinstance(s, Scan) for _, s in step.inside)
        with self.out.block(f"for {loop.name}_start in range(0, {extent}, {loop.block}):"):
            start = f"{loop.name}_start"
            if backwards:  # a step of -BLOCK would hide from Triton that the starts are aligned
                start = f"(tl.cdiv({extent}, {loop.block}) - 1) * {loop.block} - {start}"
            self.write_position(loop, start)
            self.write_block(step, built, self.eviction(walks, number))
        for a in built:
            self.out.lines(*a.finish)

    def write_keeping(self, loop: TileDim, step: Pass, walks: list[Pass], number: int) -> None:
        """One walk in which the last block, which alone may stick out, is loaded by the first walk only."""
        self.body.inside = loop.name
        whole = self.accumulators(step)
        self.body.inside = ""
        if number == 0:
            self.load_kept(loop, walks)
        for a in whole:
            self.out.lines(*a.start)
        backwards = number % 2 == 1
        if backwards:
            self.write_kept(loop, step)
        with self.out.block(f"for {loop.name}_step in range(0, steps - 1):"):
            at = f"(steps - 2 - {loop.name}_step)" if backwards else f"{loop.name}_step"
            self.body.inside = loop.name
            self.write_position(loop, f"{at} * {loop.block}")
            self.write_block(step, whole, self.eviction(len(walks), number))
            self.body.inside = ""
        if not backwards:
            self.write_kept(loop, step)
        for a in self.accumulators(step):  # what a mask made of them
            self.out.lines(*a.finish)

    def load_kept(self, loop: TileDim, walks: list[Pass]) -> None:
        """The last block, which is under way while the first walk goes over the others. It has variables of its own."""
        self.out.comment("the last block stays in registers")
        self.write_position(loop, f"(steps - 1) * {loop.block}")
        along = {a.name for a in self.analysis.reduction}
        loads = {i: s for p in walks for i, s in p.inside if isinstance(s, Load)}
        first = {i for i, _ in walks[0].inside}
        direct = [
            (i, s)
            for i, s in loads.items()
            if i in first
            and not any(self.analysis.spans.get(u, frozenset()) & along for u in uses_of(s, self.analysis.forms[i]))
        ]
        self.kept = {s.name: self.names.fresh(f"{self.body.variables[s.name]}_kept") for _, s in direct}
        plain = dict(self.body.variables)
        self.body.variables |= self.kept
        self.body.eviction = "evict_first"
        self.write_statements(direct)
        self.body.eviction = ""
        self.body.variables |= {name: plain[name] for name in self.kept}

    def write_kept(self, loop: TileDim, step: Pass) -> None:
        """What a walk does with the block that is in registers."""
        self.out.comment("the last block")
        self.write_position(loop, f"(steps - 1) * {loop.block}", mask=False)
        plain = dict(self.body.variables)
        self.body.variables |= self.kept
        inside = tuple((i, s) for i, s in step.inside if not (isinstance(s, Load) and s.name in self.kept))
        self.write_block(Pass((), inside, step.reduces), self.accumulators(step), "evict_first")
        self.body.variables |= {name: plain[name] for name in self.kept}

    def write_position(self, loop: TileDim, start: str, mask: bool = True) -> None:
        """Where a block lies, and its mask."""
        self.out.line(f"{loop.name} = {'part * PART + ' if self.schedule.shared else ''}{start} + {self.arange(loop)}")
        self.write_axes(loop)
        self.write_masks([loop] if mask else [])

    def write_block(self, step: Pass, built: Iterable[reductions.Accumulator], eviction: str) -> None:
        """What a walk does with a block."""
        self.body.eviction = eviction
        self.write_statements([n for n in step.inside if n not in step.reduces], carried=True)
        self.body.eviction = ""
        for a in built:
            self.out.lines(*a.step)

    def eviction(self, walks: int, number: int) -> str:
        """Rows stay in the caches until their last walk."""
        return "" if walks == 1 else "evict_first" if number == walks - 1 else "evict_last"

    # accumulators ---------------------------------------------------------------------------------------------------------

    def accumulators(self, step: Pass) -> list[reductions.Accumulator]:
        """The lanes of a walk's reductions."""
        return [self.accumulator(s) for _, s in step.reduces if isinstance(s, Reduce)]

    def accumulator(self, s: Reduce) -> reductions.Accumulator:
        """The lanes of one reduction."""
        targets = tuple(self.body.variables[n] + ("_part" if self.schedule.shared else "") for n in s.names)
        return reductions.looped(
            s.kind, targets, self.tile_value(s.args[0]), self.body.dtypes[s.args[0]], s.dtypes, self.site(s)
        )

    def start_carry(self, s: Scan) -> str:
        """A scan's total before the first block."""
        span = self.analysis.spans[s.args[0]] - {a.name for a in self.schedule.dims[-1].axes}
        shape = self.body.shape(span) if len(self.schedule.dims) == 2 else "[]"
        return reductions.start_scan(s.kind, self.body.variables[s.names[0]], s.dtypes[0], shape)
