"""Operands of a product as boxes of memory: what Hopper's copy engine (TMA) fetches by a tensor descriptor, a tile at a time,
without addresses, masks or registers of the program's threads; behind the ends of a tensor it gives zeros.

A load is one where the rows or columns, the sum and each axis of the batch walk memory in one step, one of the first two
element by element and the others by multiples of 16 bytes, from an address that is one. Smaller loads (a scale of rows) stay
ordinary ones; a product with another load of whole tiles is not offered with descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.codegen.triton.analysis import INT32_MAX, Analysis, Forms
from tinycompile.codegen.triton.tiles import TileDim
from tinycompile.ir.loops import Axis, Load
from tinycompile.ir.products import Product

GRAIN = 16  # bytes: what addresses and strides of the copy engine are multiples of
MOST_DIMS = 5  # of a descriptor


@dataclass(frozen=True, slots=True)
class Box:
    """One load. ``batch``: axes of which a tile has one point each; ``dims``: the tile's two, the one along memory last.
    ``steps``: elements between neighbours along each of these; the last is 1. ``start``: the first element's offset.
    ``turned``: the tile that is wanted has its two dimensions the other way round."""

    buffer: str
    batch: tuple[Axis, ...]
    dims: tuple[TileDim, TileDim]
    steps: tuple[Dim, ...]
    start: Dim
    turned: bool


def find_boxes(
    analysis: Analysis, product: Product, dims: Sequence[TileDim], inner: TileDim, outer: Sequence[TileDim]
) -> dict[int, Box]:
    """The boxes of a product by the positions of their loads; none unless every load of whole tiles is one. ``dims``: rows and
    columns of the result, ``inner``: along the sum, ``outer``: the batch."""
    found: dict[int, Box] = {}
    for positions, dim, natural in ((product.left, dims[0], (dims[0], inner)), (product.right, dims[1], (inner, dims[1]))):
        for position in positions:
            s, form = analysis.nest.body[position], analysis.forms[position]
            if not isinstance(s, Load) or not all(_walks(analysis, s, d) for d in (dim, inner)):
                continue
            box = _box(analysis, s, form, natural, outer)
            if box is None:
                return {}
            found[position] = box
    whole = all(set(positions) & found.keys() for positions in (product.left, product.right))
    return found if whole else {}


def _walks(analysis: Analysis, s: Load, dim: TileDim) -> bool:
    return bool(analysis.spans[s.name] & {a.name for a in dim.axes})


def _box(analysis: Analysis, s: Load, form: Forms, natural: tuple[TileDim, TileDim], outer: Sequence[TileDim]) -> Box | None:
    """``natural``: the tile's dimensions as ``tl.dot`` takes them."""
    meta, batch = analysis.metas[s.buffer], [a for d in outer for a in d.axes]
    grain, rest, steps = GRAIN // meta.dtype.itemsize, form.offset, list[Dim]()
    for axes in (*((a,) for a in batch), *(d.axes for d in natural)):
        step, rest = step_along(rest, axes)
        if step is None:
            return None
        steps.append(step)
    walked = [(a, step) for a, step in zip(batch, steps, strict=False) if step != 0]
    order = sorted(zip(natural, steps[len(batch) :], strict=True), key=lambda x: x[1] == 1)
    wide = [step for _, step in (*walked, order[0])]
    extents = [a.extent for a, _ in walked] + [d.extent for d in natural]
    if order[1][1] != 1 or form.masks or form.checks or meta.dtype == torch.bool or len(extents) > MOST_DIMS:
        return None
    if {y.name for y in ex.symbols(rest)} - analysis.hints.keys() or not ex.divisible_by(rest + meta.offset, grain):
        return None
    if not all(ex.divisible_by(step, grain) and analysis.hint(step) > 0 for step in wide):
        return None
    if any(analysis.hint(n) > INT32_MAX for n in extents):
        return None
    dims = (order[0][0], order[1][0])
    return Box(s.buffer, tuple(a for a, _ in walked), dims, (*wide, 1), rest, dims != natural)


def step_along(offset: Dim, axes: Sequence[Axis]) -> tuple[Dim | None, Dim]:
    """By how much an offset grows along axes taken as one (outermost first), and what is left of it without them; None where
    that is no single number."""
    step = ex.coefficient(offset, axes[-1].name) if axes else 0
    after = step
    for axis in reversed(axes):
        if after is None or ex.coefficient(offset, axis.name) != after:
            return None, offset
        offset = ex.substitute(offset, {axis.name: 0})
        after = after * axis.extent
    return step, offset
