"""The loops over parallel axes, which threads share: whole axes, and the blocks of those that are cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tinycompile.base import expr as ex
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.schedule import Schedule
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Axis


@contextlib.contextmanager
def outer_loops(plan: Schedule, text: Statements, names: Names, out: Writer) -> Iterator[None]:
    """Open them. In a block of ``axis`` stand ``axis_begin`` and ``axis_end``."""
    lane = plan.lane if plan.lane_is_parallel else None
    loops = [(names.value(a.name), text.dim(a.extent), 1) for a in plan.outer if a != plan.tile]
    in_panels = plan.panel > plan.tile_rows
    if plan.tile is not None:
        part, size = ("panel", plan.panel) if in_panels else ("begin", plan.tile_rows)
        loops.append(_cut(plan.tile, part, size, text, names))
    if lane is not None and plan.block:
        loops.append(_cut(lane, "begin", plan.block, text, names))
    axes = [*plan.outer, *([lane] if lane else []), *plan.inner]
    if loops or plan.split:
        work = text.dim(ex.product(a.extent for a in axes) * plan.cost)
        out.line(f"const int workers = tc::useful_threads({work}, threads);")
    if loops and not plan.split:
        collapse = f" collapse({len(loops)})" if len(loops) > 1 else ""
        out.line(f"#pragma omp parallel for{collapse} schedule(static) num_threads(workers) reduction(|: fault)")
    with contextlib.ExitStack() as stack:
        for i, (name, end, step) in enumerate(loops):
            last = i == len(loops) - 1
            header = _header(name, "0", end, step)
            stack.enter_context(out.block(header + (" {" if last else ""), "}" if last else ""))
        if lane is not None and plan.block:
            out.line(_end(lane, "begin", plan.block, "end", text, names))
        if plan.tile is not None:
            assert lane is not None
            out.lines(*_after_these_lanes(plan.tile, lane, plan, text, names))
            if in_panels:
                row = names.value(plan.tile.name)
                out.line(_end(plan.tile, "panel", plan.panel, "panel_end", text, names))
                header = _header(f"{row}_begin", f"{row}_panel", f"{row}_panel_end", plan.tile_rows)
                stack.enter_context(out.block(header + " {", "}"))
            out.line(_end(plan.tile, "begin", plan.tile_rows, "end", text, names))
        yield


def _after_these_lanes(tile: Axis, lane: Axis, plan: Schedule, text: Statements, names: Names) -> list[str]:
    """Which lanes come next, and how many rows on: the same rows, or with the first lanes those of the next panel."""
    row, column = names.value(tile.name), names.value(lane.name)
    left = f"{column}_end < {text.dim(lane.extent)}"
    return [
        f"const int64_t {column}_next = {left} ? {column}_end : 0;",
        f"const int64_t {row}_ahead = {left} ? 0 : {plan.panel};",
    ]


def _cut(axis: Axis, part: str, step: int, text: Statements, names: Names) -> tuple[str, str, int]:
    """The loop over parts of an axis: its variable, where it ends, how far it goes at a time."""
    return f"{names.value(axis.name)}_{part}", text.dim(axis.extent), step


def _header(name: str, begin: str, end: str, step: int) -> str:
    stride = f"++{name}" if step == 1 else f"{name} += {step}"
    return f"for (int64_t {name} = {begin}; {name} < {end}; {stride})"


def _end(axis: Axis, part: str, step: int, end: str, text: Statements, names: Names) -> str:
    """Where a part of an axis ends, that has up to ``step`` elements."""
    name = names.value(axis.name)
    stop = f"{name}_{part} + {step}"
    if not isinstance(axis.extent, int) or axis.extent % step:
        stop = f"tc::least<int64_t>({stop}, {text.dim(axis.extent)})"
    return f"const int64_t {name}_{end} = {stop};"
