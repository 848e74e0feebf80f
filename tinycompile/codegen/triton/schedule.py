"""How a nest is cut into programs: which axes make a tile, block sizes, warps, loops. The only cost model of Triton codegen.

A tile has one or two vector dimensions. Everything is launched on the first grid axis alone: the others stop at 65535.
"""

from __future__ import annotations

from dataclasses import replace

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.codegen.triton import shared_rows
from tinycompile.codegen.triton.analysis import Analysis, axes_in
from tinycompile.codegen.triton.tiles import (
    FOLD,
    HEAVY,
    RUNNING_FOLD,
    Schedule,
    TileDim,
    aligned,
    blocks,
    candidates,
    in_store_order,
    largest_item,
    main_contiguous,
    overlaps,
    power_of_2,
    row_needed_again,
    row_scalars,
    tile_dim,
    tile_values,
    widen,
)  # fmt: skip
from tinycompile.ir.loops import Axis, Load, Reduce, Scalar, Scan, Store
from tinycompile.ir.source import Config

FEW_ROWS = 64  # elements that a thread takes where it reduces down all rows
LONG_FORMULA = 96  # statements: beyond, twice the threads keep a thread's registers from spilling
MAX_WHOLE_ROW = 16384  # elements of a reduction kept in registers: 1024 threads with 16 each


def schedule(analysis: Analysis, target: Target) -> Schedule:
    """Choose tiles for a nest."""
    if not analysis.reduction:
        chosen = _pointwise(analysis, target)
    else:
        chosen = _reduction(analysis, target)
    return replace(widen(chosen, analysis), overlaps=overlaps(chosen.grid, chosen.configs, analysis, target))


# pointwise -----------------------------------------------------------------------------------------------------------------


def _pointwise(analysis: Analysis, target: Target) -> Schedule:
    axes = in_store_order(analysis)
    if len(axes) <= 1:
        return _flat(axes, analysis, target)
    inner = main_contiguous(analysis, axes, Store) or axes[-1].name
    other = main_contiguous(analysis, axes, Load, avoid=inner)
    by_name = {a.name: a for a in axes}
    if other is not None and min(analysis.hint(by_name[other].extent), analysis.hint(by_name[inner].extent)) >= 16:
        return _transposed(axes, by_name[other], by_name[inner], analysis)
    n = analysis.hint(by_name[inner].extent)
    static = all(isinstance(a.extent, int) for a in axes)
    if static and n < 1024 and power_of_2(n) > 1.25 * n and n % 128:
        return _flat(axes, analysis, target)
    return _rows(axes, by_name[inner], analysis, target)


def _flat(axes: tuple[Axis, ...], analysis: Analysis, target: Target) -> Schedule:
    """One vector dimension over everything; several axes are unpacked from it."""
    extent = analysis.extent(axes)
    n = analysis.hint(extent)
    block, warps = _elementwise_block(n, analysis, target)
    sizes = [(block, warps), (block // 2, warps), (block * 2, warps * 2), (block, warps * 2)]
    configs = candidates([Config((("BLOCK", b),), w) for b, w in sizes if b >= 128 and w <= 32], BLOCK=extent)
    largest = max(dict(c.constants)["BLOCK"] for c in configs)
    masked = not ex.divisible_by(extent, largest)
    dim = TileDim("i", axes, extent, "tile", "BLOCK", masked)
    branch = masked and not ex.divisible_by(extent, 16) and (len(axes) <= 1 or not isinstance(extent, int)) and n > block
    return Schedule((dim,), (), blocks(dim), configs, branch, f"pointwise over {extent} elements in one dimension")


def _rows(axes: tuple[Axis, ...], inner: Axis, analysis: Analysis, target: Target) -> Schedule:
    """Rows by columns: per-row and per-column values are loaded once a tile, and no division is done per element."""
    outer = tuple(a for a in axes if a is not inner)
    n = analysis.hint(inner.extent)
    tile, warps = _elementwise_block(analysis.hint(analysis.extent(axes)), analysis, target)
    x = min(power_of_2(n), tile)
    if x == tile and x >= 512 and _shared_by_rows(inner, outer, analysis):  # load what rows share once for two of them
        x //= 2
    y = max(1, min(tile // x, power_of_2(analysis.hint(analysis.extent(outer)))))
    if isinstance(inner.extent, int) and inner.extent % x:  # prefer a block that divides the row
        x = next((b for b in (x, x // 2, x // 4, x // 8) if b >= 128 and inner.extent % b == 0), x)
        y = max(1, tile // x)
    tiles = [(y, x, warps), (y * 2, x, warps * 2), (max(y // 2, 1), x, warps), (y, x, max(warps // 2, 1))]
    configs = candidates(
        [Config((("ROWS", b), ("COLS", a)), w) for b, a, w in tiles], ROWS=analysis.extent(outer), COLS=inner.extent
    )
    dims = (
        tile_dim("row", outer, analysis, "tile", "ROWS", configs),
        tile_dim("col", (inner,), analysis, "tile", "COLS", configs),
    )
    return Schedule(
        dims,
        (),
        blocks(dims[0]) * blocks(dims[1]),
        configs,
        False,
        f"pointwise in tiles of rows by columns along {inner.name}",
    )


def _shared_by_rows(inner: Axis, outer: tuple[Axis, ...], analysis: Analysis) -> bool:
    rows = {a.name for a in outer}
    spans = [axes_in(f.offset, analysis) for s, f in analysis.accesses() if isinstance(s, Load)]
    return any(inner.name in span and not span & rows for span in spans)


def _transposed(axes: tuple[Axis, ...], other: Axis, inner: Axis, analysis: Analysis) -> Schedule:
    """Square tiles: some operands are contiguous along one axis, some along the other; Triton turns them in shared memory."""
    rest = tuple(a for a in axes if a is not inner and a is not other)
    warps = 8 if largest_item(analysis) >= 4 else 4
    side = 64
    tiles = [(side, side, warps), (32, 64, 4), (64, 32, 4), (32, 32, 4), (128, 64, 8)]
    configs = candidates([Config((("ROWS", b), ("COLS", a)), w) for b, a, w in tiles], ROWS=other.extent, COLS=inner.extent)
    dims = (
        tile_dim("row", (other,), analysis, "tile", "ROWS", configs),
        tile_dim("col", (inner,), analysis, "tile", "COLS", configs),
    )
    scalars = (TileDim("outer", rest, analysis.extent(rest), "scalar"),) if rest else ()
    grid = ex.product([*(blocks(d) for d in dims), *(s.extent for s in scalars)])
    return Schedule(
        dims,
        scalars,
        grid,
        configs,
        False,
        f"pointwise in square tiles: operands are contiguous along {other.name} and {inner.name}",
    )


def _elementwise_block(n: int, analysis: Analysis, target: Target) -> tuple[int, int]:
    """Elements and warps of a program: 16 bytes a thread and operand, more when there are few operands to keep in flight."""
    spans = [axes_in(f.offset, analysis) for s, f in analysis.accesses() if isinstance(s, Load)]
    streams = sum(1 for span in spans if span)
    full = sum(1 for span in spans if len(span) == len(analysis.parallel))
    vector = max(16 // largest_item(analysis), 2)
    heavy = sum(1 for s in analysis.nest.body if isinstance(s, Scalar) and s.op in HEAVY)
    if heavy > 4:  # bound by arithmetic: the least code in flight, and no warp waits for another
        statements = sum(isinstance(s, Scalar) for s in analysis.nest.body)
        return 32 * vector, 1 if statements <= LONG_FORMULA else 2
    block = 128 * vector * (2 if streams <= 2 and (vector <= 4 or full == 1) else 1)
    while block > 128 and n < block * target.units:  # too little work for every SM: smaller programs
        block //= 2
    return block, max(1, min(4, block // 32))


# reductions ----------------------------------------------------------------------------------------------------------------


def _reduction(analysis: Analysis, target: Target) -> Schedule:
    extent = analysis.extent(analysis.reduction)
    parallel = in_store_order(analysis)
    along = main_contiguous(analysis, (*analysis.reduction, *parallel), Load) or main_contiguous(
        analysis, (*analysis.reduction, *parallel), Store
    )
    names = {a.name for a in parallel}
    if along in names and analysis.hint(extent) > 1:
        return _columns(parallel, extent, analysis, target)
    r = analysis.hint(extent)
    limit = MAX_WHOLE_ROW // (2 if tile_values(analysis) > 3 or largest_item(analysis) == 8 else 1)
    if isinstance(extent, int) and power_of_2(r) <= limit:
        return _whole_rows(parallel, extent, analysis, target)
    if isinstance(extent, int) and shared_rows.suits(analysis, target):
        return shared_rows.schedule(parallel, extent, analysis, target)
    return _looped_rows(parallel, extent, analysis, target)


def _whole_rows(parallel: tuple[Axis, ...], extent: Dim, analysis: Analysis, target: Target) -> Schedule:
    """Each row is read once and stays in registers; several rows a program when rows are short."""
    rows_extent = analysis.extent(parallel)
    p, r = analysis.hint(rows_extent), power_of_2(analysis.hint(extent))
    rows = max(1, min(2048 // r, power_of_2(p)))
    while rows > 1 and p < rows * target.units * 2:
        rows //= 2
    each = 16 if largest_item(analysis) <= 4 else 8
    if not aligned(analysis) and (row_needed_again(analysis) or tile_values(analysis) <= 1):
        each *= 2  # loads of one element: more of them in flight in each thread
    warps = max(1, min(32, rows * r // (32 * each)))
    if r * rows >= 1024:
        warps = max(warps, 64 // each)
    if rows == 1:
        scalars = row_scalars(parallel, rows_extent)
        configs = candidates([Config((("COLS", r),), w) for w in (warps, warps * 2, max(warps // 2, 1)) if w <= 32])
        dim = tile_dim("col", analysis.reduction, analysis, "whole", "COLS", configs)
        return Schedule((dim,), scalars, rows_extent if parallel else 1, configs, False, "one row a program, kept in registers")
    tiles = [(rows, warps), (rows * 2, min(warps * 2, 32)), (rows, max(warps // 2, 1))]
    configs = candidates([Config((("ROWS", b), ("COLS", r)), w) for b, w in tiles], ROWS=rows_extent)
    dims = (
        tile_dim("row", parallel, analysis, "tile", "ROWS", configs),
        tile_dim("col", analysis.reduction, analysis, "whole", "COLS", configs),
    )
    return Schedule(dims, (), blocks(dims[0]), configs, False, f"{rows} rows a program, kept in registers")


def _looped_rows(parallel: tuple[Axis, ...], extent: Dim, analysis: Analysis, target: Target) -> Schedule:
    """A row is too long for registers (or its length is symbolic): walk it block by block, once a reduction level."""
    rows_extent = analysis.extent(parallel)
    r = analysis.hint(extent)
    block, each, running = _loop_step(extent, r, analysis.hint(rows_extent) < 4 * target.units, analysis)
    block = next((b for b in (block, block // 2, block // 4) if b >= 1024 and ex.divisible_by(extent, b)), block)
    warps = max(1, block // (32 * each))
    tried = [(block, warps), (block * 2, warps * 2), (block // 2, max(warps // 2, 1))]
    if not running:
        tried += [(block // 2, warps), (block, max(warps // 2, 1))]
    configs = candidates([Config((("COLS", b),), w) for b, w in tried if 16 <= b <= 2 * MAX_WHOLE_ROW and w <= 32], COLS=extent)
    folds = running and all(dict(c.constants)["COLS"] >= 32 * c.num_warps * each for c in configs)
    if folds:
        configs = tuple(replace(c, constants=(*c.constants, (FOLD, RUNNING_FOLD))) for c in configs)
    dim = tile_dim("col", analysis.reduction, analysis, "loop", "COLS", configs)
    return Schedule(
        (dim,),
        row_scalars(parallel, rows_extent),
        rows_extent if parallel else 1,
        configs,
        False,
        f"one row a program, in steps: {extent} elements don't stay in registers",
        folds,
    )


def _loop_step(extent: Dim, r: int, few: bool, analysis: Analysis) -> tuple[int, int, bool]:
    """Elements of a row that a program takes at once, elements of a thread, and whether the loop only keeps a running softmax.
    ``few``: there are too few rows to fill the device."""
    vector = max(16 // largest_item(analysis), 2)
    kinds = {s.kind for s in analysis.nest.body if isinstance(s, Reduce)}
    if any(isinstance(s, Scan) for s in analysis.nest.body):
        kinds.add("scan")
    running = kinds == {"online_softmax"}
    if running:
        each = RUNNING_FOLD * vector
        warps = 32 if few else max(4096 // (32 * each), 4)
    elif kinds == {"sum"} and tile_values(analysis) <= 2:
        warps, each = 16 if few else 8, 32 if aligned(analysis) else 16  # many loads in flight at once
    else:
        warps, each = 16 if few else 8, vector  # a chain of arithmetic: many warps
    keeps = isinstance(extent, int) and "scan" not in kinds and row_needed_again(analysis)  # the last block: see walks.py
    warps = min(2 * warps, 32) if keeps else warps
    block = min(32 * warps * each, MAX_WHOLE_ROW)
    steps = 2 if keeps else 4
    while block > 16 and r < steps * block and (block > 1024 or r < block):  # the last step is partly idle
        block //= 2
    return block, each, running


def _few_rows(parallel: tuple[Axis, ...], r: int, vector: int, analysis: Analysis, target: Target) -> Schedule:
    """So few rows that a thread takes all of them, of 16 bytes of columns: it needs nobody else's sums."""
    columns = analysis.extent(parallel)
    warps = next(w for w in (4, 2, 1) if w == 1 or analysis.hint(columns) >= 64 * w * vector * target.units)
    configs = candidates(
        [Config((("COLS", 32 * vector * w), ("ROWS", power_of_2(r))), w) for w in (warps, warps * 2, max(warps // 2, 1))],
        COLS=columns,
    )
    dims = (
        tile_dim("col", parallel, analysis, "tile", "COLS", configs),
        tile_dim("row", analysis.reduction, analysis, "whole", "ROWS", configs),
    )
    why = f"columns: each thread reduces {vector} of them over {r} rows"
    return Schedule(dims, (), blocks(dims[0]), configs, False, why)


def _columns(parallel: tuple[Axis, ...], extent: Dim, analysis: Analysis, target: Target) -> Schedule:
    """Memory is contiguous across the reduced axis: threads run along the columns, each reduces down."""
    columns = analysis.extent(parallel)
    c, r = analysis.hint(columns), analysis.hint(extent)
    vector = max(16 // largest_item(analysis), 1)
    if (
        isinstance(extent, int)
        and power_of_2(r) * vector * tile_values(analysis) <= FEW_ROWS
        and c >= 64 * vector * target.units
    ):
        return _few_rows(parallel, r, vector, analysis, target)
    x = max(4, min(power_of_2(c), 128 // largest_item(analysis)))
    least = max(4, 32 // largest_item(analysis))
    while x > least and c < x * target.units:
        x //= 2
    whole = isinstance(extent, int) and r <= 4096 // x
    points = 512 if not whole and c >= 8 * x * target.units else 4096  # many programs: short steps of few warps
    rblock = max(1, min(power_of_2(r), points // x))
    warps = max(1, min(8, x * rblock // 256))
    tried = [
        (x, rblock, warps),
        (x, max(rblock // 2, 1), warps),
        (x * 2, rblock, warps),
        (x, rblock * 2, min(warps * 2, 16)),
    ]
    if whole:
        tried = [(a, rblock, w) for a, _, w in tried]
    configs = candidates([Config((("COLS", a), ("ROWS", b)), w) for a, b, w in tried], COLS=columns, ROWS=extent)
    dims = (
        tile_dim("col", parallel, analysis, "tile", "COLS", configs),
        tile_dim("row", analysis.reduction, analysis, "whole" if whole else "loop", "ROWS", configs),
    )
    return Schedule(dims, (), blocks(dims[0]), configs, False, f"columns: {x} of them a program, reduced over {extent} rows")
