"""Long rows shared by several programs, each of which keeps its part in registers: memory is read once and written once.

A program takes the next ticket, so the parts of a row start one after another, and whoever waits for a part that has not
started holds one of the few places of the newest row: all older rows can finish, whatever else runs on the card. It reduces its
part, publishes the result in scratch memory, waits at the row's semaphore, and combines the results of all parts in their
order, so every program of a row gets the same bits. Welford parts combine as Chan, Golub and LeVeque (1983).

Scratch, int32, zeroed before each launch: ticket, one semaphore a row, then the published values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.codegen.triton.analysis import Analysis, uses_of
from tinycompile.codegen.triton.dtypes import triton_dtype
from tinycompile.codegen.triton.reductions import identity
from tinycompile.codegen.triton.scalars import literal
from tinycompile.codegen.triton.tiles import Schedule, candidates, largest_item, power_of_2, row_scalars, tile_dim, tile_values
from tinycompile.ir.loops import Axis, Load, Reduce, Store
from tinycompile.ir.sharing import MOST_PARTS, shareable
from tinycompile.ir.source import Config

SCRATCH = "scratch_ptr"


# when, and how it is cut ---------------------------------------------------------------------------------------------------


def suits(analysis: Analysis, target: Target) -> bool:
    """Whether programs share rows: these are long, of a known length, and needed again after their reduction."""
    extent = analysis.extent(analysis.reduction)
    stores = [s for s in analysis.nest.body if isinstance(s, Store)]
    loaded = {s.buffer for s in analysis.nest.body if isinstance(s, Load)}
    if not isinstance(extent, int) or any(s.mode != "plain" or s.buffer in loaded for s in stores):
        return False
    fits = math.ceil(extent / (MOST_PARTS * _most_columns(analysis))) <= 1 and target.units >= MOST_PARTS
    return fits and shareable(analysis.nest.body, analysis.metas[stores[0].buffer].device) and _row_needed_again(analysis)


def _row_needed_again(analysis: Analysis) -> bool:
    along = {a.name for a in analysis.reduction}
    for position, s in enumerate(analysis.nest.body):
        waits = any(analysis.level.get(u, 0) for u in uses_of(s, analysis.forms[position]))
        if waits and analysis.axes_at(position) & along:
            return True
    return False


def _most_columns(analysis: Analysis) -> int:
    return 16384 if largest_item(analysis) <= 4 and tile_values(analysis) <= 3 else 8192


def schedule(parallel: tuple[Axis, ...], extent: int, analysis: Analysis, target: Target) -> Schedule:
    """Parts of some thousand elements, 16 a thread; smaller where there are too few rows for all SMs."""
    rows_extent = analysis.extent(parallel)
    rows, most = analysis.hint(rows_extent), _most_columns(analysis)
    columns = most // 2
    while columns > 2048 and rows * math.ceil(extent / columns) < 2 * target.units:
        columns //= 2
    while math.ceil(extent / columns) > MOST_PARTS:
        columns *= 2
    each = 16 if largest_item(analysis) <= 4 else 8
    sizes = [(columns, 1), (columns * 2, 1), (columns // 2, 1), (columns, 2)]
    configs = candidates(
        [
            _config(extent, c, c // (32 * each) * more)
            for c, more in sizes
            if c <= most and math.ceil(extent / c) <= MOST_PARTS and 1 <= c // (32 * each) * more <= 32
        ],
        COLS=extent,
    )
    dim = tile_dim("col", analysis.reduction, analysis, "whole", "COLS", configs)
    grid = rows_extent * ex.sym("PARTS", 1) if parallel else ex.sym("PARTS", 1)
    why = f"{configs[0].constants[1][1]} programs share a row of {extent}, each with its part in registers"
    return Schedule((dim,), row_scalars(parallel, rows_extent), grid, configs, False, why, shared=True)


def _config(extent: int, columns: int, warps: int) -> Config:
    parts = math.ceil(extent / columns)
    return Config((("COLS", columns), ("PARTS", parts), ("LANES", power_of_2(parts))), warps)


# scratch memory ------------------------------------------------------------------------------------------------------------


def _published(analysis: Analysis) -> list[tuple[str, torch.dtype]]:
    return [(n, d) for s in analysis.nest.body if isinstance(s, Reduce) for n, d in zip(s.names, s.dtypes, strict=True)]


def start_of_values(rows: Dim) -> Dim:
    """Where published values begin: behind the semaphores, 8-byte aligned."""
    return ex.floordiv(rows + 2, 2) * 2


def scratch_size(analysis: Analysis, chosen: Schedule) -> Dim:
    """int32 elements of scratch memory that suffice for every configuration."""
    rows = analysis.extent(analysis.parallel)
    values = _published(analysis)
    parts = max(dict(c.constants)["PARTS"] for c in chosen.configs)
    return start_of_values(rows) + rows * (parts * len(values) * values[0][1].itemsize // 4)


# what is written -----------------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """Writes what programs tell each other. ``rows``: their number, and ``start``: where published values begin, as text.
    ``row``: the row's variable."""

    analysis: Analysis
    rows: str
    start: str
    row: str
    meetings: int = 0

    def __post_init__(self) -> None:
        values = _published(self.analysis)
        self.slots = {name: i for i, (name, _) in enumerate(values)}
        self.dtype = values[0][1]

    def opening(self) -> list[str]:
        """Where published values lie."""
        return [f"published = ({SCRATCH} + {self.start}).to(tl.pointer_type({triton_dtype(self.dtype)}))"]

    def part_count(self, extent: str) -> str:
        """The number of elements of this program's part."""
        return f"tl.minimum(COLS, {extent} - part * COLS)"

    def meet(self, reduces: list[tuple[Reduce, tuple[str, ...]]]) -> list[str]:
        """Publish the parts of some reductions and combine all programs' parts into their results."""
        self.meetings += 1
        lines = []
        for s, targets in reduces:
            for name, target in zip(s.names, targets, strict=True):
                lines.append(f"tl.store(published + ({self.place(name)} * PARTS + part), {target}_part)")
        lines.append(f"meet({SCRATCH} + (1 + {self.row}), PARTS * {self.meetings})")
        lines.append("lane = tl.arange(0, LANES)")
        for s, targets in reduces:
            for name, target in zip(s.names, targets, strict=True):
                neutral = literal(identity(s.kind if name == s.names[0] else "sum", self.dtype), self.dtype)
                at = f"published + ({self.place(name)} * PARTS + lane)"
                lines.append(f'{target}_all = tl.load({at}, mask=lane < PARTS, other={neutral}, cache_modifier=".cg")')
            lines += self.combined(s, targets)
        return lines

    def place(self, name: str) -> str:
        slot = self.slots[name]
        return self.row if slot == 0 else f"({slot} * {self.rows} + {self.row})"

    def combined(self, s: Reduce, targets: tuple[str, ...]) -> list[str]:
        first = f"{targets[0]}_all"
        if s.kind == "sum":
            return [f"{targets[0]} = tl.sum({first}, 0)"]
        if s.kind in ("max", "min"):
            return [f"{targets[0]} = reduce_{s.kind}({first}, 0, False)"]
        second = f"{targets[1]}_all"
        if s.kind == "online_softmax":
            return [f"{targets[0]}, {targets[1]} = softmax_reduce({first}, {second}, 0, False)"]
        extent = self.analysis.hint(self.analysis.extent(self.analysis.reduction))
        count = f"tl.maximum(tl.minimum(COLS, {extent} - lane * COLS), 0).to({triton_dtype(self.dtype)})"
        return [f"{targets[0]}, {targets[1]} = welford_of_parts({first}, {second}, {count}, {extent})"]
