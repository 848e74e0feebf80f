"""The loops over parallel axes, which threads share: whole axes, and the blocks of those that are cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tinycompile.base import expr as ex
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.schedule import Schedule
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.writer import Writer


@contextlib.contextmanager
def outer_loops(plan: Schedule, text: Statements, names: Names, out: Writer) -> Iterator[None]:
    """Open them. In a block of ``axis`` stand ``axis_begin`` and ``axis_end``."""
    lane = plan.lane if plan.lane_is_parallel else None
    loops = [(names.value(a.name), text.dim(a.extent), 1) for a in plan.outer if a != plan.tile]
    steps = [(plan.tile, plan.tile_rows), (lane, plan.block)]
    blocks = [(a, step) for a, step in steps if a is not None and step]
    loops += [(f"{names.value(a.name)}_begin", text.dim(a.extent), step) for a, step in blocks]
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
            stride = f"++{name}" if step == 1 else f"{name} += {step}"
            header = f"for (int64_t {name} = 0; {name} < {end}; {stride})"
            stack.enter_context(out.block(header + (" {" if last else ""), "}" if last else ""))
        for a, step in blocks:
            name = names.value(a.name)
            end = f"{name}_begin + {step}"
            if not isinstance(a.extent, int) or a.extent % step:
                end = f"tc::least<int64_t>({end}, {text.dim(a.extent)})"
            out.line(f"const int64_t {name}_end = {end};")
        yield
