"""Tiles, warps and stages of matrix products: what is worth timing for a shape on a target.

The lists are Hopper's and Ampere's usual ones, short, for each is compiled. What spilled registers when it was compiled offline
for an architecture is left out there (``tests/codegen/triton/test_product_offline.py`` compiles them all).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tinycompile.base import expr as ex
from tinycompile.base.dtypes import FLOAT8
from tinycompile.base.target import Target
from tinycompile.codegen.triton.analysis import Analysis
from tinycompile.codegen.triton.tiles import Schedule, TileDim, blocks, power_of_2, widen
from tinycompile.ir.loops import Axis
from tinycompile.ir.products import Product
from tinycompile.ir.source import Config

NORM = "WIDE"  # the block in which rows are reduced
GROUP = 8  # rows of tiles that run together
LEAST_TILE = 16
FLOAT8_CARDS = ("sm_89", "sm_90")
MOST_PARTS = 16  # programs that share a tile's sum
MOST_WAVES = 3  # tiles a program, up to which equal shares of the steps are tried
FULL = 0.9  # of the card at work while tiles are done one a program: enough to leave it at that
LEAST_STEPS = 4  # of a program that takes a share of all
NORM_ELEMENTS = 16  # a thread, of a block of rows that are reduced before they are multiplied


@dataclass(frozen=True, slots=True)
class Tile:
    """``step``: elements of the sum that a program takes at once, for a factor of two bytes."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


HALF_TILES = (
    Tile(128, 256, 64, 8, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 32, 4, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 32, 64, 4, 4),
    Tile(32, 64, 64, 4, 5),
    Tile(16, 128, 64, 4, 5),
    Tile(16, 64, 128, 4, 4),
    Tile(32, 32, 64, 4, 5),
    Tile(16, 16, 128, 2, 4),
)
SINGLE_TILES = (  # float32 without tensor cores: each product is an instruction of a thread
    Tile(64, 64, 16, 8, 3),
    Tile(64, 32, 16, 4, 3),
    Tile(32, 32, 32, 4, 3),
    Tile(16, 32, 32, 2, 3),
    Tile(16, 16, 32, 1, 3),
)
BOX_TILES = (  # operands by tensor descriptors, for wgmma
    Tile(128, 256, 64, 8, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 128, 4, 3),
)
FLAT_SPILLS = {(128, 256, 1), (128, 256, 2), (128, 256, 4), (256, 128, 1)}  # rows, columns, bytes of a factor
SKINNY_TILES = (Tile(16, 16, 128, 2, 4), Tile(16, 64, 128, 4, 4))
SPILLS = {("sm_80", Tile(64, 64, 16, 8, 3))}
STREAM_SPILLS = {("sm_80", Tile(16, 64, 128, 4, 4))}


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a product at the sizes seen at capture. ``dots``: sums that a program keeps at once."""

    rows: int
    columns: int
    inner: int
    batch: int
    dots: int
    dtype: torch.dtype


def tiles(shape: Shape, target: Target, tf32: bool) -> Iterator[Tile]:
    """Those that are no larger than the shape needs and fit in shared memory and registers."""
    single = shape.dtype == torch.float32 and not tf32
    yield from fitting(SINGLE_TILES if single else HALF_TILES, shape, target, single)


def fitting(listed: Sequence[Tile], shape: Shape, target: Target, single: bool) -> Iterator[Tile]:
    """Of the tiles listed. ``single``: for float32 that is not rounded."""
    if shape.dtype in FLOAT8 and target.arch not in FLOAT8_CARDS:
        return
    most_rows, most_columns = (max(power_of_2(n), LEAST_TILE) for n in (shape.rows, shape.columns))
    for tile in listed:
        if (target.arch, tile) in SPILLS:
            continue
        size = shape.dtype.itemsize
        step = tile.step if single else max(tile.step * 2 // size, LEAST_TILE * 2)
        shared = tile.stages * step * (tile.rows + shape.dots * tile.columns) * size
        if tile.rows > most_rows or tile.columns > most_columns or shared > target.shared:
            continue
        sums = shape.dots * (2 if shape.dtype in FLOAT8 else 1)  # those of a step are apart
        if tile.rows * tile.columns * sums > tile.warps * 32 * most_sums(target):
            continue
        yield Tile(tile.rows, tile.columns, step, tile.warps, tile.stages)


def most_sums(target: Target) -> int:
    """Sums that a thread can hold beside what it multiplies them from: ``wgmma`` (sm_90) reads its factors from shared memory,
    older tensor cores from registers."""
    return 128 if target.arch == "sm_90" else 64


def config(tile: Tile, **more: int) -> Config:
    """A tile as a kernel's constants."""
    constants = (("ROWS", tile.rows), ("COLS", tile.columns), ("STEP", tile.step), ("GROUP", GROUP), *more.items())
    return Config(constants, tile.warps, tile.stages)


def count(tile: Tile, shape: Shape) -> int:
    """Tiles of the whole product."""
    return shape.batch * -(-shape.rows // tile.rows) * -(-shape.columns // tile.columns)


def tiled(shape: Shape, target: Target, tf32: bool) -> tuple[Config, ...]:
    """A tile a program."""
    return tuple(config(t) for t in tiles(shape, target, tf32))


def persistent(shape: Shape, target: Target, tf32: bool) -> tuple[Config, ...]:
    """As many programs as multiprocessors, each of which takes tile after tile: where there are several for each."""
    return tuple(config(t, PROGRAMS=target.units) for t in tiles(shape, target, tf32) if count(t, shape) > 2 * target.units)[:4]


def parted(shape: Shape, target: Target, tf32: bool) -> tuple[Config, ...]:
    """Several programs share the sum of a tile, where there are too few tiles for the card and the sum is long."""
    found = []
    for t in tiles(shape, target, tf32):
        if (parts := parts_of(t, shape, target)) > 1:
            found.append(config(t, PARTS=parts))
    return tuple(found)


def boxed(shape: Shape, target: Target, tf32: bool) -> tuple[Config, ...]:
    """Operands by tensor descriptors, which Hopper has and programs that walk tiles make once. Where a program walks several
    tiles, the loops over tiles and steps are one loop (``FLATTEN``), so that the next tile's operands are fetched while the
    last one's results are stored; but not where that takes more registers than there are."""
    if target.arch != "sm_90" or (shape.dtype == torch.float32 and not tf32):
        return ()
    found = []
    for t in fitting(BOX_TILES, shape, target, False):
        flatten = count(t, shape) > target.units and (t.rows, t.columns, shape.dtype.itemsize) not in FLAT_SPILLS
        found.append(config(t, PROGRAMS=target.units, FLATTEN=int(flatten)))
    return tuple(found)


def streamed(shape: Shape, target: Target, tf32: bool) -> tuple[Config, ...]:
    """Equal shares of all steps, where there are so few tiles that a tile a program leaves much of the card without work at the
    end, and enough steps for all."""
    found = []
    for t in tiles(shape, target, tf32):
        programs, steps = target.units * at_once(t, shape, target), -(-shape.inner // t.step)
        waves = count(t, shape) / programs
        enough = count(t, shape) * steps >= LEAST_STEPS * programs
        if (target.arch, t) in STREAM_SPILLS:
            continue
        if enough and waves < MOST_WAVES and waves / math.ceil(waves) < FULL:
            found.append(config(t, PROGRAMS=programs))
    return tuple(found)[:4]


def at_once(tile: Tile, shape: Shape, target: Target) -> int:
    """Programs that a multiprocessor holds, as its shared memory allows; two at most are asked for."""
    shared = tile.stages * tile.step * (tile.rows + shape.dots * tile.columns) * shape.dtype.itemsize
    return 2 if 2 * shared <= target.shared and tile.warps <= 4 else 1


def parts_of(tile: Tile, shape: Shape, target: Target) -> int:
    """Programs that share the sum of a tile."""
    parts = 1
    while parts < MOST_PARTS and count(tile, shape) * parts < target.units and shape.inner >= parts * 8 * tile.step:
        parts *= 2
    return parts


def skinny(shape: Shape, target: Target) -> tuple[str, tuple[Config, ...]]:
    """How a product of few rows is cut, the likely best first: small tiles, for columns alone must fill the card; where these
    are few and the sum is long, programs share it."""
    found = list(fitting(SKINNY_TILES, shape, target, False))
    shared = [config(t, PARTS=parts) for t in found if (parts := parts_of(t, shape, target)) > 1]
    return ("parted", tuple(shared)) if len(shared) == len(found) else ("tiled", tuple(config(t) for t in found))


def with_norm(config: Config, shape: Shape) -> Config:
    """With the block in which a program reduces its rows before it multiplies them."""
    rows = dict(config.constants)["ROWS"] if shape.rows > 1 else 1
    wide = max(config.num_warps * 32 * NORM_ELEMENTS // rows, LEAST_TILE)
    return replace(config, constants=(*config.constants, (NORM, min(wide, power_of_2(shape.inner)))))


def axes_of(analysis: Analysis, names: Sequence[str]) -> tuple[Axis, ...]:
    """Axes of the nest by their names."""
    by_name = {a.name: a for a in analysis.parallel}
    return tuple(by_name[n] for n in names)


def schedule(analysis: Analysis, product: Product, candidates: Sequence[Config]) -> tuple[Schedule, TileDim]:
    """The tile of the result with what picks it, and the dimension along the sum."""

    def dim(name: str, axes: tuple[Axis, ...], role: str, block: str) -> TileDim:
        extent = analysis.extent(axes)
        largest = max(dict(c.constants)[block] for c in candidates)
        return TileDim(name, axes, extent, role, block, not ex.divisible_by(extent, largest))

    row = dim("row", axes_of(analysis, product.rows), "tile", "ROWS")
    col = dim("col", axes_of(analysis, product.columns), "tile", "COLS")
    inner = dim("inner", analysis.reduction, "loop", "STEP")
    batch = axes_of(analysis, product.batch)
    outer = (TileDim("outer", batch, analysis.extent(batch), "scalar"),) if batch else ()
    tiles = ex.product([blocks(row), blocks(col), *(d.extent for d in outer)])
    made = widen(Schedule((row, col, inner), outer, tiles, tuple(candidates), False, ""), analysis)
    return replace(made, dims=made.dims[:2]), made.dims[2]
