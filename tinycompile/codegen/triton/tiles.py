"""Tiles: what a schedule is made of, and the questions about a nest that every strategy asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.codegen.triton.analysis import Analysis, axes_in, contiguous_axis, reach, uses_of
from tinycompile.ir.loops import Axis, Load, Reduce, Scalar, Scan, Store
from tinycompile.ir.source import Config

INT32_MAX = 2**31 - 1
FOLD = "FOLD"  # the constant that says how many elements of a block share a lane of what a walk accumulates
OVERLAPPING = 8  # programs a multiprocessor: about as many as run at once
RUNNING_FOLD = 4  # of a running softmax: 1.25 exponentials an element
HEAVY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "erfc", "pow",
    "lgamma", "sinh", "cosh", "div",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TileDim:
    """``axes`` (outermost first) flattened into one index variable ``name``.

    ``role``: ``tile`` (a block of it per program), ``scalar`` (one point per program), ``whole`` (all of it in every program),
    ``loop`` (every program walks it block by block). ``block`` names the constant with its size. ``masked``: the block may
    stick out. ``wide``: its index is 64-bit."""

    name: str
    axes: tuple[Axis, ...]
    extent: Dim
    role: str
    block: str = ""
    masked: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """``dims``: the vector dimensions of the tile, outermost first. ``scalars``: what the program id picks. ``branch``: emit an
    unmasked body for programs that lie inside, as a mask on a size that 16 does not divide forbids vector loads. ``folds``:
    elements of a block share a lane of what a walk accumulates. ``shared``: several programs share a row (shared_rows.py).
    ``overlaps``: the kernel begins while the one before it ends."""

    dims: tuple[TileDim, ...]
    scalars: tuple[TileDim, ...]
    grid: Dim
    configs: tuple[Config, ...]
    branch: bool
    why: str
    folds: bool = False
    shared: bool = False
    overlaps: bool = False

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the compile-time constants, in the configurations' order."""
        shared = ("PART", "PARTS", "LANES") if self.shared else ()
        return (*(d.block for d in self.dims), *shared, *((FOLD,) if self.folds else ()))


def power_of_2(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def row_scalars(parallel: tuple[Axis, ...], extent: Dim) -> tuple[TileDim, ...]:
    return (TileDim("row", parallel, extent, "scalar"),) if parallel else ()


def tile_dim(
    name: str, axes: tuple[Axis, ...], analysis: Analysis, role: str, block: str, configs: tuple[Config, ...]
) -> TileDim:
    extent = analysis.extent(axes)
    largest = max(dict(c.constants)[block] for c in configs)
    empty = isinstance(extent, int) and extent == 0
    return TileDim(name, axes, extent, role, block, empty or not ex.divisible_by(extent, largest))


def blocks(dim: TileDim) -> Dim:
    return ex.ceildiv(dim.extent, ex.sym(dim.block, 1))


def overlaps(grid: Dim, configs: Sequence[Config], analysis: Analysis, target: Target) -> bool:
    """Whether a kernel of so many programs is to begin while the one before it ends. Each of them waits, which takes a program
    longer than the others can hide: where there are several rounds of them, that is more than one gap between kernels (on an
    H200, 0.454 ms became 0.638 for 524,288 programs of one warp)."""
    programs = analysis.hint(ex.substitute(grid, dict(configs[0].constants)))
    return target.overlaps and programs <= OVERLAPPING * target.units


def candidates(configs: list[Config], **extents: Dim) -> tuple[Config, ...]:
    """Without doubles, and those that need a mask where the first choice needs none (``extents``: block name -> extent)."""
    first = dict(configs[0].constants)
    free = {b: e for b, e in extents.items() if ex.divisible_by(e, first[b])}
    return tuple(dict.fromkeys(c for c in configs if all(ex.divisible_by(e, dict(c.constants)[b]) for b, e in free.items())))


def in_store_order(analysis: Analysis) -> tuple[Axis, ...]:
    """Parallel axes, the one with the largest stride in the first big store outermost."""
    stores = [f.offset for s, f in analysis.accesses() if isinstance(s, Store)]
    if not stores:
        return analysis.parallel
    main = max(stores, key=lambda d: len(axes_in(d, analysis)))

    def stride(axis: Axis) -> int:
        step = ex.coefficient(main, axis.name)
        return -1 if step is None else -abs(analysis.hint(step)) if step != 0 else -INT32_MAX

    return tuple(sorted(analysis.parallel, key=stride))


def main_contiguous(analysis: Analysis, axes: tuple[Axis, ...], kind: type, avoid: str = "") -> str | None:
    """The axis along which most bytes are contiguous, among accesses of ``kind`` over a quarter of the space or more."""
    space = analysis.hint(analysis.extent(axes))
    weight: dict[str, int] = {}
    for s, f in analysis.accesses():
        if not isinstance(s, kind):
            continue
        touched = axes_in(f.offset, analysis)
        size = analysis.hint(ex.product(a.extent for a in axes if a.name in touched))
        along = contiguous_axis(f.offset, axes)
        walked = {a.name for a in axes if ex.coefficient(f.offset, a.name) not in (0, None)}
        if along is not None and along != avoid and size * 4 >= space and (not avoid or avoid in walked):
            weight[along] = weight.get(along, 0) + size * analysis.metas[s.buffer].dtype.itemsize
    if avoid:
        weight.pop(avoid, None)
    return max(weight, key=lambda a: weight[a]) if weight else None


def largest_item(analysis: Analysis) -> int:
    """The widest element among the accesses that span the most axes: it sets how many elements make 16 bytes."""
    spans = [(len(axes_in(f.offset, analysis)), analysis.metas[s.buffer].dtype.itemsize) for s, f in analysis.accesses()]
    most = max((n for n, _ in spans), default=0)
    return max((size for n, size in spans if n == most), default=4)


def tile_values(analysis: Analysis) -> int:
    """About how many tile-sized values are alive at once in a reduction: loads used both before and after it."""
    reduced = {a.name for a in analysis.reduction}
    loads = [s for s in analysis.nest.body if isinstance(s, Load) and analysis.spans[s.name] & reduced]
    heavy = sum(1 for s in analysis.nest.body if isinstance(s, Scalar) and s.op in HEAVY and analysis.spans[s.name] & reduced)
    scans = sum(1 for s in analysis.nest.body if isinstance(s, Scan))
    pairs = sum(1 for s in analysis.nest.body if isinstance(s, Reduce) and len(s.args) + len(s.names) > 2)
    return len(loads) + scans + pairs + (1 if heavy > 2 else 0)


def aligned(analysis: Analysis) -> bool:
    """Whether a row's loads are 16 bytes wide: every stretch of it begins and ends at a multiple of that."""
    axes, along = (*analysis.parallel, *analysis.reduction), {a.name for a in analysis.reduction}
    for s, form in analysis.accesses():
        vector = max(16 // analysis.metas[s.buffer].dtype.itemsize, 1)
        for axis in axes if axes_in(form.offset, analysis) & along else ():
            step = ex.coefficient(form.offset, axis.name)
            if step is None or not ex.divisible_by(axis.extent if step == 1 else step, vector):
                return False
    return True


def row_needed_again(analysis: Analysis) -> bool:
    """Whether something along the row waits for a reduction of it."""
    along = {a.name for a in analysis.reduction}
    for position, s in enumerate(analysis.nest.body):
        waits = any(analysis.level.get(u, 0) for u in uses_of(s, analysis.forms[position]))
        if waits and analysis.axes_at(position) & along:
            return True
    return False


def widen(chosen: Schedule, analysis: Analysis) -> Schedule:
    """Use 64-bit indices where some offset may pass 2**31: for the program's part always, along a loop if it alone may."""
    offsets = [f.offset for s, f in analysis.accesses()]
    far = any(reach(d, analysis) > INT32_MAX for d in offsets)
    dims = []
    for dim in chosen.dims:
        names = {a.name for a in dim.axes}
        own = [_only(d, names) for d in offsets]
        wide = analysis.hint(dim.extent) > INT32_MAX - 65536 or any(reach(d, analysis) > INT32_MAX for d in own)
        dims.append(replace(dim, wide=wide or (far and dim.role == "tile")))
    scalars = tuple(replace(s, wide=far) for s in chosen.scalars)
    return replace(chosen, dims=tuple(dims), scalars=scalars)


def _only(d: Dim, names: set[str]) -> Dim:
    """The terms that mention some of ``names``."""
    kept = {m: c for m, c in ex.terms_of(d) if any(s.name in names for a in m for s in ex.symbols(ex.from_terms({(a,): 1})))}
    return ex.from_terms(kept)
