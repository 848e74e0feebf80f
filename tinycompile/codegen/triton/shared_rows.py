"""Long rows shared by several programs: a part is read from memory once, and from the caches when it is needed again.

Programs start in the order of their numbers, on which CUB's single-pass scans rely as well. So the parts of a row start one
after another, and whoever waits for a part that has not started holds one of the few places of the newest row: all older rows
can finish, whatever else runs on the card. A program reduces its part, publishes the result in scratch memory, waits at the
row's semaphore, and combines the results of all parts in their order, so every program of a row gets the same bits. Welford
parts combine as Chan, Golub and LeVeque (1983).

Counters, int32, 0 at the start: one semaphore a row. Each launch clears the spare ones, which the next launch uses, so that
neither a launch of its own nor an atomic does. Scratch: the published values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tinycompile.base import expr as ex
from tinycompile.base.target import Target
from tinycompile.codegen.triton.analysis import Analysis
from tinycompile.codegen.triton.dtypes import short_name, triton_dtype
from tinycompile.codegen.triton.reductions import identity
from tinycompile.codegen.triton.scalars import literal
from tinycompile.codegen.triton.tiles import (
    FOLD,
    RUNNING_FOLD,
    Schedule,
    aligned,
    candidates,
    largest_item,
    power_of_2,
    row_needed_again,
    row_scalars,
    tile_dim,
    tile_values,
)
from tinycompile.ir.loops import Axis, Load, Reduce, Store
from tinycompile.ir.sharing import MOST_ELEMENTS, MOST_PARTS, shareable
from tinycompile.ir.source import Config, KernelArg

COUNTERS, SPARE, PUBLISHED = "counters_ptr", "spare_ptr", "published_ptr"
NAMES = frozenset({"part", "part_count", "lane", "row_size", COUNTERS, SPARE, PUBLISHED})  # taken in a kernel
BLOCK_BYTES = 16 << 10  # of a row that a program takes at once
PART_BYTES = 32 << 10  # of a row: some hundred parts are in flight, and all of them fit in the L2
THREAD_BYTES = 64  # of a block that a thread takes
FEW_ROWS = 4  # a multiprocessor: with more of them, a program a row fills the card, and needs no others
FULL = 3  # parts a multiprocessor, from which on the card is full


# when, and how it is cut ---------------------------------------------------------------------------------------------------


def suits(analysis: Analysis, target: Target) -> bool:
    """Whether programs share rows: these are long, of a known length, and needed again after their reduction."""
    extent = analysis.extent(analysis.reduction)
    stores = [s for s in analysis.nest.body if isinstance(s, Store)]
    loaded = {s.buffer for s in analysis.nest.body if isinstance(s, Load)}
    if not isinstance(extent, int) or any(s.mode != "plain" or s.buffer in loaded for s in stores):
        return False
    device = analysis.metas[stores[0].buffer].device
    fits = extent <= MOST_ELEMENTS and target.units >= MOST_PARTS and shareable(analysis.nest.body, device)
    return fits and _pays(extent, analysis, target) and row_needed_again(analysis)


def _pays(extent: int, analysis: Analysis, target: Target) -> bool:
    """Whether rows are too few to fill the card, a program each, or too long for the L2 to hold those in flight."""
    rows = analysis.hint(analysis.extent(analysis.parallel))
    if rows >= FEW_ROWS * target.units:
        return False
    return rows < target.units or (tile_values(analysis) <= 2 and rows * extent * largest_item(analysis) > target.l2)


def schedule(parallel: tuple[Axis, ...], extent: int, analysis: Analysis, target: Target) -> Schedule:
    """Each program walks its part, and keeps the last block of it in registers until its last walk."""
    rows_extent = analysis.extent(parallel)
    running = {s.kind for s in analysis.nest.body if isinstance(s, Reduce)} == {"online_softmax"}
    configs = _configs(analysis.hint(rows_extent), extent, running, analysis, target)
    dim = tile_dim("col", analysis.reduction, analysis, "loop", "COLS", configs)
    dim = replace(dim, masked=any(extent % dict(c.constants)["COLS"] for c in configs))
    grid = rows_extent * ex.sym("PARTS", 1) if parallel else ex.sym("PARTS", 1)
    parts = dict(configs[0].constants)["PARTS"]
    why = f"{parts} programs share a row of {extent}, each with the last block of its part in registers"
    return Schedule((dim,), row_scalars(parallel, rows_extent), grid, configs, False, why, folds=True, shared=True)


def _configs(rows: int, extent: int, running: bool, analysis: Analysis, target: Target) -> tuple[Config, ...]:
    """Parts so small that those in flight stay in the L2, and so many that every multiprocessor has some."""
    item, most = max(largest_item(analysis), 4), min(target.units, 2 * MOST_PARTS)
    columns, part = BLOCK_BYTES // item // (1 if aligned(analysis) else 2), PART_BYTES // item
    while part > columns // 2 and rows * math.ceil(extent / part) < FULL * target.units and part > 2048:
        part //= 2
    columns = min(columns, part)
    while math.ceil(extent / part) > most:
        part *= 2
    modern = int(target.arch.removeprefix("sm_")) >= 90
    wide = not running and tile_values(analysis) <= 2 and item == 4 and modern  # else ptxas would spill
    whole, half = THREAD_BYTES // item, THREAD_BYTES // item // 2
    tried = [(columns, part, whole), (columns, part * 2, whole), (columns, part // 2, whole), (columns * 2, part * 2, whole)]
    tried += [(columns // 2, part // 2, whole)]
    if not running:  # fewer registers a thread, more threads
        tried += [(columns // 2, part, half)]
    if wide:  # all of a part in registers
        tried += [(columns, columns, 2 * whole)]
    fitting = [(c, p, n) for c, p, n in tried if c <= p and math.ceil(extent / p) <= most]
    vector = max(16 // item, 1)
    configs = [_config(extent, c, p, n, vector, running, 64 * (n > whole)) for c, p, n in fitting]
    return candidates(configs, COLS=extent)


def _config(extent: int, columns: int, part: int, each: int, vector: int, running: bool, cap: int) -> Config:
    """``each``: elements of a block that a thread takes, ``vector`` of them at a time; ``cap``: on its registers."""
    parts, warps = math.ceil(extent / part), max(1, min(32, columns // (32 * each)))
    fold = RUNNING_FOLD if running else columns // (32 * warps * vector)
    constants = (("COLS", columns), ("PART", part), ("PARTS", parts), ("LANES", power_of_2(parts)), (FOLD, max(fold, 1)))
    return Config(constants, warps, max_registers=cap)


# memory --------------------------------------------------------------------------------------------------------------------


def _published(analysis: Analysis) -> list[tuple[str, torch.dtype]]:
    return [(n, d) for s in analysis.nest.body if isinstance(s, Reduce) for n, d in zip(s.names, s.dtypes, strict=True)]


def memory(analysis: Analysis, chosen: Schedule) -> tuple[KernelArg, ...]:
    """The arguments for counters and published values, of a size that suffices for every configuration."""
    rows = analysis.extent(analysis.parallel)
    values = _published(analysis)
    parts = max(dict(c.constants)["PARTS"] for c in chosen.configs)
    return (
        KernelArg(COUNTERS, "counters", "int32", rows),
        KernelArg(SPARE, "spare", "int32", rows),
        KernelArg(PUBLISHED, "scratch", short_name(values[0][1]), rows * (parts * len(values))),
    )


# what is written -----------------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """Writes what programs tell each other. ``rows``: their number as text. ``row``: the row's variable."""

    analysis: Analysis
    rows: str
    row: str
    meetings: int = 0

    def __post_init__(self) -> None:
        values = _published(self.analysis)
        self.slots = {name: i for i, (name, _) in enumerate(values)}
        self.dtype = values[0][1]

    def opening(self, extent: str) -> list[str]:
        """The next launch's counters, and the number of elements of this program's part."""
        return [f"clear({SPARE}, {self.row}, part)", f"part_count = tl.minimum(PART, {extent} - part * PART)"]

    def meet(self, reduces: list[tuple[Reduce, tuple[str, ...]]]) -> list[str]:
        """Publish the parts of some reductions and combine all programs' parts into their results."""
        self.meetings += 1
        lines = []
        for s, targets in reduces:
            for name, target in zip(s.names, targets, strict=True):
                lines.append(f"tl.store({PUBLISHED} + ({self.place(name)} * PARTS + part), {target}_part)")
        lines.append(f"meet({COUNTERS} + {self.row}, PARTS * {self.meetings})")
        lines.append("lane = tl.arange(0, LANES)")
        for s, targets in reduces:
            for name, target in zip(s.names, targets, strict=True):
                neutral = literal(identity(s.kind if name == s.names[0] else "sum", self.dtype), self.dtype)
                at = f"{PUBLISHED} + ({self.place(name)} * PARTS + lane)"
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
        count = f"tl.maximum(tl.minimum(PART, {extent} - lane * PART), 0).to({triton_dtype(self.dtype)})"
        return [f"{targets[0]}, {targets[1]} = welford_of_parts({first}, {second}, {count}, {extent})"]
