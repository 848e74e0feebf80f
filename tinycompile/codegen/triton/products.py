"""Matrix products: a nest that sums products (``ir/products.py``) -> a Triton kernel around ``tl.dot``.

A program sums one tile of rows by columns in float32 (int32 for int8), step by step along the reduced axes, with a mask where a
block sticks out. What the nest makes of the operands before they are multiplied is computed on the tiles of each step; what it
makes of the sums, on the finished tile. Both are ordinary statements of the fusion pass: a sum is rounded where the nest casts
it. Ways to cut the work:

* ``tiled``: a tile a program, in groups of rows that share columns in the L2;
* ``persistent``: as many programs as multiprocessors, each walks tiles;
* ``boxed``: the same, with operands fetched by tensor descriptors (``product_boxes.py``);
* ``parted``, ``streamed``: programs share the sum of a tile (``product_parts.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from tinycompile.base import expr as ex
from tinycompile.base.dtypes import FLOAT8
from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.codegen.triton import product_configs as configs
from tinycompile.codegen.triton.analysis import Analysis, Forms
from tinycompile.codegen.triton.body import Body
from tinycompile.codegen.triton.dtypes import triton_dtype
from tinycompile.codegen.triton.nest_writer import analysis_of
from tinycompile.codegen.triton.product_boxes import Box, find_boxes
from tinycompile.codegen.triton.product_overlap import known_early
from tinycompile.codegen.triton.product_parts import NAMES as PART_NAMES
from tinycompile.codegen.triton.product_parts import SharedSums
from tinycompile.codegen.triton.product_rows import NAMES as ROW_NAMES
from tinycompile.codegen.triton.product_rows import MadeRows
from tinycompile.codegen.triton.tiles import TileDim, in_store_order, overlaps
from tinycompile.ir.loops import Load, Statement, starts_of
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.products import Dot, Factor, Product, find_product
from tinycompile.ir.source import Config, KernelSource

TENSOR_CORE = {torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5"}  # what its bits are to a product
NAMES = (
    PART_NAMES
    | ROW_NAMES
    | {
        *("member", "tile", "row_tiles", "col_tiles", "row_tile", "col_tile", "inner_row", "inner_col", "start"),
        *("ROWS", "COLS", "STEP", "GROUP", "PROGRAMS", "FLATTEN"),
    }
)
SIDES = (("left", "[None, :]"), ("right", "[:, None]"))  # the operands, and how the steps of a tile lie in them
WAYS: Mapping[str, Callable[[configs.Shape, Target, bool], tuple[Config, ...]]] = {
    "tiled": configs.tiled,
    "persistent": configs.persistent,
    "boxed": configs.boxed,
    "parted": configs.parted,
    "streamed": configs.streamed,
}


def emit_product(kernel: Kernel, plan: Plan, target: Target, name: str, tf32: bool = False) -> list[KernelSource]:
    """The ways to compute a product that are worth timing, each a module with a function of its own (``name``, ``name_parted``
    ...). ``tf32``: float32 operands are rounded to TF32. Raises BackendError for what is no product."""
    analysis, product = _understood(kernel, plan, name)
    shape = _shape(analysis, product)
    found = []
    for way, choose in WAYS.items():
        if candidates := choose(shape, target, tf32):
            own = name if way == "tiled" else f"{name}_{way}"
            writer = _ProductWriter(kernel, plan, analysis, product, candidates, way, own, tf32, target)
            if way != "boxed" or writer.boxes:
                found.append(writer.source())
    return found


def emit_skinny(kernel: Kernel, plan: Plan, target: Target, name: str) -> KernelSource:
    """A product of few rows of halves (``fuse/products.py``), cut as its shape asks for."""
    analysis, product = _understood(kernel, plan, name)
    shape = _shape(analysis, product)
    way, candidates = configs.skinny(replace(shape, batch=shape.batch * len(kernel.nests)), target)
    if product.norm:  # the likely best alone: in a wider tile some norms spill
        candidates = candidates[:1]
    return _ProductWriter(kernel, plan, analysis, product, candidates, way, name, False, target).source()


def _understood(kernel: Kernel, plan: Plan, name: str) -> tuple[Analysis, Product]:
    analysis = analysis_of(kernel, plan, name)
    reduced = frozenset(a.name for a in analysis.reduction)
    axes = [a.name for a in in_store_order(analysis)]
    product = find_product(kernel.nest.body, analysis.spans, axes, reduced)
    if isinstance(product, str):
        raise BackendError(f"{name}: {product}")
    return analysis, product


def _shape(analysis: Analysis, product: Product) -> configs.Shape:
    sizes = [
        analysis.hint(analysis.extent(configs.axes_of(analysis, p))) for p in (product.rows, product.columns, product.batch)
    ]
    inner = analysis.hint(analysis.extent(analysis.reduction))
    return configs.Shape(sizes[0], sizes[1], inner, sizes[2], len(product.dots), product.dots[0].left.dtype)


class _ProductWriter(SharedSums, MadeRows):
    """Writes one kernel. ``sides``: how statements of the left and the right operand are spelt, on tiles of a step."""

    def __init__(
        self, kernel: Kernel, plan: Plan, analysis: Analysis, product: Product, candidates: tuple[Config, ...], way: str,
        name: str, tf32: bool, target: Target,
    ) -> None:  # fmt: skip
        if product.norm:
            candidates = tuple(configs.with_norm(c, _shape(analysis, product)) for c in candidates)
        chosen, self.inner = configs.schedule(analysis, product, candidates)
        self.candidates, self.product, self.way, self.tf32 = candidates, product, way, tf32
        self.members = len(kernel.nests)
        early = overlaps(self._programs(chosen.grid), candidates, analysis, target)
        chosen = replace(chosen, overlaps=early, why=self._why(way, product, self.members))
        super().__init__(kernel, plan, analysis, chosen, name)
        self.values = {b: self.names.fresh(f"{b}_values") for b in self._float8_buffers()}
        self.sides = {side: self._side(side) for side in ("left", "right")}
        self.dot_names = [self.body.variables[d.total] for d in product.dots]
        self.sum_dtype = torch.int32 if self._dtype() == torch.int8 else torch.float32
        found = find_boxes(analysis, product, chosen.dims, self.inner, chosen.scalars) if way == "boxed" else {}
        self.boxes = {at: (self.names.fresh(f"{box.buffer}_box"), box) for at, box in found.items()}

    @staticmethod
    def _why(way: str, product: Product, members: int) -> str:
        how = {
            "tiled": "a tile a program",
            "persistent": "each program walks tiles",
            "boxed": "each program walks tiles, operands by tensor descriptors",
            "parted": "programs share the sum of a tile",
            "streamed": "programs take equal shares of all steps",
        }
        several = f"{len(product.dots)} matrix products" if len(product.dots) > 1 else "matrix product"
        return f"{f'{members} times a ' if members > 1 else ''}{several}, {how[way]}"

    def reserved(self) -> frozenset[str]:
        """Names that no variable of the nest may have."""
        return NAMES

    def precision(self) -> str:
        """How exactly products are summed. Hopper's tensor cores sum float8 in some 14 bits: the sum of a step is added in
        float32."""
        if self._dtype() == torch.float32:
            return f', input_precision="{"tf32" if self.tf32 else "ieee"}"'
        return ", max_num_imprecise_acc=STEP" if self._dtype() in FLOAT8 else ""

    def _dtype(self) -> torch.dtype:
        return self.product.dots[0].left.dtype

    def _float8_buffers(self) -> list[str]:
        """Those that factors are read from: kernels take float8 as bits, but here as values, since what changes between memory
        and tensor cores goes through registers."""
        factors = {getattr(d, side).narrow for d in self.product.dots for side in ("left", "right")}
        loads = [s for s in self.kernel.nest.body if isinstance(s, Load) and s.name in factors and s.dtype in FLOAT8]
        return list(dict.fromkeys(s.buffer for s in loads))

    def _side(self, side: str) -> Body:
        """The same values on the tile of a step: rows by steps, or steps by columns."""
        row, col = self.schedule.dims
        step = replace(self.inner, name=f"inner_{'row' if side == 'left' else 'col'}", masked=False)
        dims = (row, step) if side == "left" else (step, col)
        pointers = {**self.pointers, **self.values}
        own = replace(self.body, schedule=replace(self.schedule, dims=dims), axes=dict(self.body.axes), pointers=pointers)
        own.variables, own.inline, own.dtypes = self.body.variables, self.body.inline, self.body.dtypes
        return own

    # the module -----------------------------------------------------------------------------------------------------------

    def source(self) -> KernelSource:
        """The kernel with all that is needed to build and launch it."""
        with self.out.indented():
            self.write_function()
        return self.module(self.memory(), self.grid(), self.candidates)

    def grid(self) -> Dim:
        """Programs: all on the first axis."""
        return self._programs(self.schedule.grid)

    def _programs(self, tiles: Dim) -> Dim:
        if self.way in ("persistent", "boxed"):
            return ex.minimum(tiles, ex.sym("PROGRAMS", 1))
        if self.way == "streamed":
            return ex.sym("PROGRAMS", 1)
        return tiles * self.members * (ex.sym("PARTS", 1) if self.way == "parted" else 1)

    # the program ----------------------------------------------------------------------------------------------------------

    def write_function(self) -> None:
        """Everything inside the function."""
        out = self.out
        self.write_opening(waits=not self.waits_late())
        for buffer, name in self.values.items():
            kind = TENSOR_CORE[self.analysis.metas[buffer].dtype]
            out.line(f"{name} = {self.pointers[buffer]}.to(tl.pointer_type({kind}), bitcast=True)")
        row, col = self.schedule.dims
        out.line(f"row_tiles = tl.cdiv({self.extent(row.extent, 'row_size')}, ROWS)")
        out.line(f"col_tiles = tl.cdiv({self.extent(col.extent, 'col_size')}, COLS)")
        count = " * ".join(["row_tiles * col_tiles", *(self.extent(d.extent, "outer_size") for d in self.schedule.scalars)])
        if self.shares() and not self.waits_late():
            self.write_clearing()
        if self.way in ("persistent", "boxed"):
            self.write_boxes()
            walk = "tl.range({}, flatten=FLATTEN)" if self.way == "boxed" else "range({})"
            with out.block(f"for tile in {walk.format(f'tl.program_id(0), {count}, PROGRAMS')}:"):
                self.write_tile("tile")
        elif self.way == "streamed":
            self.write_share(count, self.inner_size())
            with out.block("for tile in range(begin // steps, tl.cdiv(end, steps)):"):
                self.write_tile("tile")
        elif self.way == "parted":
            out.lines("slot = tl.program_id(0) // PARTS", "part = tl.program_id(0) % PARTS")
            self.write_tile(self.write_member("slot"))
        else:
            self.write_tile(self.write_member("tl.program_id(0)"))

    def write_member(self, tile: str) -> str:
        """Of several products in one launch, the pointers of the one that a tile is of. Returns the tile's number in it."""
        if self.members == 1:
            return tile
        tiles, out = "(row_tiles * col_tiles)", self.out
        out.line(f"member = {tile} // {tiles}")
        first, *others = (starts_of(n, self.analysis.metas) for n in self.kernel.nests)
        for number, theirs in enumerate(others, 1):
            pairs = zip(first.items(), theirs.items(), strict=True)
            changed = [
                (self.pointers[a], self._moved(b, there - here)) for (a, here), (b, there) in pairs if (a, here) != (b, there)
            ]
            with out.block(f"if member == {number}:"):
                out.line(" = ".join(", ".join(side) for side in zip(*changed, strict=True)))
        return f"{tile} % {tiles}"

    def _moved(self, buffer: str, by: int) -> str:
        return self.pointers[buffer] + (f" {'+' if by > 0 else '-'} {abs(by)}" if by else "")

    def write_boxes(self) -> None:
        """The tensor descriptors, once a program."""
        for name, box in self.boxes.values():
            along = [(a.name, a.extent, "1") for a in box.batch] + [(d.name, d.extent, d.block) for d in box.dims]
            sizes = ", ".join(self.extent(extent, f"{of}_size") for of, extent, _ in along)
            steps = ", ".join(self.extent(s, f"{name}_{of}_step") for s, (of, _, _) in zip(box.steps, along, strict=True))
            blocks = ", ".join(block for *_, block in along)
            first = self.values.get(box.buffer, self.pointers[box.buffer]) + (
                f" + {self.extent(box.start, f'{name}_start')}" if box.start != 0 else ""
            )
            self.out.line(f"{name} = tl.make_tensor_descriptor({first}, [{sizes}], [{steps}], [{blocks}])")

    def boxed(self, name: str, box: Box) -> str:
        """A load of one tile by its descriptor, whose places are 32-bit."""
        points = [self.body.axes[a.name] for a in box.batch]
        if any(d.wide for d in self.schedule.scalars):
            points = [f"{p}.to(tl.int32)" for p in points]
        places = {d.name: f"{d.name}_tile * {d.block}" for d in self.schedule.dims} | {self.inner.name: "start"}
        text = f"{name}.load([{', '.join((*points, *(places[d.name] for d in box.dims)))}])"
        if box.batch:
            text += f".reshape([{', '.join(d.block for d in box.dims)}])"
        return f"{text}.T" if box.turned else text

    def write_tile(self, tile: str) -> None:
        """One tile: where it is, its sums, and what is made of them."""
        out = self.out
        if self.schedule.scalars:
            dim = self.schedule.scalars[0]
            out.line(f"{dim.name} = {_wide(f'{tile} // (row_tiles * col_tiles)', dim)}")
            self.write_axes(dim)
            tile = f"{tile} % (row_tiles * col_tiles)"
        out.line(f"row_tile, col_tile = grouped_tile({tile}, row_tiles, col_tiles, GROUP)")
        for dim in self.schedule.dims:
            start = _wide(f"{dim.name}_tile", dim)
            out.line(f"{dim.name} = {start} * {dim.block} + {self.arange(dim)}")
            self.write_axes(dim)
        self.write_masks(self.schedule.dims)
        for side in self.sides.values():
            side.axes.update(self.body.axes)
        if self.waits_late():
            self.write_late_wait()
        self.write_some(self.product.first)
        if self.product.norm:
            self.write_norm()
        self.write_sums()
        if self.shares():
            with out.block(f"if {self.write_meeting()}:"):
                self.write_results()
        else:
            self.write_results()

    def waits_late(self) -> bool:
        """Whether a program has one tile, of which it knows where it is before it waits for the kernel before."""
        return self.schedule.overlaps and self.way in ("tiled", "parted")

    def write_late_wait(self) -> None:
        """Ask the L2 for what the tile needs of the call's inputs, wait, and do what else comes first."""
        out, inputs = self.out, self.plan.inputs
        for s, form in known_early(self.analysis, (*self.product.first, *self.product.after), inputs):
            out.line(self.body.prefetch(s, form))
        for side, place in SIDES:
            if wanted := known_early(self.analysis, getattr(self.product, side), inputs):
                with out.block(f"for start in range({self.bounds(self.inner_size())}):"):
                    self.write_step(side, place)
                    out.lines(*(self.sides[side].prefetch(s, self.within(s, form)[1]) for s, form in wanted))
        out.line("wait_for_previous()")
        if self.shares():
            self.write_clearing()

    def write_results(self) -> None:
        """What is made of the sums. A dimension of one row or column has no axis: values don't vary along it."""
        for axis, dim in enumerate(self.schedule.dims):
            if not dim.axes:
                for dot in self.product.dots:  # under a name of its own: Triton wants one shape a name
                    name = self.body.variables[dot.total]
                    self.body.variables[dot.total] = own = self.names.fresh(f"{name}_alone")
                    zero = _zero(self.sum_dtype)
                    self.out.line(f"{own} = tl.sum(tl.where({dim.name} == 0, {name}, {zero}), {axis}, keep_dims=True)")
        self.write_some(self.product.after)

    def write_some(self, positions: Sequence[int]) -> None:
        """Statements of the tile of the result."""
        self.write_statements([(i, self.kernel.nest.body[i]) for i in positions])

    def write_sums(self) -> None:
        """The loop along the reduced axes."""
        out, dtype = self.out, f"tl.{str(self.sum_dtype).removeprefix('torch.')}"
        for name in self.dot_names:
            out.line(f"{name} = tl.zeros([ROWS, COLS], {dtype})")
        with out.block(f"for start in range({self.bounds(self.inner_size())}):"):
            for side, place in SIDES:
                self.write_side(side, place)
            for dot, name in zip(self.product.dots, self.dot_names, strict=True):
                left, right = self.operand(dot, "left"), self.operand(dot, "right")
                out.line(f"{name} = tl.dot({left}, {right}, {name}{self.precision()}, out_dtype={dtype})")

    def inner_size(self) -> str:
        """How long the sum is."""
        return self.extent(self.inner.extent, "inner_size")

    def write_side(self, side: str, place: str) -> None:
        """The statements of one operand on the tile of a step."""
        own, positions = self.sides[side], getattr(self.product, side)
        if not self.boxes.keys() >= set(positions):
            self.write_step(side, place)
        before, self.body = self.body, own
        for position in positions:
            s = self.kernel.nest.body[position]
            if position in self.boxes:
                assert isinstance(s, Load)
                self.out.line(f"{own.variables[s.name]} = {self.boxed(*self.boxes[position])}")
            else:
                self.out.lines(*self.statement(*self.within(s, self.analysis.forms[position]), carried=False))
        self.body = before

    def write_step(self, side: str, place: str) -> None:
        """Where a step is along the sum."""
        own, start = self.sides[side], _wide("start", self.inner)
        step = next(d for d in own.schedule.dims if d.role == "loop")
        self.out.line(f"{step.name} = {start} + tl.arange(0, STEP){place}")
        before, self.body = self.body, own
        self.write_axes(replace(step, axes=self.inner.axes))
        self.body = before
        own.axes["@inner"] = step.name

    def within(self, s: Statement, form: Forms) -> tuple[Statement, Forms]:
        """A load that gives zeros behind the end of the sum."""
        if isinstance(s, Load) and s.buffer in self.values:
            s = replace(s, dtype=torch.float32)  # as zeros are spelt
        if not isinstance(s, Load) or not self.inner.masked:
            return s, form
        inside = self.inner.extent - 1 - ex.sym("@inner", 0, self.inner.extent)
        return s, replace(form, masks=(*form.masks, inside))

    def operand(self, dot: Dot, side: str) -> str:
        """What ``tl.dot`` takes: a whole tile, zero behind the end of the sum."""
        factor: Factor = getattr(dot, side)
        own = self.sides[side]
        text, span = own.operand(factor.narrow), self.analysis.spans[factor.narrow]
        shape = f"[{', '.join(d.block for d in own.schedule.dims)}]"
        step = next(d for d in own.schedule.dims if d.role == "loop")
        made = next(s for s in self.kernel.nest.body if factor.narrow in (getattr(s, "name", ""), *getattr(s, "names", ())))
        if self.inner.masked and not (isinstance(made, Load) and made.other == 0):
            text = f"tl.where({step.name} < {self.extent(self.inner.extent, 'inner_size')}, {text}, {_zero(factor.dtype)})"
        whole = all(own.covers(d, span) for d in own.schedule.dims)
        if factor.dtype in FLOAT8:
            text = text if whole else f"tl.broadcast_to({text}, {shape})"
            values = isinstance(made, Load) and made.buffer in self.values
            return text if values else f"{text}.to({TENSOR_CORE[factor.dtype]}, bitcast=True)"
        # a sum broadcasts, too: of an operand that is a broadcast, Triton can make no code for sm_80
        return text if whole else f"{text} + tl.zeros({shape}, {triton_dtype(factor.dtype)})"


def _wide(text: str, dim: TileDim) -> str:
    return f"({text}).to(tl.int64)" if dim.wide else text


def _zero(dtype: torch.dtype) -> str:
    return "0.0" if dtype.is_floating_point and dtype not in FLOAT8 else "0"
