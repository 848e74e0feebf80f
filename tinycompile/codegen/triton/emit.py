"""``emit_kernel``: one fused nest -> one readable Triton module.

A pointwise nest is one body. A reduction whose rows fit in registers is one body too. Else the nest is cut into passes over the
row: pass k accumulates the reductions that need k earlier ones, recomputing the cheap values before them; stores of row-long
values happen in the first pass that has their operands.
"""

from __future__ import annotations

from tinycompile.base.target import Target
from tinycompile.codegen.triton import shared_rows
from tinycompile.codegen.triton.nest_writer import analysis_of
from tinycompile.codegen.triton.schedule import schedule
from tinycompile.codegen.triton.tiles import TileDim
from tinycompile.codegen.triton.walks import Walks
from tinycompile.ir.loops import Store
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import Config, KernelSource


def emit_kernel(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
    """Generate ``kernel`` as a module whose function is ``name``. Raises BackendError for what is not covered."""
    analysis = analysis_of(kernel, plan, name)
    return _Emitter(kernel, plan, analysis, schedule(analysis, target), name).source()


class _Emitter(Walks):
    """Writes one kernel."""

    # the module -----------------------------------------------------------------------------------------------------------

    def source(self) -> KernelSource:
        """The kernel with all that is needed to build and launch it."""
        with self.out.indented():
            self.write_body()
        memory = shared_rows.memory(self.analysis, self.schedule) if self.schedule.shared else ()
        return self.module(memory, self.schedule.grid, self.configs())

    def configs(self) -> tuple[Config, ...]:
        """Only one where running twice gives another result: trying out the others would."""
        in_place = set(self.kernel.reads) & set(self.kernel.writes)
        atomic = any(isinstance(s, Store) and s.mode != "plain" for s in self.kernel.nest.body)
        return self.schedule.configs[:1] if in_place or atomic else self.schedule.configs

    # the program ----------------------------------------------------------------------------------------------------------

    def write_body(self) -> None:
        """Everything inside the function."""
        self.write_opening()
        self.write_program()
        statements = list(enumerate(self.kernel.nest.body))
        loop = next((d for d in self.schedule.dims if d.role == "loop"), None)
        if loop is not None:
            self.write_passes(loop)
            return
        for dim in self.schedule.dims:
            self.write_axes(dim)
        if self.schedule.branch:
            dim = self.schedule.dims[0]
            with self.out.block(f"if (tl.program_id(0) + 1) * {dim.block} <= {self.extent(dim.extent, f'{dim.name}_size')}:"):
                self.body.masks = False
                self.write_statements(statements)
            with self.out.block("else:"):
                self.body.masks = True
                self.write_masks(self.schedule.dims)
                self.write_statements(statements)
            return
        self.write_masks(self.schedule.dims)
        self.write_statements(statements)

    def write_program(self) -> None:
        """Which tile this program works on."""
        tiles = [d for d in self.schedule.dims if d.role == "tile"]
        picked: list[TileDim] = [*self.schedule.scalars, *tiles]  # outermost first
        rest = "tl.program_id(0)"
        if self.schedule.shared:
            self.out.lines("program = tl.program_id(0)", "part = program % PARTS")
            rest = "(program // PARTS)"
        elif len(picked) > 1:
            self.out.line("program = tl.program_id(0)")
            rest = "program"
        for i, dim in enumerate(picked):
            later = picked[i + 1 :]
            start = rest
            if later:
                inner = " * ".join(self._count(d) for d in later)
                inner = f"({inner})" if len(later) > 1 else inner
                start = f"{rest} // {inner}"
                next_rest = f"{rest} % {inner}"
            cast = ".to(tl.int64)" if dim.wide else ""
            start = f"({start}){cast}" if cast and later else start + cast
            if dim.role == "scalar":
                self.out.line(f"{dim.name} = {start}")
                self.write_axes(dim)
            else:
                start = f"({start})" if later and not cast else start
                self.out.line(f"{dim.name} = {start} * {dim.block} + {self.arange(dim)}")
            if later:
                self.out.line(f"{dim.name}_rest = {next_rest}") if len(later) > 1 else None
                rest = f"{dim.name}_rest" if len(later) > 1 else f"({next_rest})"
        for dim in self.schedule.dims:
            if dim.role == "whole":
                self.out.line(f"{dim.name} = {self.arange(dim)}")

    def _count(self, dim: TileDim) -> str:
        size = self.extent(dim.extent, f"{dim.name}_size")
        return size if dim.role == "scalar" else f"tl.cdiv({size}, {dim.block})"
