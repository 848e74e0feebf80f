"""``emit_kernel``: one fused nest -> one readable Triton module.

A pointwise nest is one body. A reduction whose rows fit in registers is one body too. Else the nest is cut into passes over the
row: pass k accumulates the reductions that need k earlier ones, recomputing the cheap values before them; stores of row-long
values happen in the first pass that has their operands.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.codegen.triton import reductions, shared_rows
from tinycompile.codegen.triton.analysis import Analysis, Forms, analyse, names_of, uses_of
from tinycompile.codegen.triton.body import Body, location_text, name_values
from tinycompile.codegen.triton.bounds import may_approximate
from tinycompile.codegen.triton.dtypes import short_name, supported
from tinycompile.codegen.triton.imports import helpers, import_lines
from tinycompile.codegen.triton.indexing import Names
from tinycompile.codegen.triton.passes import Numbered, Pass, plan_passes
from tinycompile.codegen.triton.schedule import schedule
from tinycompile.codegen.triton.tiles import Schedule, TileDim
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Const, Index, Load, Reduce, Scan, Statement, Store
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import Config, KernelArg, KernelSource


def emit_kernel(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
    """Generate ``kernel`` as a module whose function is ``name``. Raises BackendError for what is not covered."""
    metas = {b.name: b.meta for b in plan.buffers}
    for buffer in (*kernel.reads, *kernel.writes):
        if not supported(metas[buffer].dtype):
            raise BackendError(f"{name}: Triton has no dtype {metas[buffer].dtype} (buffer {buffer})")
    analysis = analyse(kernel.nest, metas, dict(plan.hints))
    return _Emitter(kernel, plan, analysis, schedule(analysis, target), name).source()


class _Emitter:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, plan: Plan, analysis: Analysis, chosen: Schedule, name: str) -> None:
        self.kernel, self.plan, self.analysis, self.schedule, self.name = kernel, plan, analysis, chosen, name
        self.out = Writer()
        buffers = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        own = shared_rows.NAMES if chosen.shared else frozenset()
        blocks = own | set(chosen.constants) | {f"{d.name}_mask" for d in chosen.dims}
        self.names = Names(frozenset(blocks | set(helpers()) | {name} | {s.symbol for s in plan.sizes}))
        self.pointers = {b: self.names.fresh(f"{b}_ptr") for b in buffers}
        self.sizes: dict[str, Dim] = {}
        self.lines = dict(plan.lines)
        fast = may_approximate(kernel.nest, {b: m.dtype for b, m in analysis.metas.items()})
        self.body = Body(analysis, chosen, self.pointers, fast, self.size)
        self.body.variables = name_values(kernel.nest, self.names)
        self._declare()

    # the module -----------------------------------------------------------------------------------------------------------

    def source(self) -> KernelSource:
        """The kernel with all that is needed to build and launch it."""
        with self.out.indented():
            self.write_body()
        for s in sorted(ex.symbols(self.schedule.grid), key=lambda s: s.name):
            if s.name in self.analysis.hints:  # the launcher computes the grid from the kernel's own arguments
                self.size(s)
        body = self.out.text()
        module = Writer()
        module.lines(f'"""{self.name}: {self.schedule.why}."""', "", "import triton", "import triton.language as tl")
        imports, body = import_lines(body, self.name)
        if imports:
            module.lines("", *imports)
        module.lines("", "", "@triton.jit")
        scratch = [shared_rows.SCRATCH] if self.schedule.shared else []
        parameters = [*self.pointers.values(), *scratch, *self.sizes, *(f"{c}: tl.constexpr" for c in self.schedule.constants)]
        module.line(f"def {self.name}({', '.join(parameters)}):")
        args = [self._pointer_arg(b) for b in self.pointers]
        if self.schedule.shared:
            size = shared_rows.scratch_size(self.analysis, self.schedule)
            args.append(KernelArg(shared_rows.SCRATCH, "scratch", "int32", size))
        args += [self._size_arg(n, d) for n, d in self.sizes.items()]
        return KernelSource(
            self.name, "triton", module.text() + body, tuple(args), (self.schedule.grid,), self.configs(),
            self.kernel.bytes_moved, self.kernel.flops, self.source_lines(),
            f"{self.schedule.why}. {self.kernel.why}".strip(),
        )  # fmt: skip

    def configs(self) -> tuple[Config, ...]:
        """Only one where running twice gives another result: trying out the others would."""
        in_place = set(self.kernel.reads) & set(self.kernel.writes)
        atomic = any(isinstance(s, Store) and s.mode != "plain" for s in self.kernel.nest.body)
        return self.schedule.configs[:1] if in_place or atomic else self.schedule.configs

    def _pointer_arg(self, buffer: str) -> KernelArg:
        meta = self.analysis.metas[buffer]
        aligned = ex.divisible_by(meta.offset * meta.dtype.itemsize, 16)
        return KernelArg(buffer, "pointer", short_name(meta.dtype), None, aligned)

    def _size_arg(self, name: str, value: Dim) -> KernelArg:
        big = self.analysis.hint(value) > 2**31 - 1
        return KernelArg(name, "size", "int64" if big else "int32", value, ex.divisible_by(value, 16))

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
        found = [self.lines[o] for o in self.kernel.nest.origins if o in self.lines]
        return tuple(dict.fromkeys(f"{loc.file}:{loc.line}" for loc in found))

    # names ----------------------------------------------------------------------------------------------------------------

    def _declare(self) -> None:
        """The dtype of each value, and constants as text."""
        for s in self.kernel.nest.body:
            if isinstance(s, Const):
                self.body.constant(s)
            elif not isinstance(s, Store):
                dtypes = s.dtypes if isinstance(s, (Reduce, Scan)) else (s.dtype,)
                self.body.dtypes.update(zip(names_of(s), dtypes, strict=True))

    # the program ----------------------------------------------------------------------------------------------------------

    def write_body(self) -> None:
        """Everything inside the function."""
        self.out.line(f'"""{self._docstring()}"""')
        self.write_program()
        statements = list(enumerate(self.kernel.nest.body))
        loop = next((d for d in self.schedule.dims if d.role == "loop"), None)
        if loop is not None:
            self.write_passes(loop)
            return
        for dim in self.schedule.dims:
            self.write_axes(dim)
        if self.schedule.shared:
            self.write_masks(self.schedule.dims)
            self.write_kept_part(statements)
            return
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

    def _docstring(self) -> str:
        lines = self.source_lines()
        shown = ", ".join(os.path.basename(x) for x in lines[:4]) + (", ..." if len(lines) > 4 else "")
        return f"{self.schedule.why[0].upper()}{self.schedule.why[1:]}." + (f" From {shown}." if lines else "")

    def write_program(self) -> None:
        """Which tile this program works on."""
        tiles = [d for d in self.schedule.dims if d.role == "tile"]
        picked: list[TileDim] = [*self.schedule.scalars, *tiles]  # outermost first
        rest = "tl.program_id(0)"
        if self.schedule.shared:
            self.out.lines(f"program = next_ticket({shared_rows.SCRATCH})", "part = program % PARTS")
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
                start = "part * PART + " if self.schedule.shared else ""
                self.out.line(f"{dim.name} = {start}{self.arange(dim)}")

    def _count(self, dim: TileDim) -> str:
        size = self.extent(dim.extent, f"{dim.name}_size")
        return size if dim.role == "scalar" else f"tl.cdiv({size}, {dim.block})"

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
            if dim.masked and dim.role != "scalar":
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

    def write_kept_part(self, statements: list[Numbered]) -> None:
        """Statements on a part that stays in registers, by how many reductions in sequence they wait for; between these, the
        programs of the row meet."""
        exchange = self.start_exchange()
        along = {a.name for a in self.analysis.reduction}
        rounds: dict[int, list[Numbered]] = {}
        for position, s in statements:
            uses = uses_of(s, self.analysis.forms[position])
            rounds.setdefault(max((self.analysis.level.get(u, 0) for u in uses), default=0), []).append((position, s))
        for depth in sorted(rounds):
            alone = [n for n in rounds[depth] if isinstance(n[1], Store) and not self.analysis.axes_at(n[0]) & along]
            self.write_statements([n for n in rounds[depth] if n not in alone])
            self.write_between(tuple(alone))
            self.write_meeting(exchange, [s for _, s in rounds[depth] if isinstance(s, Reduce)])

    def write_meeting(self, exchange: shared_rows.Exchange, reduces: list[Reduce]) -> None:
        """All programs of the row, with what each found."""
        if reduces:
            self.out.lines(*exchange.meet([(r, tuple(self.body.variables[n] for n in r.names)) for r in reduces]))

    def comment_of(self, origin: str) -> str:
        """The user's line of a graph node with a known location; the node's name is that of its variable."""
        loc = self.lines.get(origin)
        return "" if loc is None else textwrap.shorten(location_text(loc), 110)

    def statement(self, s: Statement, form: Forms, carried: bool) -> list[str]:
        """The lines of one statement; a reduction is over a tile that holds the whole row."""
        body = self.body
        if isinstance(s, Const):
            return []
        if isinstance(s, Store):
            return [body.store(s, form)]
        if isinstance(s, Reduce):
            targets = tuple(body.variables[n] + ("_part" if self.schedule.shared else "") for n in s.names)
            return reductions.whole(s.kind, targets, self.tile_value(s.args[0]), body.dtypes[s.args[0]], s.dtypes, self.site(s))
        if isinstance(s, Scan):
            target = body.variables[s.names[0]]
            carry = f"{target}_carry" if carried else ""
            return reductions.scan(s.kind, target, self.tile_value(s.args[0]), s.dtypes[0], self.site(s), carry)
        text = body.load(s, form) if isinstance(s, Load) else body.index(s, form) if isinstance(s, Index) else body.scalar(s)
        check = body.bounds_check(form) if isinstance(s, Load) else []
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
            mask=f"{row.name}_mask" if row.masked else "", index=row.name, index_dtype="tl.int64" if row.wide else "tl.int32",
            count="part_count" if self.schedule.shared else self.extent(row.extent, f"{row.name}_size"),
            block=row.block, lane=self.arange(row), fold=self.schedule.fold,
        )  # fmt: skip

    # passes ---------------------------------------------------------------------------------------------------------------

    def write_passes(self, loop: TileDim) -> None:
        """Alternate between row values and passes over the row."""
        for dim in self.schedule.dims:
            if dim is not loop:
                self.write_axes(dim)
                self.write_masks([dim])
        passes = plan_passes(self.analysis)
        loops = [i for i, p in enumerate(passes) if p.inside]
        exchange = self.start_exchange() if self.schedule.shared else None
        for i, step in enumerate(passes):
            self.write_between(step.before)
            if step.inside:
                policy = "" if len(loops) == 1 else "evict_first" if i == loops[-1] else "evict_last"
                scans = any(isinstance(s, Scan) for _, s in step.inside)
                self.write_loop(loop, step, policy, backwards=loops.index(i) % 2 == 1 and not scans)
            if exchange is not None:
                self.write_meeting(exchange, [s for _, s in step.reduces if isinstance(s, Reduce)])

    def start_exchange(self) -> shared_rows.Exchange:
        """What programs that share a row tell each other, and where."""
        rows = self.analysis.extent(self.analysis.parallel)
        start = self.extent(shared_rows.start_of_values(rows), "values_start")
        row = self.schedule.scalars[0].name if self.schedule.scalars else "0"
        exchange = shared_rows.Exchange(self.analysis, self.extent(rows, "row_size"), start, row)
        self.out.lines(*exchange.opening(str(self.schedule.dims[-1].extent)))
        return exchange

    def write_between(self, statements: tuple[Numbered, ...]) -> None:
        """Statements with one element a row. Where programs share it, the first of them stores it."""
        alone = [n for n in statements if self.schedule.shared and isinstance(n[1], Store)]
        self.write_statements([n for n in statements if n not in alone])
        if alone:
            with self.out.block("if part == 0:"):
                self.write_statements(alone)

    def write_loop(self, loop: TileDim, step: Pass, eviction: str, backwards: bool) -> None:
        """One pass over the row: accumulators before, the body, and their combination after. ``backwards``: from the end, as
        what the pass before read last is the likeliest to be in the caches still."""
        built = [self.accumulator(s) for _, s in step.reduces if isinstance(s, Reduce)]
        for _, s in step.inside:
            if isinstance(s, Scan):
                self.out.line(self.start_carry(s))
        for a in built:
            self.out.lines(*a.start)
        shared = self.schedule.shared
        extent = "PART" if shared else self.extent(loop.extent, f"{loop.name}_size")
        with self.out.block(f"for {loop.name}_start in range(0, {extent}, {loop.block}):"):
            start = f"{loop.name}_start"
            if backwards:  # a step of -BLOCK would hide from Triton that the starts are aligned
                start = f"(tl.cdiv({extent}, {loop.block}) - 1) * {loop.block} - {start}"
            self.out.line(f"{loop.name} = {'part * PART + ' if shared else ''}{start} + {self.arange(loop)}")
            self.write_axes(loop)
            self.write_masks([loop])
            self.body.eviction = eviction
            self.write_statements([n for n in step.inside if n not in step.reduces], carried=True)
            self.body.eviction = ""
            for a in built:
                self.out.lines(*a.step)
        for a in built:
            self.out.lines(*a.finish)

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
