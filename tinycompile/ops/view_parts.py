"""Parts of a tensor as views: select, slice, narrow, diagonal; and the ops that give several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Metas, View
from tinycompile.ops.samples import call, t
from tinycompile.ops.views import viewed

Coords = tuple[Dim, ...]


# ------------------------------------------------------------------------------------------------------- parts of a tensor


def _select_meta(x: TensorMeta, dim: int, index: Dim) -> TensorMeta:
    if not x.rank:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    at = shapes.normalize_dim(dim, x.rank)
    size = x.shape[at]
    if not shapes.at_least(size - 1, index) or not shapes.at_least(index, -size):
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {at}")
    return viewed(
        x,
        (*x.shape[:at], *x.shape[at + 1 :]),
        (*x.strides[:at], *x.strides[at + 1 :]),
        x.offset + _wrapped(index, size) * x.strides[at],
    )


def _wrapped(index: Dim, size: Dim) -> Dim:
    return index if shapes.at_least(index, 0) else index + size


def _select_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim: int, index: Dim) -> Coords:
    at = shapes.normalize_dim(dim, meta_in.rank)
    return (*coords[:at], _wrapped(index, meta_in.shape[at]), *coords[at:])


def slice_bounds(size: Dim, start: Dim | None, end: Dim | None, step: Dim = 1) -> tuple[Dim, Dim]:
    """(start, length) of a Python slice with a positive step over ``size``. Raises ValueError for other steps."""
    if not shapes.at_least(step, 1):
        raise RuntimeError("slice step must be positive")
    first = _clipped(0 if start is None else start, size)
    last = size if end is None else _clipped(end, size)
    if not shapes.at_least(last, first):
        last = first
    return first, ex.ceildiv(last - first, step)


def _clipped(at: Dim, size: Dim) -> Dim:
    at = _wrapped(at, size)
    if not shapes.at_least(at, 0):
        return 0
    return at if shapes.at_least(size, at) else size


def _slice_meta(x: TensorMeta, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Dim = 1) -> TensorMeta:
    if not x.rank:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    at = shapes.normalize_dim(dim, x.rank)
    first, length = slice_bounds(x.shape[at], start, end, step)
    return viewed(
        x,
        (*x.shape[:at], length, *x.shape[at + 1 :]),
        (*x.strides[:at], x.strides[at] * step, *x.strides[at + 1 :]),
        x.offset + first * x.strides[at],
    )


def _slice_index(
    coords: Coords,
    meta_in: TensorMeta,
    meta_out: TensorMeta,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: Dim = 1,
) -> Coords:
    at = shapes.normalize_dim(dim, meta_in.rank)
    first, _ = slice_bounds(meta_in.shape[at], start, end, step)
    return (*coords[:at], coords[at] * step + first, *coords[at + 1 :])


def _eager_slice(x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> torch.Tensor:
    at = shapes.normalize_dim(dim, x.dim())
    return x[(slice(None),) * at + (slice(start, end, step),)]


def _narrow_meta(x: TensorMeta, dim: int, start: Dim, length: Dim) -> TensorMeta:
    if not x.rank:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    if not shapes.at_least(length, 0):
        raise RuntimeError("narrow(): length must be non-negative.")
    at = shapes.normalize_dim(dim, x.rank)
    size = x.shape[at]
    if not shapes.at_least(size, start) or not shapes.at_least(start, -size):
        raise IndexError(f"start out of range (expected to be in range of [-{size}, {size}], but got {start})")
    first = _wrapped(start, size)
    if not shapes.at_least(size - length, first):
        raise RuntimeError(f"start ({first}) + length ({length}) exceeds dimension size ({size}).")
    return _slice_meta(x, at, first, first + length)


def _narrow_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim: int, start: Dim, length: Dim) -> Coords:
    at = shapes.normalize_dim(dim, meta_in.rank)
    return (*coords[:at], coords[at] + _wrapped(start, meta_in.shape[at]), *coords[at + 1 :])


def diagonal_meta(x: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorMeta:
    """The view of a diagonal; it is the last dim."""
    a, b = shapes.normalize_dim(dim1, x.rank), shapes.normalize_dim(dim2, x.rank)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, cols = (x.shape[a], x.shape[b] - offset) if offset >= 0 else (x.shape[a] + offset, x.shape[b])
    length = ex.maximum(ex.minimum(rows, cols), 0)
    rest = [d for d in range(x.rank) if d not in (a, b)]
    start = 0 if rules.is_zero(length) else offset * x.strides[b] if offset >= 0 else -offset * x.strides[a]
    return viewed(
        x, [*(x.shape[d] for d in rest), length], [*(x.strides[d] for d in rest), x.strides[a] + x.strides[b]], x.offset + start
    )


def _diagonal_index(
    coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Coords:
    a, b = shapes.normalize_dim(dim1, meta_in.rank), shapes.normalize_dim(dim2, meta_in.rank)
    rest = iter(coords[:-1])
    at = {a: coords[-1] + max(-offset, 0), b: coords[-1] + max(offset, 0)}
    return tuple(at[d] if d in at else next(rest) for d in range(meta_in.rank))


declare(
    "select(Tensor(a) self, int dim, SymInt index) -> Tensor(a)",
    _select_meta,
    View(_select_index),
    torch.select,
    spelled("select"),
    lambda: [
        call(t(3, 4), 0, 1),
        call(t(3, 4), 1, -1),
        call(t(4, 6, layout="transposed"), 0, 2),
        call(t(3), 0, 3),
        call(t(), 0, 0),
        call(t(3), 0, -4),
    ],
)
declare(
    "slice(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)",
    _slice_meta,
    View(_slice_index),
    _eager_slice,
    (),
    lambda: [
        call(t(5, 6), 0, 1, 3),
        call(t(5, 6), 1, -3),
        call(t(5, 6), 1, None, None, 2),
        call(t(5, 6), -1, 4, 2),
        call(t(5, 6), 0, -100, 100, 3),
        call(t(5, 6, layout="strided"), 1, 1, 5, 2),
    ],
)
declare(
    "narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)",
    _narrow_meta,
    View(_narrow_index),
    torch.narrow,
    spelled("narrow"),
    lambda: [
        call(t(5, 6), 0, 1, 3),
        call(t(5, 6), 1, -3, 2),
        call(t(5, 6), 1, 4, 3),
        call(t(5), 0, 5, 0),
        call(t(5), 0, 0, -1),
    ],
)
declare(
    "diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
    diagonal_meta,
    View(_diagonal_index),
    torch.diagonal,
    spelled("diagonal"),
    lambda: [call(t(3, 4)), call(t(3, 4), 1), call(t(3, 4), -1), call(t(2, 3, 4), 0, -2, -1), call(t(3, 4), 9)],
)


def _unfold_meta(x: TensorMeta, dimension: int, size: int, step: int) -> TensorMeta:
    at = shapes.normalize_dim(dimension, x.rank)
    extent: Dim = x.shape[at] if x.rank else 1
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    if not shapes.at_least(extent, size):
        raise RuntimeError(f"maximum size for tensor at dimension {at} is {extent} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    if not x.rank:
        return viewed(x, (size,), (1,))
    count = ex.floordiv(extent - size, step) + 1
    shape, strides = rules.replaced(x.shape, at, count), rules.replaced(x.strides, at, x.strides[at] * step)
    return viewed(x, (*shape, size), (*strides, x.strides[at]))


def _unfold_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dimension: int, size: int, step: int) -> Coords:
    if not meta_in.rank:
        return ()
    at = shapes.normalize_dim(dimension, meta_in.rank)
    return (*coords[:at], coords[at] * step + coords[-1], *coords[at + 1 : -1])


def _row_3d_meta(x: TensorMeta) -> TensorMeta:
    return viewed(x, (1, x.shape[0], 1), (x.shape[0] * x.strides[0], x.strides[0], 1))


declare(
    "unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)",
    _unfold_meta,
    View(_unfold_index),
    lambda x, dimension, size, step: x.unfold(dimension, size, step),
    spelled("unfold", "m"),
    lambda: [
        call(t(3, 7), 1, 3, 2),
        call(t(7), 0, 2, 2),
        call(t(), 0, 1, 1),
        call(t(3, 7), 0, 4, 1),
        call(t(4, 6, layout="transposed"), -1, 2, 1),
    ],
)
declare(
    "row_3d(Tensor(a) self) -> Tensor(a)",
    _row_3d_meta,
    View(lambda coords, meta_in, meta_out: (coords[1],)),
    torch.atleast_3d,
    (),
    lambda: [call(t(4)), call(t(4, layout="strided"))],
    doc="A vector as (1, n, 1): what atleast_3d makes of it.",
)


# ------------------------------------------------------------------------------------------------- several views at a time


def split_lengths(size: Dim, step: Dim) -> list[Dim]:
    """Lengths of pieces of ``step`` that cover ``size``, the last one shorter. How many there are becomes a condition."""
    if not (isinstance(size, int) and isinstance(step, int)) and shapes.at_least(step, 1) and shapes.at_least(size, 1):
        count = -(-shapes.hint(size) // shapes.hint(step))
        if shapes.same(size, count * step):
            return [step] * count
        last = size - (count - 1) * step
        if shapes.at_least(last, 1) and shapes.at_least(step, last):
            return [step] * (count - 1) + [last]
    size, step = shapes.pinned(size), shapes.pinned(step)
    if step == 0:
        if size:
            raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}")
        return [0]
    if step < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
    return [min(step, size - at) for at in range(0, size, step)] or [0]


def _pieces(x: Any, dim: int, lengths: Sequence[Dim]) -> tuple[Any, ...]:
    pieces: list[Any] = []
    at: Dim = 0
    for length in lengths:
        pieces.append(ops.slice(x, dim, at, at + length))
        at = at + length
    return tuple(pieces)


def _piece_metas(x: TensorMeta, dim: int, lengths: Sequence[Dim]) -> Metas:
    metas: list[TensorMeta] = []
    at: Dim = 0
    for length in lengths:
        piece = _slice_meta(x, dim, at, at + length)
        # split narrows: an empty piece at the end still starts where it would
        metas.append(piece)
        at = at + length
    return tuple(metas)


def _at(x: Any, dim: int) -> int:
    if not len(x.shape):
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    return shapes.normalize_dim(dim, len(x.shape))


def _chunk_lengths(size: Dim, chunks: int) -> list[Dim]:
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if isinstance(size, int) and size == 0:
        return [0] * chunks
    return [size // chunks] * chunks if shapes.same(size % chunks, 0) else split_lengths(size, ex.ceildiv(size, chunks))


def _section_lengths(x: Any, dim: int, sizes: Sequence[Dim]) -> list[Dim]:
    total = x.shape[_at(x, dim)]
    if not shapes.same(sum(sizes, start=0), total):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {total} (input tensor's size at dimension {dim}), but got "
            f"split_sizes={list(sizes)}"
        )
    if not all(shapes.at_least(size, 0) for size in sizes):
        shown = list(map(shapes.hint, sizes))
        raise RuntimeError(f"split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes={shown}")
    return list(sizes)


def _split_meta(x: TensorMeta, split_size: int, dim: int = 0) -> Metas:
    return _piece_metas(x, dim, split_lengths(x.shape[_at(x, dim)], split_size))


def _split(x: Any, split_size: int, dim: int = 0) -> Any:
    return _pieces(x, dim, split_lengths(x.shape[_at(x, dim)], split_size))


def _split_sizes_meta(x: TensorMeta, split_sizes: Sequence[Dim], dim: int = 0) -> Metas:
    return _piece_metas(x, dim, _section_lengths(x, dim, split_sizes))


def _split_sizes(x: Any, split_sizes: Sequence[Dim], dim: int = 0) -> Any:
    return _pieces(x, dim, _section_lengths(x, dim, split_sizes))


def _chunk_meta(x: TensorMeta, chunks: int, dim: int = 0) -> Metas:
    if not x.rank:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    return _piece_metas(x, dim, _chunk_lengths(x.shape[_at(x, dim)], chunks))


def _chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return _pieces(x, dim, _chunk_lengths(x.shape[_at(x, dim)], chunks))


def _static(size: Dim) -> int:
    return shapes.pinned(size)


def _unbind_meta(x: TensorMeta, dim: int = 0) -> Metas:
    at = shapes.normalize_dim(dim, x.rank)
    if not x.rank:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    return tuple(_select_meta(x, at, i) for i in range(_static(x.shape[at])))


def _unbind(x: Any, dim: int = 0) -> Any:
    return tuple(ops.select(x, dim, i) for i in range(_static(x.shape[dim])))


declare(
    "split(Tensor(a) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
    _split_meta,
    Decompose(_split),
    lambda x, size, dim=0: tuple(torch.split(x, size, dim)),
    (),
    lambda: [
        call(t(5, 6), 2),
        call(t(5, 6), 4, 1),
        call(t(5, 6), 3, -1),
        call(t(0, 3), 2),
        call(t(4, 6, layout="transposed"), 2),
    ],
)
declare(
    "split_with_sizes(Tensor(a) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]",
    _split_sizes_meta,
    Decompose(_split_sizes),
    lambda x, sizes, dim=0: tuple(torch.split_with_sizes(x, sizes, dim)),
    spelled("split_with_sizes"),
    lambda: [call(t(5, 6), (2, 3)), call(t(5, 6), (1, 0, 5), 1), call(t(5, 6), (1, 1))],
)
declare(
    "chunk(Tensor(a) self, int chunks, int dim=0) -> Tensor(a)[]",
    _chunk_meta,
    Decompose(_chunk),
    lambda x, chunks, dim=0: tuple(torch.chunk(x, chunks, dim)),
    spelled("chunk"),
    lambda: [call(t(5, 6), 2), call(t(5, 6), 4, 1), call(t(5, 6), 3, -1), call(t(0, 3), 2), call(t(3), 5), call(t(3), 0)],
)
declare(
    "unbind(Tensor(a) self, int dim=0) -> Tensor(a)[]",
    _unbind_meta,
    Decompose(_unbind),
    lambda x, dim=0: tuple(torch.unbind(x, dim)),
    spelled("unbind"),
    lambda: [call(t(3, 4)), call(t(3, 4), 1), call(t(3, 4), -1), call(t(0, 3))],
)
