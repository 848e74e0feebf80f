"""Views: index maps from output coordinates to input coordinates. Strides and offsets are computed as ATen computes them.

A record whose result is annotated ``Tensor(a)`` always aliases its input. ``reshape`` and ``flatten`` alias where
strides permit; binding turns them into ``view`` there, so that the records of these names are the copies.
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
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import View
from tinycompile.ops.samples import call, t

Coords = tuple[Dim, ...]


def viewed(x: TensorMeta, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None = None) -> TensorMeta:
    """A view of ``x`` with other sizes, strides and offset."""
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
    return viewed(x, shape, strides)


def _reshape_meta(x: TensorMeta, shape: Sequence[Dim]) -> TensorMeta:
    full = shapes.infer_size(tuple(shape), x.numel)
    strides = shapes.view_strides(x.shape, x.strides, full)
    return rules.fresh(full, x.dtype, x.device) if strides is None else viewed(x, full, strides)


def flattened_shape(shape: Shape, start: int = 0, end: int = -1) -> Shape:
    """The shape after ``flatten(start, end)``. Raises torch's error when they are out of order."""
    first, last = shapes.normalize_dim(start, len(shape)), shapes.normalize_dim(end, len(shape))
    if not shape:
        return (1,)
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
    torch.unflatten,
    spelled("unflatten"),
    lambda: [call(t(4, 6), 1, (2, 3)), call(t(4, 6), 0, (-1, 2)), call(t(4, 6, layout="transposed"), 1, (3, 2))],
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
        if isinstance(want, int) and want < 0:
            raise RuntimeError(
                f"expand({_tensor_text(x)}, size={list(size)}): the expanded size of the tensor ({want}) is negative"
            )
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
    return viewed(x, shape, strides)


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
    return viewed(x, [x.shape[d] for d in kept], [x.strides[d] for d in kept])


def _squeeze_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim: Any = None) -> Coords:
    kept = _squeezed(meta_in, dim)
    return tuple(coords[kept.index(d)] if d in kept else 0 for d in range(meta_in.rank))


def _unsqueeze_meta(x: TensorMeta, dim: int) -> TensorMeta:
    at = shapes.normalize_dim(dim, x.rank + 1)
    stride = x.shape[at] * x.strides[at] if at < x.rank else 1
    return viewed(x, (*x.shape[:at], 1, *x.shape[at:]), (*x.strides[:at], stride, *x.strides[at:]))


def _unsqueeze_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim: int) -> Coords:
    at = shapes.normalize_dim(dim, meta_in.rank + 1)
    return (*coords[:at], *coords[at + 1 :])


declare(
    "expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)",
    _expand_meta,
    View(_expand_index),
    lambda x, size, implicit=False: x.expand(size),
    (*spelled("expand", "m"), *spelled("broadcast_to")),
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
