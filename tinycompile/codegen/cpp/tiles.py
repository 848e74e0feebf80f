"""Blocks where some loads are contiguous across the lanes: those are transposed into arrays, and each row asks for what it
reads and writes with the lanes that follow."""

from __future__ import annotations

from collections.abc import Sequence

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.codegen.cpp.fetch import block_ahead, next_lanes
from tinycompile.codegen.cpp.indexing import c_dim
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.scalars import MEMORY_TYPES
from tinycompile.codegen.cpp.schedule import Schedule, is_across, is_along
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.ir.loops import Load, Statement


def tile_lines(plan: Schedule, body: Sequence[Statement], text: Statements, names: Names) -> tuple[list[str], list[str]]:
    """Lines before the loop over the rows of a block, and at the start of each row. ``text.tiled`` then knows the loads whose
    elements lie in an array."""
    tile, lane = plan.tile, plan.lane
    assert tile is not None and lane is not None
    loads = [s for s in body if isinstance(s, Load)]
    across: dict[tuple[str, Dim], list[Load]] = {}
    for s in loads:
        if is_across(s, tile, lane):
            across.setdefault((s.buffer, s.index[0]), []).append(s)
    before: list[str] = []
    ahead = [block_ahead(s, plan, text, names) for s in body if is_along(s, lane)]
    for (first, *_), pointer in ((group, names.buffer(buffer)) for (buffer, _), group in across.items()):
        array = names.fresh(f"{pointer}_tile")
        before += _transposed(first, array, plan, text, names)
        row, column = names.value(tile.name), names.value(lane.name)
        place = f"{array}[({row} - {row}_begin)*{plan.block} + {column} - {column}_begin]"
        text.tiled |= {s.name: place for s in across[first.buffer, first.index[0]]}
    return before, list(dict.fromkeys(ahead))


def _transposed(s: Load, array: str, plan: Schedule, text: Statements, names: Names) -> list[str]:
    """The array of a load's block, filled."""
    assert plan.tile is not None and plan.lane is not None
    row, lane, block = names.value(plan.tile.name), names.value(plan.lane.name), plan.block
    begins = {plan.tile.name: f"{row}_begin", plan.lane.name: f"{lane}_begin"}
    step = ex.coefficient(s.index[0], plan.lane.name)
    assert step is not None
    start = f"{names.buffer(s.buffer)} + {c_dim(s.index[0], lambda n: begins.get(n) or text.symbol(n))}"
    ahead = f"{names.buffer(s.buffer)} + {next_lanes(s, plan, f'{row}_begin', text, names)}"
    sizes = f"{text.dim(step)}, {lane}_end - {lane}_begin, {row}_end - {row}_begin"
    return [
        f"alignas(64) {MEMORY_TYPES[s.dtype]} {array}[{block * plan.tile_rows}];",
        f"tc::transpose<{block}, {plan.tile_rows}>({array}, {start}, {ahead}, {sizes});",
    ]
