"""Sums of a product that several programs share: they leave their parts in float32 (int32), and the last to arrive adds them in
order, so that results are the same bits every time.

* ``parted``: ``PARTS`` programs a tile, each takes every ``PARTS``-th step of its sum.
* ``streamed``: the steps of all tiles in one row, cut into as many equal shares as programs fit on the card ("stream-K"). A
  program may end a tile that another began, do whole ones, and begin one that the next ends: at most two of its parts are left,
  the first of them of the tile that it ends.
"""

from __future__ import annotations

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.codegen.triton.nest_writer import NestWriter
from tinycompile.ir.source import Config, KernelArg

COUNTERS, SPARE, PARTIAL = "counters_ptr", "spare_ptr", "partial_ptr"
CG = 'cache_modifier=".cg"'  # past the L1, where an older value may lie
NAMES = frozenset(
    {"part", "first", "final", "whole", "slot", "other", "tile_ptr", "inner", "steps", "share", "begin", "end"}
    | {COUNTERS, SPARE, PARTIAL, "PARTS"}
)
LEFT_PARTS = 2  # of a program that takes a share of all steps


class SharedSums(NestWriter):
    """What a writer of products needs for it."""

    way: str
    candidates: tuple[Config, ...]
    dot_names: list[str]
    sum_dtype: torch.dtype
    members: int  # products of the launch

    # memory ---------------------------------------------------------------------------------------------------------------

    def shares(self) -> bool:
        """Whether programs share sums."""
        return self.way in ("parted", "streamed")

    def memory(self) -> list[KernelArg]:
        """Where programs leave their parts, and count who has come."""
        if not self.shares():
            return []
        dots = len(self.dot_names)
        if self.way == "parted":
            room = self.most("ROWS", "COLS", "PARTS") * dots
        else:
            tables = [dict(c.constants) for c in self.candidates]
            room = max(c["ROWS"] * c["COLS"] * c["PROGRAMS"] for c in tables) * LEFT_PARTS * dots
        slots = self.most()
        scratch = KernelArg(PARTIAL, "scratch", str(self.sum_dtype).removeprefix("torch."), room)
        return [scratch, KernelArg(COUNTERS, "counters", "int32", slots), KernelArg(SPARE, "spare", "int32", slots)]

    def most(self, *constants: str) -> Dim:
        """The most tiles of any configuration; times some of its constants, where given."""
        most: Dim = 0
        for known in (dict(c.constants) for c in self.candidates):
            tiles = ex.substitute(self.schedule.grid, dict(known))
            most = ex.maximum(most, tiles * self.members * ex.product(known[n] for n in constants))
        return most

    def write_clearing(self) -> None:
        """Clear the next launch's counters."""
        counted = self.extent(self.most(), "counters_size")
        with self.out.block(f"for other in range(tl.program_id(0), {counted}, tl.num_programs(0)):"):
            self.out.line(f"tl.store({SPARE} + other, 0)  # the next launch's counters")

    # which steps ----------------------------------------------------------------------------------------------------------

    def write_share(self, tiles: str, size: str) -> None:
        """The share of all steps that this program takes."""
        self.out.lines(
            f"steps = tl.cdiv({size}, STEP)",
            f"share = tl.cdiv({tiles} * steps, PROGRAMS)",
            "begin = tl.program_id(0) * share",
            f"end = tl.minimum(begin + share, {tiles} * steps)",
        )

    def bounds(self, size: str) -> str:
        """The steps of one tile's sum that a program takes, as a range."""
        if self.way == "parted":
            return f"part * STEP, {size}, PARTS * STEP"
        if self.way == "streamed":
            return "(tl.maximum(begin, tile * steps) - tile * steps) * STEP, tl.minimum(end - tile * steps, steps) * STEP, STEP"
        return f"0, {size}, STEP"

    # parts ----------------------------------------------------------------------------------------------------------------

    def write_meeting(self) -> str:
        """Leave this program's part; the last to come adds them all up. Returns the name of whether the sum is now whole."""
        out = self.out
        if self.way == "parted":
            out.lines("first = slot * PARTS", "final = first + PARTS - 1")
            self.write_met("whole", "slot")
            return "whole"
        out.lines(
            "first = tile * steps // share  # the program that begins the tile, and the one that ends it",
            "final = (tile * steps + steps - 1) // share",
            "whole = first == final",
        )
        with out.block("if first != final:"):
            self.write_met("whole", "tile")
        return "whole"

    def write_met(self, name: str, slot: str) -> None:
        """The same, where there are several parts."""
        out = self.out
        out.line("inner = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]")
        out.line(f"tile_ptr = {PARTIAL} + {self.place('tl.program_id(0)')}")
        for i, total in enumerate(self.dot_names):
            out.line(f"tl.store({self.slice(i)}, {total})")
        out.line(f"{name} = is_last({COUNTERS} + {slot}, final - first + 1)")
        with out.block(f"if {name}:"):
            for total in self.dot_names:
                out.line(f"{total} = tl.zeros([ROWS, COLS], {total}.dtype)")
            with out.block("for other in range(first, final + 1):"):
                out.line(f"tile_ptr = {PARTIAL} + {self.place('other')}")
                for i, total in enumerate(self.dot_names):
                    out.line(f"{total} += tl.load({self.slice(i)}, {CG})")

    def place(self, program: str) -> str:
        """Where a program's part of the tile begins: of the streamed, the one that begins the tile has its second place."""
        size = " * ".join(["ROWS * COLS", *([str(len(self.dot_names))] if len(self.dot_names) > 1 else [])])
        where = program if self.way == "parted" else f"{program} * {LEFT_PARTS} + ({program} == first).to(tl.int32)"
        return f"tl.cast({where}, tl.int64) * ({size})"

    @staticmethod
    def slice(number: int) -> str:
        """The addresses of one of several sums in a part."""
        return f"tile_ptr + {f'{number} * (ROWS * COLS) + ' if number else ''}inner"
