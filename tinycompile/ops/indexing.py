"""Ops that place their own reads: gathers, concatenation, padding, triangles, flips and repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.creation import constant
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Indexed, Sample
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value

ANY = (*FLOATS, *INTS, "bool")
Coords = tuple[Dim, ...]
_INDEX_DTYPES = (torch.int64, torch.int32)


def ix(n: int, *shape: int, dtype: str = "int64", layout: str = "contiguous") -> Any:
    """A sample index tensor with values in [0, n)."""
    return t(*shape, dtype=dtype, layout=layout, fill=f"index:{n}")


def _at(coords: Coords, dim: int, value: Dim) -> Coords:
    """``coords`` with one of them replaced."""
    return (*coords[:dim], value, *coords[dim + 1 :])


def _require_index(name: str, index: TensorMeta, dtypes: Sequence[torch.dtype]) -> None:
    if index.dtype not in dtypes:
        wanted = "int64" if len(dtypes) == 1 else "int32/int64"
        raise RuntimeError(f"{name}(): Expected dtype {wanted} for index")


# ------------------------------------------------------------------------------------------------- reads through an index


def _embedding_meta(weight: TensorMeta, indices: TensorMeta) -> TensorMeta:
    if weight.rank != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dtype not in _INDEX_DTYPES:
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"torch.{rules.type_name(indices.dtype)}Tensor instead (while checking arguments for embedding)"
        )
    return rules.fresh((*indices.shape, weight.shape[1]), weight.dtype, rules.common_device([weight, indices]))


def _embedding(b: Builder, coords: Coords, meta_out: TensorMeta, weight: Operand, indices: Operand) -> Value:
    row = b.as_index(b.load(indices, coords[:-1]), weight.meta.shape[0])
    return b.load(weight, (row, coords[-1]))


def _gather_meta(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    _require_index("gather", index, _INDEX_DTYPES)
    at = shapes.normalize_dim(dim, x.rank)
    if any(rules.is_zero(s) for s in index.shape):
        return rules.fresh(index.shape, x.dtype, x.device)
    if max(x.rank, 1) != max(index.rank, 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    for d in range(x.rank if index.rank else 0):
        if d != at and not shapes.at_least(x.shape[d], index.shape[d]):
            raise RuntimeError(
                f"Size does not match at dimension {d} expected index {list(index.shape)} to be no larger than self "
                f"{list(x.shape)} apart from dimension {at}"
            )
    return rules.fresh(index.shape, x.dtype, x.device)


def _gather(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, dim: int, index: Operand) -> Value:
    if not x.meta.rank:
        return b.load(x, ())
    at = shapes.normalize_dim(dim, x.meta.rank)
    place = b.as_index(b.load(index, coords), x.meta.shape[at])
    return b.load(x, _at(coords if coords else (0,), at, place))


def _index_select_meta(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    at = shapes.normalize_dim(dim, x.rank)
    if index.rank > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in _INDEX_DTYPES:
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    if not x.rank:
        return rules.fresh((), x.dtype, x.device)
    return rules.fresh(_at(x.shape, at, index.numel), x.dtype, x.device)


def _index_select(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, dim: int, index: Operand) -> Value:
    if not x.meta.rank:
        return b.load(x, ())
    at = shapes.normalize_dim(dim, x.meta.rank)
    place = b.as_index(b.load(index, (coords[at],) if index.meta.rank else ()), x.meta.shape[at])
    return b.load(x, _at(coords, at, place))


def _take_along_meta(x: TensorMeta, indices: TensorMeta, dim: int | None = None) -> TensorMeta:
    if indices.dtype != torch.int64:
        raise RuntimeError(f"torch.take_along_dim(): dtype of indices should be Long but got {rules.type_name(indices.dtype)}")
    if dim is None:
        return rules.fresh((indices.numel,), x.dtype, x.device)
    at = shapes.normalize_dim(dim, x.rank)
    if x.rank != indices.rank:
        raise RuntimeError(
            f"torch.take_along_dim(): input and indices should have the same number of dimensions, but got {x.rank} dimensions "
            f"for input, and {indices.rank} dimensions for indices"
        )
    shape = shapes.broadcast_shapes(_at(x.shape, at, 1), _at(indices.shape, at, 1))
    return rules.fresh(_at(shape, at, indices.shape[at]), x.dtype, x.device)


def _take_along(x: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        return ops.gather(ops.reshape(x, (-1,)), 0, ops.reshape(indices, (-1,)))
    at = shapes.normalize_dim(dim, len(x.shape))
    shape = shapes.broadcast_shapes(_at(tuple(x.shape), at, 1), _at(tuple(indices.shape), at, 1))
    wide, wide_index = ops.expand(x, _at(shape, at, x.shape[at])), ops.expand(indices, _at(shape, at, indices.shape[at]))
    return ops.gather(wide, at, wide_index)


declare(
    "embedding(Tensor weight, Tensor indices) -> Tensor",
    _embedding_meta,
    Indexed(_embedding),
    lambda w, i: F.embedding(i, w),
    (),
    lambda: [
        *(call(t(7, 4, dtype=d), ix(7, 2, 3)) for d in FLOATS),
        call(t(7, 4), ix(7, 5, dtype="int32")),
        call(t(7, 4), ix(7)),
        call(t(4, 7, layout="transposed"), ix(4, 3)),
        call(t(7, 4), ix(7, 0)),
        call(t(7, 4), t(3)),
    ],
)
declare(
    "gather(Tensor self, int dim, Tensor index) -> Tensor",
    _gather_meta,
    Indexed(_gather),
    torch.gather,
    spelled("gather"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1, ix(5, 4, 2)) for d in ANY),
        call(t(4, 5), 0, ix(4, 2, 5)),
        call(t(4, 5), -1, ix(5, 3, 7)),
        call(t(4, 6, layout="transposed"), 0, ix(4, 4, 6)),
        call(t(), 0, ix(1)),
        call(t(3), 0, ix(3)),
        call(t(4, 5), 1, ix(5, 0, 2)),
        call(t(4, 5), 1, ix(5, 9, 2)),
        call(t(4, 5), 1, ix(5, 4)),
        call(t(4, 5), 1, t(4, 5)),
    ],
)
declare(
    "index_select(Tensor self, int dim, Tensor index) -> Tensor",
    _index_select_meta,
    Indexed(_index_select),
    torch.index_select,
    spelled("index_select"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1, ix(5, 3)) for d in ANY),
        call(t(4, 5, 3), 0, ix(4, 6)),
        call(t(4, 6, layout="transposed"), -1, ix(6, 2)),
        call(t(4, 5), 0, ix(4)),
        call(t(4, 5), 0, ix(4, 2, dtype="int32")),
        call(t(4, 5), 0, ix(4, 2, 2)),
    ],
)
declare(
    "take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor",
    _take_along_meta,
    Decompose(_take_along),
    torch.take_along_dim,
    spelled("take_along_dim"),
    lambda: [
        call(t(4, 5), ix(5, 4, 2), 1),
        call(t(4, 5), ix(5, 1, 2), 1),
        call(t(1, 5), ix(5, 4, 2), -1),
        call(t(4, 5), ix(20, 3)),
    ],
)


# -------------------------------------------------------------------------------------------------- advanced indexing


def _index_meta(x: TensorMeta, indices: Sequence[TensorMeta | None]) -> TensorMeta:
    if len(indices) > x.rank:
        raise IndexError(f"too many indices for tensor of dimension {x.rank}")
    given = [i for i in indices if i is not None]
    for index in given:
        if index.dtype not in (*rules.INTEGERS,) or index.dtype == torch.uint8:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    shape = shapes.broadcast_shapes(*(i.shape for i in given))
    return rules.fresh(_indexed_shape(x, indices, shape), x.dtype, x.device)


def _indexed_shape(x: TensorMeta, indices: Sequence[Any], shape: Coords) -> Coords:
    before, _, after = _index_places(x.rank, indices)
    return (*(x.shape[d] for d in before), *shape, *(x.shape[d] for d in after))


def _index_places(rank: int, indices: Sequence[Any]) -> tuple[list[int], list[int], list[int]]:
    """Dims that come before, in and after the indexed block: adjacent indices stay in place, others move to the front."""
    indexed = [d for d, i in enumerate(indices) if i is not None]
    rest = [d for d in range(rank) if d not in indexed]
    adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    before = [d for d in rest if d < indexed[0]] if adjacent else []
    return before, indexed, [d for d in rest if d not in before]


def _index(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, indices: Sequence[Operand | None]) -> Value:
    before, indexed, after = _index_places(x.meta.rank, indices)
    block = coords[len(before) : len(coords) - len(after)]
    place: dict[int, Dim] = dict(zip(before, coords[: len(before)], strict=True))
    place |= dict(zip(after, coords[len(coords) - len(after) :], strict=True))
    for d in indexed:
        index = indices[d]
        assert index is not None
        lead = len(block) - index.meta.rank
        at = tuple(0 if rules.is_one(s) else block[lead + k] for k, s in enumerate(index.meta.shape))
        place[d] = b.as_index(wrapped(b, b.load(index, at), x.meta.shape[d]), x.meta.shape[d])
    return b.load(x, tuple(place[d] for d in range(x.meta.rank)))


def wrapped(b: Builder, index: Value, size: Dim) -> Value:
    """A negative index counts from the end."""
    wide = b.cast(index, torch.int64)
    return b.where(wide < 0, wide + b.const(size, torch.int64), wide)


def _eager_index(x: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
    return x[tuple(slice(None) if i is None else i for i in indices)]


declare(
    "index(Tensor self, Tensor?[] indices) -> Tensor",
    _index_meta,
    Indexed(_index),
    _eager_index,
    (),
    lambda: [
        call(t(4, 5), (ix(4, 3),)),
        call(t(4, 5), (None, ix(5, 2, 3))),
        call(t(4, 5, 6), (ix(4, 2), None, ix(6, 2))),
        call(t(4, 5, 6), (None, ix(5, 3, 1), ix(6, 2))),
        call(t(4, 5), (ix(4, 2), ix(5, 2))),
        call(t(4, 5), (t(3, dtype="int64", fill="index:-4"),)),
        call(t(4, 5), (t(3),)),
    ],
    doc="Integer tensors as indices; boolean masks stay torch's (their result's size depends on data).",
)


# ------------------------------------------------------------------------------------------------------- fill and copy


def _fill_meta(x: TensorMeta, value: Any) -> TensorMeta:
    if isinstance(value, TensorMeta) and value.shape:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.rank} dimensions.")
    return TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)


def _fill(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, value: Any) -> Value:
    if isinstance(value, Operand):
        return b.cast(b.load(value, ()), meta_out.dtype)
    return constant(b, value, meta_out.dtype)


def _copy_meta(x: TensorMeta, src: TensorMeta) -> TensorMeta:
    rules.shapes.broadcast_shapes(x.shape, src.shape)
    return TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)


def _copy(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, src: Operand) -> Value:
    lead = meta_out.rank - src.meta.rank
    at = tuple(0 if rules.is_one(s) else coords[lead + d] for d, s in enumerate(src.meta.shape))
    return b.cast(b.load(src, at), meta_out.dtype)


declare(
    "fill(Tensor self, Tensor value) -> Tensor",
    _fill_meta,
    Indexed(_fill),
    lambda x, value: torch.fill(x, value),
    spelled("fill", "t"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1) for d in ANY),
        call(t(3), t()),
        call(t(4, 6, layout="transposed"), 2.5),
        call(t(3, dtype="int32"), 2),
    ],
)
declare(
    "copy(Tensor self, Tensor src) -> Tensor",
    _copy_meta,
    Indexed(_copy),
    lambda x, src: torch.clone(x).copy_(src),
    (),
    lambda: [
        call(t(4, 5), t(4, 5, dtype="float16")),
        call(t(4, 5), t(5)),
        call(t(4, 6, layout="transposed"), t(4, 6)),
        call(t(3, dtype="int32"), t(3)),
    ],
    doc="``src`` in the shape, dtype and layout of ``self``: what copy_ writes.",
)


# --------------------------------------------------------------------------------------------------------- triangles


def _triangle_meta(name: str) -> Any:
    def meta(x: TensorMeta, diagonal: int = 0) -> TensorMeta:
        if x.rank < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        return rules.fresh(x.shape, x.dtype, x.device)

    return meta


def _triangle(lower: bool) -> Any:
    def formula(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, diagonal: int = 0) -> Value:
        row, col = coords[-2], coords[-1]
        inside = row + diagonal - col if lower else col - row - diagonal
        return b.load(x, coords, (inside,), 0)

    return formula


for _name in ("tril", "triu"):
    declare(
        f"{_name}(Tensor self, int diagonal=0) -> Tensor",
        _triangle_meta(_name),
        Indexed(_triangle(_name == "tril")),
        getattr(torch, _name),
        spelled(_name),
        lambda: [
            *(call(t(4, 5, dtype=d), k) for d in ANY for k in (0, 1, -1)),
            call(t(3, 4, 4)),
            call(t(4, 6, layout="transposed"), 2),
            call(t(3, 4, 5), -9),
            call(t(4)),
            call(t(0, 3)),
            call(t(4, 6, layout="expanded")),
        ],
    )


# ------------------------------------------------------------------------------------------------------------ cat, stack


def _cat_dim(tensors: Sequence[TensorMeta], dim: int) -> int:
    return shapes.normalize_dim(dim, max(x.rank for x in tensors))


def _skipped(x: TensorMeta) -> bool:
    """ATen's legacy rule: a 1-d empty tensor joins anything."""
    return x.rank == 1 and rules.is_zero(x.shape[0])


def _cat_meta(tensors: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    if not tensors:
        raise ValueError("expected a non-empty list of Tensors")
    for i, x in enumerate(tensors):
        if not x.rank:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    dtype = rules.result_type(tensors)
    kept = [(i, x) for i, x in enumerate(tensors) if not _skipped(x)]
    device = rules.common_device(list(tensors))
    if not kept:
        return rules.fresh((0,), dtype, device)
    first = kept[0][1]
    at = shapes.normalize_dim(dim, first.rank)
    total: Dim = 0
    for i, x in kept:
        _check_cat(first, x, at, i)
        total = total + x.shape[at]
    shape = _at(first.shape, at, total)
    return TensorMeta(shape, _cat_strides([x for _, x in kept], shape), dtype, device)


def _check_cat(first: TensorMeta, x: TensorMeta, at: int, position: int) -> None:
    if x.rank != first.rank:
        raise RuntimeError(f"Tensors must have same number of dimensions: got {first.rank} and {x.rank}")
    for d in range(x.rank):
        if d != at and not shapes.same(first.shape[d], x.shape[d]):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {at}. Expected size {first.shape[d]} but got "
                f"size {x.shape[d]} for tensor number {position} in the list."
            )


def _cat_strides(tensors: Sequence[TensorMeta], shape: Coords) -> Coords:
    """Channels-last when all are (ATen's ``cat_compute_output_memory_format``), else row-major."""
    rank = len(shape)
    if rank in rules.CHANNELS_LAST and all(rules.suggests_channels_last(x) for x in tensors):
        return rules.channels_last_strides(shape)
    return rules.dense_strides(shape)


def _cat(b: Builder, coords: Coords, meta_out: TensorMeta, tensors: Sequence[Operand], dim: int = 0) -> Value:
    """Each input is read where it lies, and the pieces are chosen by position."""
    kept = [x for x in tensors if not _skipped(x.meta)]
    at = shapes.normalize_dim(dim, meta_out.rank)
    compute = rules.opmath(meta_out.dtype)
    pieces = [(x, x.meta.shape[at]) for x in kept if not rules.is_zero(x.meta.shape[at])]
    if len(pieces) == 1:
        return b.load(pieces[0][0], coords)
    value: Value | None = None
    start: Dim = 0
    for x, length in pieces:
        here = coords[at] - start
        mask = (*((here,) if value is not None else ()), *((length - 1 - here,) if x is not pieces[-1][0] else ()))
        piece = b.cast(b.cast(b.load(x, _at(coords, at, here), mask, 0), meta_out.dtype), compute)
        value = piece if value is None else b.where(b.index(here) < 0, value, piece)
        start = start + length
    assert value is not None
    return value


def _stack_meta(tensors: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    at = shapes.normalize_dim(dim, tensors[0].rank + 1)
    for i, x in enumerate(tensors):
        if len(x.shape) != len(tensors[0].shape) or not all(map(shapes.same, x.shape, tensors[0].shape)):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and {list(x.shape)} at "
                f"entry {i}"
            )
    widened = [TensorMeta((*x.shape[:at], 1, *x.shape[at:]), _unsqueezed(x, at), x.dtype, x.device) for x in tensors]
    found = _cat_meta(widened, at)
    return found if rules.is_channels_last(found) else rules.fresh(found.shape, found.dtype, found.device)


def _unsqueezed(x: TensorMeta, at: int) -> Coords:
    stride = x.shape[at] * x.strides[at] if at < x.rank else 1
    return (*x.strides[:at], stride, *x.strides[at:])


def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    at = shapes.normalize_dim(dim, len(tensors[0].shape) + 1)
    return ops.cat(tuple(ops.unsqueeze(x, at) for x in tensors), at)


declare(
    "cat(Tensor[] tensors, int dim=0) -> Tensor",
    _cat_meta,
    Indexed(_cat),
    lambda tensors, dim=0: torch.cat(tensors, dim),
    (*spelled("cat", "t"), *spelled("concat", "t"), *spelled("concatenate", "t")),
    lambda: [
        *(call((t(2, 3, dtype=d), t(4, 3, dtype=d))) for d in ANY),
        call((t(2, 3), t(2, 1), t(2, 4)), 1),
        call((t(2, 3), t(2, 3)), -1),
        call((t(2, 3, dtype="float16"), t(2, 3))),
        call((t(2, dtype="int32"), t(3))),
        call((t(0), t(2, 3))),
        call((t(0, 3), t(2, 3))),
        call((t(4, 6, layout="transposed"), t(4, 6, layout="strided"))),
        call((t(2, 3),)),
        call((t(2, 3), t(2, 4))),
        call((t(2, 3), t(2))),
        call((t(2, 3, 4, 5, layout="channels_last"), t(2, 3, 4, 5, layout="channels_last")), 1),
        call((t(), t())),
    ],
)
declare(
    "stack(Tensor[] tensors, int dim=0) -> Tensor",
    _stack_meta,
    Decompose(_stack),
    lambda tensors, dim=0: torch.stack(tensors, dim),
    spelled("stack", "t"),
    lambda: [
        *(call((t(2, 3, dtype=d), t(2, 3, dtype=d)), 1) for d in ANY),
        call((t(2, 3), t(2, 3))),
        call((t(2, 3), t(2, 3)), -1),
        call((t(), t())),
        call((t(2, 3), t(2, 4))),
        call((t(4, 6, layout="transposed"), t(4, 6))),
    ],
)


# -------------------------------------------------------------------------------------------------------------------- pad


def _pad_meta(x: TensorMeta, pad: Sequence[Dim], mode: str = "constant", value: float | None = None) -> TensorMeta:
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    n = len(pad) // 2
    if n > x.rank:
        raise RuntimeError(
            f"Padding length should be less than or equal to two times the input dimension but got padding length {len(pad)} and "
            f"input of dimension {x.rank}"
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if mode != "constant" and not (x.rank - n in (1, 2) and 1 <= n <= 3):
        raise NotImplementedError("Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now")
    shape = list(x.shape)
    for k in range(n):
        d = x.rank - 1 - k
        before, after = pad[2 * k], pad[2 * k + 1]
        _check_padding(x, d, before, after, mode)
        shape[d] = shape[d] + before + after
        if isinstance(shape[d], int) and shape[d] < 0:  # type: ignore[operator]
            if all(isinstance(p, int) and p <= 0 for p in pad):
                raise RuntimeError("narrow(): length must be non-negative.")
            raise RuntimeError(
                f"The input size {x.shape[d]}, plus negative padding {before} and {after} resulted in a negative output size, "
                f"which is invalid. Check dimension {d} of your input."
            )
    return TensorMeta(tuple(shape), _pad_strides(x, tuple(shape), mode), x.dtype, x.device)


def _check_padding(x: TensorMeta, d: int, before: Dim, after: Dim, mode: str) -> None:
    size = x.shape[d]
    if mode == "reflect" and not (shapes.at_least(size - 1, before) and shapes.at_least(size - 1, after)):
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {d} of input {list(x.shape)}"
        )
    if mode == "circular" and not (shapes.at_least(size, before) and shapes.at_least(size, after)):
        raise RuntimeError("Padding value causes wrapping around more than once.")


def _pad_strides(x: TensorMeta, shape: Coords, mode: str) -> Coords:
    if rules.suggests_channels_last(x):
        return rules.channels_last_strides(shape)
    return rules.dense_strides(shape)


def _pad(
    b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, pad: Sequence[Dim], mode: str = "constant", value: Any = None
) -> Value:
    rank = x.meta.rank
    places, mask = list(coords), []
    for k in range(len(pad) // 2):
        d = rank - 1 - k
        size = x.meta.shape[d]
        place = coords[d] - pad[2 * k]
        if mode == "constant":
            mask += [place] if not rules.is_zero(pad[2 * k]) else []
            mask += [size - 1 - place] if not rules.is_zero(pad[2 * k + 1]) else []
        elif mode == "replicate":
            place = ex.minimum(ex.maximum(place, 0), size - 1)
        elif mode == "circular":
            place = ex.mod(place + size, size)
        else:  # reflect: |p| from the left, then 2(n-1) - p from the right
            place = ex.maximum(place, -place)
            place = ex.minimum(place, 2 * (size - 1) - place)
        places[d] = place
    return b.load(x, tuple(places), tuple(mask), 0 if value is None else value)


def _eager_pad(x: torch.Tensor, pad: Any, mode: str = "constant", value: Any = None) -> torch.Tensor:
    return F.pad(x, tuple(pad), mode, value)


def _pad_calls() -> list[Sample]:
    return [
        *(call(t(4, 5, dtype=d), (1, 2)) for d in ANY),
        call(t(4, 5), (1, 2, 0, 3), value=1.5),
        call(t(4, 5), (-1, 2)),
        call(t(4, 5), (-1, -1, 1, 0)),
        call(t(2, 3, 4, 5, layout="channels_last"), (1, 1, 2, 2)),
        call(t(4, 6, layout="transposed"), (1, 1)),
        call(t(3), (0, 0)),
        call(t(3, 0), (1, 1)),
        *(call(t(2, 3, 4, 5), (1, 2, 3, 1), mode) for mode in ("reflect", "replicate", "circular")),
        *(call(t(2, 3, 4), (1, 2), mode) for mode in ("reflect", "replicate", "circular")),
        call(t(3), (1,)),
        call(t(3), (1, 1, 1, 1)),
        call(t(3), (-2, -2)),
    ]


declare(
    "pad(Tensor self, SymInt[] pad, str mode='constant', float? value=None) -> Tensor",
    _pad_meta,
    Indexed(_pad),
    _eager_pad,
    ("torch.nn.functional.pad",),
    _pad_calls,
)


# -------------------------------------------------------------------------------------------------- flip, roll, repeat


def _flip_meta(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    if dims:
        shapes.normalize_dims(dims, x.rank)
    return TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)


def _flip(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, dims: Sequence[int]) -> Value:
    turned = shapes.normalize_dims(dims, x.meta.rank) if dims else ()
    return b.load(x, tuple(x.meta.shape[d] - 1 - c if d in turned else c for d, c in enumerate(coords)))


def _roll_meta(x: TensorMeta, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> TensorMeta:
    if not shifts:
        raise RuntimeError("`shifts` required")
    if dims and len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    if not dims and len(shifts) != 1:
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:0")
    return rules.fresh(x.shape, x.dtype, x.device)


def _roll(x: Any, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return ops.reshape(ops.roll_dim(ops.reshape(x, (-1,)), shifts[0], 0), tuple(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        x = ops.roll_dim(x, shift, dim)
    return x


def _roll_dim(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, shift: Dim, dim: int) -> Value:
    if not x.meta.rank:
        return b.load(x, ())
    at = shapes.normalize_dim(dim, x.meta.rank)
    size = x.meta.shape[at]
    return b.load(x, _at(coords, at, ex.mod(coords[at] + ex.mod(-shift, size), size)))


def _repeat_meta(x: TensorMeta, repeats: Sequence[Dim]) -> TensorMeta:
    lead = len(repeats) - x.rank
    if lead < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    for r in repeats:
        if isinstance(r, int) and r < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {r}: {list(repeats)}")
    grown = (1,) * lead + x.shape
    return rules.fresh(tuple(s * r for s, r in zip(grown, repeats, strict=True)), x.dtype, x.device)


def _repeat(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, repeats: Sequence[Dim]) -> Value:
    lead = meta_out.rank - x.meta.rank
    return b.load(x, tuple(ex.mod(c, s) for c, s in zip(coords[lead:], x.meta.shape, strict=True)))


def _repeat_interleave_meta(x: TensorMeta, repeats: Dim, dim: int | None = None) -> TensorMeta:
    if not shapes.at_least(repeats, 0):
        raise RuntimeError("repeats can not be negative")
    if dim is None:
        return rules.fresh((x.numel * repeats,), x.dtype, x.device)
    at = shapes.normalize_dim(dim, x.rank)
    return rules.fresh(_at(x.shape if x.rank else (1,), at, (x.shape[at] if x.rank else 1) * repeats), x.dtype, x.device)


def _repeat_interleave(x: Any, repeats: Dim, dim: int | None = None) -> Any:
    if dim is None or not len(x.shape):
        x, dim = ops.reshape(x, (-1,)), 0
    at = shapes.normalize_dim(dim, len(x.shape))
    shape = tuple(x.shape)
    wide = ops.expand(ops.unsqueeze(x, at + 1), (*shape[: at + 1], repeats, *shape[at + 1 :]))
    return ops.reshape(wide, _at(shape, at, shape[at] * repeats))


declare(
    "flip(Tensor self, int[] dims) -> Tensor",
    _flip_meta,
    Indexed(_flip),
    torch.flip,
    spelled("flip"),
    lambda: [
        *(call(t(4, 5, dtype=d), (1,)) for d in ANY),
        call(t(3, 4, 5), (0, -1)),
        call(t(4, 6, layout="transposed"), (0,)),
        call(t(3), ()),
        call(t(3), (2,)),
        call(t(), ()),
        *(call(t(4, 6, layout=lay), (1,)) for lay in LAYOUTS),
    ],
)
declare(
    "roll_dim(Tensor self, SymInt shift, int dim) -> Tensor",
    lambda x, shift, dim: rules.fresh(x.shape, x.dtype, x.device),
    Indexed(_roll_dim),
    lambda x, shift, dim: torch.roll(x, shift, dim),
    (),
    lambda: [call(t(4, 5), 2, 1), call(t(4, 5), -7, 0)],
    doc="roll along one dim.",
)
declare(
    "roll(Tensor self, SymInt[] shifts, int[] dims=[]) -> Tensor",
    _roll_meta,
    Decompose(_roll),
    torch.roll,
    spelled("roll"),
    lambda: [
        *(call(t(4, 5, dtype=d), (1,), (1,)) for d in ANY),
        call(t(4, 5), (1, -2), (0, 1)),
        call(t(4, 5), (3,)),
        call(t(4, 6, layout="transposed"), (2,), (0,)),
        call(t(4, 5), (1, 2), (0,)),
    ],
)
declare(
    "repeat(Tensor self, SymInt[] repeats) -> Tensor",
    _repeat_meta,
    Indexed(_repeat),
    lambda x, r: x.repeat(r),
    spelled("repeat", "m"),
    lambda: [
        *(call(t(2, 3, dtype=d), (2, 1)) for d in ANY),
        call(t(3), (2, 2)),
        call(t(), (3,)),
        call(t(2, 3), (0, 1)),
        call(t(2, 3), (2,)),
        call(t(4, 6, layout="transposed"), (1, 2)),
    ],
)
declare(
    "repeat_interleave(Tensor self, SymInt repeats, int? dim=None) -> Tensor",
    _repeat_interleave_meta,
    Decompose(_repeat_interleave),
    lambda x, n, dim=None: torch.repeat_interleave(x, n, dim),
    (),
    lambda: [call(t(2, 3), 2), call(t(2, 3), 2, 1), call(t(2, 3), 3, 0), call(t(2, 3, 4), 2, -2), call(t(3), 1, 0)],
)
