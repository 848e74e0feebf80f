"""Statements of a nest as lines of a kernel, with its names, sizes and axes: what every way to walk the nest shares."""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Iterable, Sequence

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.codegen.triton import reductions, shared_rows
from tinycompile.codegen.triton.analysis import Analysis, Forms, analyse, names_of
from tinycompile.codegen.triton.body import Body, location_text, name_values
from tinycompile.codegen.triton.bounds import may_approximate
from tinycompile.codegen.triton.dtypes import short_name, supported
from tinycompile.codegen.triton.imports import helpers, import_lines
from tinycompile.codegen.triton.indexing import Names
from tinycompile.codegen.triton.passes import Numbered
from tinycompile.codegen.triton.tiles import FOLD, Schedule, TileDim
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Const, Index, Load, Reduce, Scalar, Scan, Statement, Store
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import Config, KernelArg, KernelSource


@functools.lru_cache(maxsize=4096)
def _shortened(text: str) -> str:
    return textwrap.shorten(text, 110)


def analysis_of(kernel: Kernel, plan: Plan, name: str) -> Analysis:
    """The analysis of a kernel's nest. Raises BackendError for a dtype that Triton doesn't have."""
    for buffer in (*kernel.reads, *kernel.writes):
        if not supported(plan.metas[buffer].dtype):
            raise BackendError(f"{name}: Triton has no dtype {plan.metas[buffer].dtype} (buffer {buffer})")
    return analyse(kernel.nest, plan.metas, dict(plan.hints))


class NestWriter:
    """Writes the statements of one kernel."""

    def __init__(self, kernel: Kernel, plan: Plan, analysis: Analysis, chosen: Schedule, name: str) -> None:
        self.kernel, self.plan, self.analysis, self.schedule, self.name = kernel, plan, analysis, chosen, name
        self.out = Writer()
        buffers = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        blocks = (
            self.reserved()
            | set(chosen.constants)
            | {f"{d.name}{tail}" for d in chosen.dims for tail in ("_mask", "_start", "_step")}
            | {"steps"}
        )
        self.names = Names(frozenset(blocks | {"program", "steps"} | set(helpers()) | {name} | {s.symbol for s in plan.sizes}))
        self.pointers = {b: self.names.fresh(f"{b}_ptr") for b in buffers}
        self.sizes: dict[str, Dim] = {}
        self.lines = plan.places
        fast = may_approximate(kernel.nest, {b: plan.metas[b].dtype for b in buffers})
        self.body = Body(analysis, chosen, self.pointers, fast, self.size)
        self.body.variables = name_values(kernel.nest, self.names)
        self._declare()

    # names ----------------------------------------------------------------------------------------------------------------

    def reserved(self) -> frozenset[str]:
        """Names that no variable of the nest may have."""
        return shared_rows.NAMES if self.schedule.shared else frozenset()

    def size(self, s: Sym) -> str:
        """A size symbol becomes an argument of the kernel."""
        if s.name not in self.analysis.hints:
            raise BackendError(f"{self.name}: {s.name} is neither an axis, a value nor a size")
        self.sizes[s.name] = ex.sym(s.name, s.lo, s.stop)
        return s.name

    def extent(self, d: Dim, name: str) -> str:
        """An extent as text; a symbolic product is computed by the caller, once a launch."""
        if isinstance(d, int) or ex.as_sym(d) is not None:
            return self.body.text(d)
        self.sizes[name] = d
        return name

    def source_lines(self) -> tuple[str, ...]:
        """The user's lines that this kernel covers, as ``file:line``."""
        found = [self.lines[o] for nest in self.kernel.nests for o in nest.origins if o in self.lines]
        return tuple(dict.fromkeys(f"{loc.file}:{loc.line}" for loc in found))

    def docstring(self) -> str:
        """What the kernel does, and from which of the user's lines."""
        lines = self.source_lines()
        shown = ", ".join(os.path.basename(x) for x in lines[:4]) + (", ..." if len(lines) > 4 else "")
        return f"{self.schedule.why[0].upper()}{self.schedule.why[1:]}." + (f" From {shown}." if lines else "")

    def write_opening(self, waits: bool = True) -> None:
        """What every kernel begins with. ``waits``: for the kernel before it at once, not later."""
        self.out.line(f'"""{self.docstring()}"""')
        if self.schedule.overlaps:
            self.out.line("launch_next()")
            if waits:
                self.out.line("wait_for_previous()")

    def pointer_arg(self, buffer: str) -> KernelArg:
        """A buffer as an argument."""
        meta = self.analysis.metas[buffer]
        aligned = ex.divisible_by(meta.offset * meta.dtype.itemsize, 16)
        return KernelArg(buffer, "pointer", short_name(meta.dtype), None, aligned)

    def size_arg(self, name: str, value: Dim) -> KernelArg:
        """A size as an argument."""
        big = self.analysis.hint(value) > 2**31 - 1
        return KernelArg(name, "size", "int64" if big else "int32", value, ex.divisible_by(value, 16))

    def module(self, memory: Sequence[KernelArg], grid: Dim, configs: tuple[Config, ...]) -> KernelSource:
        """What has been written, the body of the function, as a kernel with all that is needed to build and launch it."""
        for s in sorted(ex.symbols(self.schedule.grid), key=lambda s: s.name):
            if s.name in self.analysis.hints:  # the launcher computes the grid from the kernel's own arguments
                self.size(s)
        module = Writer()
        module.lines(f'"""{self.name}: {self.schedule.why}."""', "", "import triton", "import triton.language as tl")
        imports, body = import_lines(self.out.text(), self.name)
        if imports:
            module.lines("", *imports)
        parameters = [*self.pointers.values(), *(a.name for a in memory), *self.sizes]
        parameters += [f"{name}: tl.constexpr" for name, _ in configs[0].constants]
        module.lines("", "", "@triton.jit", f"def {self.name}({', '.join(parameters)}):")
        args = [self.pointer_arg(b) for b in self.pointers] + list(memory)
        args += [self.size_arg(n, d) for n, d in self.sizes.items()]
        return KernelSource(
            self.name, "triton", module.text() + body, tuple(args), (grid,), configs, self.kernel.bytes_moved,
            self.kernel.flops, self.source_lines(), f"{self.schedule.why}. {self.kernel.why}".strip(),
            self.schedule.overlaps,
        )  # fmt: skip

    def _declare(self) -> None:
        """The dtype of each value, and constants as text."""
        for s in self.kernel.nest.body:
            if isinstance(s, Const):
                self.body.constant(s)
            elif not isinstance(s, Store):
                dtypes = s.dtypes if isinstance(s, (Reduce, Scan)) else (s.dtype,)
                self.body.dtypes.update(zip(names_of(s), dtypes, strict=True))

    # axes -----------------------------------------------------------------------------------------------------------------

    def arange(self, dim: TileDim) -> str:
        """Positions in the block, as a tile of the right rank."""
        text = f"tl.arange(0, {dim.block})"
        if len(self.schedule.dims) == 1:
            return text
        return text + ("[:, None]" if dim is self.schedule.dims[0] else "[None, :]")

    def write_axes(self, dim: TileDim) -> None:
        """The nest's axes from the flat index of a dimension."""
        if len(dim.axes) == 1:
            self.body.axes[dim.axes[0].name] = dim.name
            return
        after: Dim = 1
        for axis in reversed(dim.axes):
            wider = axis is not dim.axes[0]
            step = self.extent(after, f"{axis.name}_step")
            text = dim.name if after == 1 else f"{dim.name} // {step}"
            if wider:
                text = (
                    f"({text}) % {self.extent(axis.extent, f'{axis.name}_size')}"
                    if after != 1
                    else f"{text} % {self.extent(axis.extent, f'{axis.name}_size')}"
                )
            variable = self.body.axes.get(axis.name) or self.names.fresh(axis.name)
            self.body.axes[axis.name] = variable
            self.out.line(f"{variable} = {text}")
            after = after * axis.extent

    def write_masks(self, dims: Iterable[TileDim]) -> None:
        """Masks of the dimensions whose last block sticks out."""
        for dim in dims:
            if dim.masked and dim.role != "scalar" and dim.name != self.body.inside:
                self.out.line(f"{dim.name}_mask = {dim.name} < {self.extent(dim.extent, f'{dim.name}_size')}")

    # statements -----------------------------------------------------------------------------------------------------------

    def write_statements(self, statements: Iterable[Numbered], carried: bool = False) -> None:
        """Statements in order, grouped under the user's lines. ``carried``: scans go on from the block before."""
        shown = ""
        for position, s in statements:
            comment = self.comment_of(getattr(s, "origin", ""))
            if comment and comment != shown and not isinstance(s, Const):
                self.out.comment(comment)
                shown = comment
            self.out.lines(*self.statement(s, self.analysis.forms[position], carried))

    def comment_of(self, origin: str) -> str:
        """The user's line of a graph node with a known location; the node's name is that of its variable."""
        loc = self.lines.get(origin)
        return "" if loc is None else _shortened(location_text(loc))

    def statement(self, s: Statement, form: Forms, carried: bool) -> list[str]:
        """The lines of one statement; a reduction is over a tile that holds the whole row."""
        body = self.body
        if isinstance(s, Const):
            return []
        if isinstance(s, Store):
            return [*body.bounds_check(form), body.store(s, form)]
        if isinstance(s, Reduce):
            targets = tuple(body.variables[n] + ("_part" if self.schedule.shared else "") for n in s.names)
            return reductions.whole(s.kind, targets, self.tile_value(s.args[0]), body.dtypes[s.args[0]], s.dtypes, self.site(s))
        if isinstance(s, Scan):
            target = body.variables[s.names[0]]
            carry = f"{target}_carry" if carried else ""
            return reductions.scan(s.kind, target, self.tile_value(s.args[0]), s.dtypes[0], self.site(s), carry)
        text = body.load(s, form) if isinstance(s, Load) else body.index(s, form) if isinstance(s, Index) else body.scalar(s)
        check = body.bounds_check(form) if isinstance(s, Load) else body.checked(s) if isinstance(s, Scalar) else []
        return [*check, f"{body.variables[s.name]} = {text}"]

    def tile_value(self, name: str) -> str:
        """A value broadcast along the reduced dimension."""
        text, span = self.body.operand(name), self.analysis.spans[name]
        if self.body.covers(self.schedule.dims[-1], span):
            return text
        return f"tl.broadcast_to({text}, {self.reduced_shape(span)})"

    def reduced_shape(self, span: frozenset[str]) -> str:
        """The shape of a value that also runs along the reduced dimension."""
        return self.body.shape(span, whole=self.schedule.dims[-1])

    def site(self, s: Reduce | Scan) -> reductions.Site:
        """Where the reduction of ``s`` happens."""
        row = self.schedule.dims[-1]
        two = len(self.schedule.dims) == 2
        return reductions.Site(
            axis=1 if two else 0, keep=two, shape=self.reduced_shape(self.analysis.spans[s.args[0]]),
            mask=f"{row.name}_mask" if self.body.sticks_out(row) else "",
            index=row.name, index_dtype="tl.int64" if row.wide else "tl.int32",
            count="part_count" if self.schedule.shared else self.extent(row.extent, f"{row.name}_size"),
            block=row.block, lane=self.arange(row), fold=FOLD if self.schedule.folds else "",
        )  # fmt: skip
