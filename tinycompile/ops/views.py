"""Views: index maps from output coordinates to input coordinates. Strides and offsets are computed as ATen computes them.

A record whose result is annotated ``Tensor(a)`` always aliases its input. ``reshape`` and ``flatten`` alias where strides permit;
binding turns them into ``view`` there, so that the records of these names are the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import Shape
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Metas, View
from tinycompile.ops.samples import call, t

Coords = tuple[Dim, ...]


def _viewed(x: TensorMeta, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None = None) -> TensorMeta:
    return TensorMeta(tuple(shape), tuple(strides), x.dtype, x.device, x.offset if offset is None else offset)


# ----------------------------------------------------------------------------------------------------------------- shape


def linear_index(coords: Coords, shape: Shape) -> Dim:
    """The row-major position of ``coords``."""
    total: Dim = 0
    for c, size in zip(coords, shape, strict=True):
        total = total * size + c
    return total


def unravel(position: Dim, shape: Shape) -> Coords:
    """The coordinates of a row-major position."""
    coords: list[Dim] = []
    for d in range(len(shape) - 1, -1, -1):
        if rules.is_one(shape[d]):
            coords.append(0)
            continue
        coords.append(ex.mod(position, shape[d]) if any(not rules.is_one(s) for s in shape[:d]) else position)
        position = ex.floordiv(position, shape[d])
    return tuple(reversed(coords))


def reshape_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, *rest: Any) -> Coords:
    """Runs of dims with equal products map onto each other, so that only dims that really merge or split meet // and %."""
    if any(rules.is_zero(s) for s in meta_out.shape):
        return (0,) * meta_in.rank
    result: list[Dim] = []
    for ins, outs in _matching_runs(meta_in.shape, meta_out.shape):
        inner_in, inner_out = meta_in.shape[ins], meta_out.shape[outs]
        result += unravel(linear_index(coords[outs], inner_out), inner_in)
    return tuple(result)


def _matching_runs(old: Shape, new: Shape) -> list[tuple[slice, slice]]:
    """Shortest consecutive slices of equal product, first to last."""
    runs: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        left: Dim = 1
        right: Dim = 1
        while True:
            if i < len(old) and ((left == right and i == first_i) or _behind(left, right, j == len(new))):
                left, i = left * old[i], i + 1
            elif j < len(new):
                right, j = right * new[j], j + 1
            elif i < len(old):
                left, i = left * old[i], i + 1
            if left == right or (i == len(old) and j == len(new)):
                break
        runs.append((slice(first_i, i), slice(first_j, j)))
    return runs


def _behind(left: Dim, right: Dim, right_done: bool) -> bool:
    """Whether the left product must grow to meet the right one; undecided symbolic products grow by turns of evidence."""
    if right_done:
        return True
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return ex.at_least(right - left, 1)


def _view_meta(x: TensorMeta, size: Sequence[Dim]) -> TensorMeta:
    shape = shapes.infer_size(tuple(size), x.numel)
    strides = shapes.view_strides(x.shape, x.strides, shape)
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return _viewed(x, shape, strides)


def _reshape_meta(x: TensorMeta, shape: Sequence[Dim]) -> TensorMeta:
    full = shapes.infer_size(tuple(shape), x.numel)
    strides = shapes.view_strides(x.shape, x.strides, full)
    return rules.fresh(full, x.dtype, x.device) if strides is None else _viewed(x, full, strides)


def flattened_shape(shape: Shape, start: int = 0, end: int = -1) -> Shape:
    """The shape after ``flatten(start, end)``. Raises torch's error when they are out of order."""
    if not shape:
        return (1,)
    first, last = shapes.normalize_dim(start, len(shape)), shapes.normalize_dim(end, len(shape))
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    return (*shape[:first], shapes.numel(shape[first : last + 1]), *shape[last + 1 :])


def unflattened_shape(shape: Shape, dim: int, sizes: Sequence[Dim]) -> Shape:
    """The shape after ``unflatten(dim, sizes)``."""
    at = shapes.normalize_dim(dim, len(shape))
    if not sizes:
        raise RuntimeError("unflatten: sizes must be non-empty")
    return (*shape[:at], *shapes.infer_size(tuple(sizes), shape[at]), *shape[at + 1 :])


_RESHAPES = (
    (t(4, 6), (24,)),
    (t(4, 6), (2, 2, 6)),
    (t(4, 6), (-1, 3)),
    (t(2, 3, 4), (6, 4)),
    (t(2, 3, 4), (2, 12)),
    (t(), (1, 1)),
    (t(1), ()),
    (t(0, 3), (3, 0)),
    (t(4, 6), (8, 3)),
    (t(4, 6, layout="offset"), (24,)),
    (t(1, 4, 1), (4,)),
    (t(4), (1, 4, 1)),
)
declare(
    "view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
    _view_meta,
    View(reshape_index),
    lambda x, size: x.view(size),
    spelled("view", "m"),
    lambda: [
        *(call(a, s) for a, s in _RESHAPES),
        call(t(4, 6, layout="transposed"), (4, 2, 3)),
        call(t(4, 6, layout="transposed"), (24,)),
        call(t(4, 6), (5, 5)),
        call(t(4, 6), (-1, -1)),
        call(t(4, 6), (-1, 7)),
    ],
)
declare(
    "reshape(Tensor self, SymInt[] shape) -> Tensor",
    _reshape_meta,
    View(reshape_index),
    torch.reshape,
    spelled("reshape"),
    lambda: [
        *(call(a, s) for a, s in _RESHAPES),
        call(t(4, 6, layout="transposed"), (24,)),
        call(t(2, 6, layout="strided"), (3, 4)),
        call(t(4, 6, layout="expanded"), (2, 12)),
    ],
)
declare(
    "flatten(Tensor self, int start_dim=0, int end_dim=-1) -> Tensor",
    lambda x, start=0, end=-1: _reshape_meta(x, flattened_shape(x.shape, start, end)),
    View(reshape_index),
    torch.flatten,
    spelled("flatten"),
    lambda: [
        call(t(2, 3, 4)),
        call(t(2, 3, 4), 1),
        call(t(2, 3, 4), 0, 1),
        call(t()),
        call(t(4, 6, layout="transposed")),
        call(t(2, 3), 1, 0),
    ],
)
declare(
    "unflatten(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)",
    lambda x, dim, sizes: _view_meta(x, unflattened_shape(x.shape, dim, sizes)),
    View(reshape_index),
    lambda x, dim, sizes: torch.unflatten(x, dim, sizes),
    spelled("unflatten"),
    lambda: [call(t(4, 6), 1, (2, 3)), call(t(4, 6), 0, (-1, 2)), call(t(4, 6, layout="transposed"), 1, (3, 2))],
)


# ----------------------------------------------------------------------------------------------------- order of the dims


def _permutation(rank: int, dims: Sequence[int]) -> tuple[int, ...]:
    if len(dims) != rank:
        raise RuntimeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering of dimensions "
            f"i.e. input.dim() = {rank} is not equal to len(dims) = {len(dims)}"
        )
    order = tuple(shapes.normalize_dim(d, rank) for d in dims)
    if len(set(order)) != rank:
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return order


def _permute_meta(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    order = _permutation(x.rank, dims)
    return _viewed(x, [x.shape[d] for d in order], [x.strides[d] for d in order])


def _permute_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dims: Sequence[int]) -> Coords:
    order = _permutation(meta_in.rank, dims)
    return tuple(coords[order.index(d)] for d in range(len(order)))


def swapped(rank: int, dim0: int, dim1: int) -> tuple[int, ...]:
    """The permutation that swaps two dims."""
    a, b = shapes.normalize_dim(dim0, rank), shapes.normalize_dim(dim1, rank)
    order = list(range(rank))
    if rank:
        order[a], order[b] = order[b], order[a]
    return tuple(order)


def _transpose_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim0: int, dim1: int) -> Coords:
    return _permute_index(coords, meta_in, meta_out, swapped(meta_in.rank, dim0, dim1))


def _t_meta(x: TensorMeta) -> TensorMeta:
    if x.rank > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.rank}D")
    return _permute_meta(x, tuple(reversed(range(x.rank))))


def _t_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta) -> Coords:
    return tuple(reversed(coords))


def moved(rank: int, source: int | Sequence[int], destination: int | Sequence[int]) -> tuple[int, ...]:
    """The permutation of ``movedim``."""
    src = [shapes.normalize_dim(d, rank) for d in ((source,) if isinstance(source, int) else source)]
    dst = [shapes.normalize_dim(d, rank) for d in ((destination,) if isinstance(destination, int) else destination)]
    if len(src) != len(dst):
        raise RuntimeError(
            "movedim: Invalid source or destination dims: source "
            f"({list(src)} dims) should contain the same number of dims as destination ({list(dst)} dims)"
        )
    if len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise RuntimeError("movedim: repeated dim in `source` or `destination`")
    order = [-1] * rank
    for s, d in zip(src, dst, strict=True):
        order[d] = s
    rest = iter(d for d in range(rank) if d not in src)
    return tuple(d if d >= 0 else next(rest) for d in order)


declare(
    "permute(Tensor(a) self, int[] dims) -> Tensor(a)",
    _permute_meta,
    View(_permute_index),
    torch.permute,
    spelled("permute"),
    lambda: [
        call(t(2, 3, 4), (2, 0, 1)),
        call(t(2, 3, 4), (-1, 0, -2)),
        call(t(), ()),
        call(t(2, 3), (0, 0)),
        call(t(4, 6, layout="strided"), (1, 0)),
    ],
)
declare(
    "transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
    lambda x, a, b: _permute_meta(x, swapped(x.rank, a, b)),
    View(_transpose_index),
    torch.transpose,
    (*spelled("transpose"), *spelled("swapaxes"), *spelled("swapdims")),
    lambda: [call(t(2, 3, 4), 0, 2), call(t(2, 3, 4), -1, -2), call(t(), 0, -1), call(t(2, 3), 0, 5), call(t(2, 3), 1, 1)],
)
declare(
    "t(Tensor(a) self) -> Tensor(a)",
    _t_meta,
    View(_t_index),
    torch.t,
    spelled("t"),
    lambda: [call(t(2, 3)), call(t(3)), call(t()), call(t(1, 2, 3))],
)
declare(
    "movedim(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
    lambda x, source, destination: _permute_meta(x, moved(x.rank, source, destination)),
    View(lambda coords, i, o, source, destination: _permute_index(coords, i, o, moved(i.rank, source, destination))),
    lambda x, source, destination: torch.movedim(x, source, destination),
    (*spelled("movedim"), *spelled("moveaxis")),
    lambda: [call(t(2, 3, 4), (0,), (2,)), call(t(2, 3, 4), (0, 1), (1, 2)), call(t(2, 3, 4), (-1,), (0,))],
)


# ------------------------------------------------------------------------------------------------------ sizes of one, expand


def _expand_meta(x: TensorMeta, size: Sequence[Dim], implicit: bool = False) -> TensorMeta:
    lead = len(size) - x.rank
    if lead < 0:
        raise RuntimeError(
            f"expand({_tensor_text(x)}, size={list(size)}): the number of sizes provided ({len(size)}) must be greater or "
            f"equal to the number of dimensions in the tensor ({x.rank})"
        )
    shape: list[Dim] = []
    for d, want in enumerate(size):
        have: Dim = 1 if d < lead else x.shape[d - lead]
        if isinstance(want, int) and want == -1:
            if d < lead:
                raise RuntimeError(
                    f"expand({_tensor_text(x)}, size={list(size)}): the expanded size of the tensor ({want}) isn't allowed in "
                    f"a leading, non-existing dimension {d}"
                )
            want = have
        if not rules.is_one(have) and not shapes.same(have, want):
            raise RuntimeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at non-singleton dimension "
                f"{d}.  Target sizes: {list(size)}.  Tensor sizes: {list(x.shape)}"
            )
        shape.append(want if rules.is_one(have) else have)
    strides = [x.strides[d - lead] if d >= lead and x.shape[d - lead] == shape[d] else 0 for d in range(len(shape))]
    for d in range(
        lead - 1 if x.rank else -1, -1, -1
    ):  # ATen's inferExpandGeometry: a new leading 1 gets its dense stride; not of a 0-d
        strides[d] = (
            shape[d + 1] * strides[d + 1]
            if rules.is_one(shape[d]) and d + 1 < len(shape)
            else (1 if rules.is_one(shape[d]) else 0)
        )
    return _viewed(x, shape, strides)


def _tensor_text(x: TensorMeta) -> str:
    kind = "torch." if x.device.type == "cpu" else f"torch.{x.device.type}."
    return f"{kind}{rules.type_name(x.dtype)}Tensor{{{list(x.shape)}}}"


def _expand_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, *rest: Any) -> Coords:
    lead = meta_out.rank - meta_in.rank
    return tuple(0 if rules.is_one(size) else coords[lead + d] for d, size in enumerate(meta_in.shape))


def _squeezed(x: TensorMeta, dim: int | Sequence[int] | None) -> list[int]:
    dims = shapes.normalize_dims(dim, x.rank) if dim is None or isinstance(dim, int) or len(dim) else ()
    return [d for d in range(x.rank) if not (d in dims and rules.is_one(x.shape[d]))]


def _squeeze_meta(x: TensorMeta, dim: int | Sequence[int] | None = None) -> TensorMeta:
    kept = _squeezed(x, dim)
    return _viewed(x, [x.shape[d] for d in kept], [x.strides[d] for d in kept])


def _squeeze_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim: Any = None) -> Coords:
    kept = _squeezed(meta_in, dim)
    return tuple(coords[kept.index(d)] if d in kept else 0 for d in range(meta_in.rank))


def _unsqueeze_meta(x: TensorMeta, dim: int) -> TensorMeta:
    at = shapes.normalize_dim(dim, x.rank + 1)
    stride = x.shape[at] * x.strides[at] if at < x.rank else 1
    return _viewed(x, (*x.shape[:at], 1, *x.shape[at:]), (*x.strides[:at], stride, *x.strides[at:]))


def _unsqueeze_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim: int) -> Coords:
    at = shapes.normalize_dim(dim, meta_in.rank + 1)
    return (*coords[:at], *coords[at + 1 :])


declare(
    "expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)",
    _expand_meta,
    View(_expand_index),
    lambda x, size, implicit=False: x.expand(size),
    spelled("expand", "m"),
    lambda: [
        call(t(3, 1), (3, 4)),
        call(t(3, 1), (-1, 4)),
        call(t(3), (2, 3)),
        call(t(), (2, 2)),
        call(t(1), (1, 1, 1)),
        call(t(3, 1), (2, 3, 1)),
        call(t(3), (2, 4)),
        call(t(3, 4), (4,)),
        call(t(2, 1, 3, layout="transposed"), (2, 5, 3)),
        call(t(1, 3), (0, 3)),
    ],
)
declare(
    "squeeze(Tensor(a) self, int[]? dim=None) -> Tensor(a)",
    _squeeze_meta,
    View(_squeeze_index),
    lambda x, dim=None: torch.squeeze(x) if dim is None else torch.squeeze(x, dim),
    spelled("squeeze"),
    lambda: [
        call(t(1, 3, 1)),
        call(t(1, 3, 1), (0,)),
        call(t(1, 3, 1), (-1, 0)),
        call(t(1, 3), (1,)),
        call(t()),
        call(t(3, 1), (5,)),
    ],
)
declare(
    "unsqueeze(Tensor(a) self, int dim) -> Tensor(a)",
    _unsqueeze_meta,
    View(_unsqueeze_index),
    torch.unsqueeze,
    spelled("unsqueeze"),
    lambda: [
        call(t(3, 4), 0),
        call(t(3, 4), -1),
        call(t(3, 4), 1),
        call(t(), 0),
        call(t(3), 5),
        call(t(4, 6, layout="transposed"), 1),
    ],
)


# ------------------------------------------------------------------------------------------------------- parts of a tensor


def _select_meta(x: TensorMeta, dim: int, index: Dim) -> TensorMeta:
    if not x.rank:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    at = shapes.normalize_dim(dim, x.rank)
    size = x.shape[at]
    if not shapes.at_least(size - 1, index) or not shapes.at_least(index, -size):
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {at}")
    return _viewed(
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
    return _viewed(
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


def _diagonal_meta(x: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorMeta:
    a, b = shapes.normalize_dim(dim1, x.rank), shapes.normalize_dim(dim2, x.rank)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, cols = (x.shape[a], x.shape[b] - offset) if offset >= 0 else (x.shape[a] + offset, x.shape[b])
    length = ex.maximum(ex.minimum(rows, cols), 0)
    rest = [d for d in range(x.rank) if d not in (a, b)]
    start = 0 if rules.is_zero(length) else offset * x.strides[b] if offset >= 0 else -offset * x.strides[a]
    return _viewed(
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
    _diagonal_meta,
    View(_diagonal_index),
    torch.diagonal,
    spelled("diagonal"),
    lambda: [call(t(3, 4)), call(t(3, 4), 1), call(t(3, 4), -1), call(t(2, 3, 4), 0, -2, -1), call(t(3, 4), 9)],
)


# ------------------------------------------------------------------------------------------------- several views at a time


def split_lengths(size: Dim, step: int) -> list[Dim]:
    """Lengths of pieces of ``step`` that cover ``size`` (which is pinned), the last one shorter."""
    size = shapes.pinned(size)
    if step == 0:
        if size:
            raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}")
        return [0]
    if step < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
    return [min(step, size - at) for at in range(0, size, step)] or [0]


def _pieces(x: Any, dim: int, lengths: Sequence[Dim]) -> tuple[Any, ...]:
    pieces, at = [], 0
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
    if isinstance(size, int):
        step = -(-size // chunks)
        return [0] * chunks if step == 0 else split_lengths(size, step)
    return (
        [size // chunks] * chunks if shapes.same(size % chunks, 0) else split_lengths(size, -(-shapes.pinned(size) // chunks))
    )


def _section_lengths(x: Any, dim: int, sizes: Sequence[Dim]) -> list[Dim]:
    total = x.shape[_at(x, dim)]
    if not shapes.same(sum(sizes, start=0), total):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {total} (input tensor's size at dimension {dim}), but got "
            f"split_sizes={list(sizes)}"
        )
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
