"""Reads through an index, fills and copies, and triangles: ops that place their own reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.creation import constant
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Indexed
from tinycompile.ops.samples import FLOATS, INTS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value

ANY = (*FLOATS, *INTS, "bool")
Coords = tuple[Dim, ...]
_INDEX_DTYPES = (torch.int64, torch.int32)


def ix(n: int, *shape: int, dtype: str = "int64", layout: str = "contiguous") -> Any:
    """A sample index tensor with values in [0, n)."""
    return t(*shape, dtype=dtype, layout=layout, fill=f"index:{n}")


def _require_index(name: str, index: TensorMeta, dtypes: Sequence[torch.dtype]) -> None:
    if index.dtype not in dtypes:
        wanted = "int64" if len(dtypes) == 1 else "int32/int64"
        raise RuntimeError(f"{name}(): Expected dtype {wanted} for index")


# ------------------------------------------------------------------------------------------------- reads through an index


def _embedding_meta(weight: TensorMeta, indices: TensorMeta, padding_idx: int | None = None) -> TensorMeta:
    if weight.rank != 2:
        raise RuntimeError("'weight' must be 2-D")
    rows = weight.shape[0]
    if padding_idx is not None and not (shapes.at_least(padding_idx, -rows) and shapes.at_least(rows - 1, padding_idx)):
        raise RuntimeError("Padding_idx must be within num_embeddings")
    if indices.dtype not in _INDEX_DTYPES:
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"torch.{rules.type_name(indices.dtype)}Tensor instead (while checking arguments for embedding)"
        )
    return rules.fresh((*indices.shape, weight.shape[1]), weight.dtype, rules.common_device([weight, indices]))


def _embedding(
    b: Builder, coords: Coords, meta_out: TensorMeta, weight: Operand, indices: Operand, padding_idx: int | None = None
) -> Value:
    """``padding_idx`` matters to the gradient alone."""
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
    return b.load(x, rules.replaced(coords if coords else (0,), at, place))


def _index_select_meta(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    at = shapes.normalize_dim(dim, x.rank)
    if index.rank > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in _INDEX_DTYPES:
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    if not x.rank:
        return rules.fresh((), x.dtype, x.device)
    return rules.fresh(rules.replaced(x.shape, at, index.numel), x.dtype, x.device)


def _index_select(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, dim: int, index: Operand) -> Value:
    if not x.meta.rank:
        return b.load(x, ())
    at = shapes.normalize_dim(dim, x.meta.rank)
    place = b.as_index(b.load(index, (coords[at],) if index.meta.rank else ()), x.meta.shape[at])
    return b.load(x, rules.replaced(coords, at, place))


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
    shape = shapes.broadcast_shapes(rules.replaced(x.shape, at, 1), rules.replaced(indices.shape, at, 1))
    return rules.fresh(rules.replaced(shape, at, indices.shape[at]), x.dtype, x.device)


def _take_along(x: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        return ops.gather(ops.reshape(x, (-1,)), 0, ops.reshape(indices, (-1,)))
    at = shapes.normalize_dim(dim, len(x.shape))
    if rules.is_zero(x.shape[at]):
        return NotImplemented
    indices = ops.remainder(indices, x.shape[at])  # with a dim, and then only, torch lets indices go round
    shape = shapes.broadcast_shapes(rules.replaced(tuple(x.shape), at, 1), rules.replaced(tuple(indices.shape), at, 1))
    wide, wide_index = (
        ops.expand(x, rules.replaced(shape, at, x.shape[at])),
        ops.expand(indices, rules.replaced(shape, at, indices.shape[at])),
    )
    return ops.gather(wide, at, wide_index)


declare(
    "embedding(Tensor weight, Tensor indices, int? padding_idx=None) -> Tensor",
    _embedding_meta,
    Indexed(_embedding),
    lambda w, i, padding_idx=None: F.embedding(i, w, padding_idx),
    (),
    lambda: [
        *(call(t(7, 4, dtype=d), ix(7, 2, 3)) for d in FLOATS),
        call(t(7, 4), ix(7, 5, dtype="int32")),
        call(t(7, 4), ix(7)),
        call(t(4, 7, layout="transposed"), ix(4, 3)),
        call(t(7, 4), ix(7, 0)),
        call(t(7, 4), ix(7, 5), 3),
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
        call(t(4, 6), t(4, 2, dtype="int64", fill="integers"), 1),
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
    full = indexed_shape(x, indices, shape)
    return TensorMeta(full, _index_strides(full, x, indices, len(shape)), x.dtype, x.device)


def _index_strides(full: Coords, x: TensorMeta, indices: Sequence[TensorMeta | None], block: int) -> Coords:
    """ATen's iterator over the values and the indices, each with stride 0 where it does not vary, lays out what they give."""
    before, indexed, after = index_places(x.rank, indices)
    values = (*(x.strides[d] for d in before), *(0,) * block, *(x.strides[d] for d in after))
    places: list[TensorMeta] = []
    common = full[len(before) : len(before) + block]
    shape = (1,) * len(before) + common + (1,) * len(after)
    for index in (i for d in indexed if (i := indices[d]) is not None):
        steps = shapes.view_strides(common, shapes.expand_strides(index.shape, index.strides, common), shape)
        assert steps is not None  # dims of size 1 can be added anywhere
        places.append(TensorMeta(shape, steps, index.dtype, index.device))
    if x.device.type == "cuda" and any(
        p.strides != places[0].strides for p in places
    ):  # its kernel takes indices of one layout
        places = [p if rules.is_row_major(p) else replace(p, strides=rules.dense_strides(shape)) for p in places]
    return rules.iterator_strides(full, [TensorMeta(full, values, x.dtype, x.device), *places], False)


def indexed_shape(x: Any, indices: Sequence[Any], shape: Coords) -> Coords:
    """The shape of ``x[indices]``, whose index tensors broadcast to ``shape``."""
    before, _, after = index_places(len(x.shape), indices)
    return (*(x.shape[d] for d in before), *shape, *(x.shape[d] for d in after))


def index_places(rank: int, indices: Sequence[Any]) -> tuple[list[int], list[int], list[int]]:
    """Dims that come before, in and after the indexed block: adjacent indices stay in place, others move to the front. What a
    0-d index selects is gone before that is looked at, as in Python's indexing."""
    indexed = [d for d, i in enumerate(indices) if i is not None]
    rest = [d for d in range(rank) if d not in indexed]
    wide = [d for d in indexed if _rank(indices[d])] or indexed[:1]
    left = sorted({*rest, *wide})
    adjacent = left.index(wide[-1]) - left.index(wide[0]) == len(wide) - 1
    before = [d for d in rest if d < wide[0]] if adjacent else []
    return before, indexed, [d for d in rest if d not in before]


def _rank(index: Any) -> int:
    return index.meta.rank if isinstance(index, Operand) else len(index.shape)


def _index(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, indices: Sequence[Operand | None]) -> Value:
    return b.load(x, index_place(b, coords, x, indices))


def index_place(b: Builder, coords: Coords, x: Operand, indices: Sequence[Operand | None]) -> Coords:
    """Where in ``x`` the element at ``coords`` of ``x[indices]`` lies."""
    before, indexed, after = index_places(x.meta.rank, indices)
    block = coords[len(before) : len(coords) - len(after)]
    place: dict[int, Dim] = dict(zip(before, coords[: len(before)], strict=True))
    place |= dict(zip(after, coords[len(coords) - len(after) :], strict=True))
    for d in indexed:
        index = indices[d]
        assert index is not None
        lead = len(block) - index.meta.rank
        at = tuple(0 if rules.is_one(s) else block[lead + k] for k, s in enumerate(index.meta.shape))
        place[d] = b.as_index(wrapped(b, b.load(index, at), x.meta.shape[d]), x.meta.shape[d])
    return tuple(place[d] for d in range(x.meta.rank))


def wrapped(b: Builder, index: Value, size: Dim) -> Value:
    """A negative index counts from the end."""
    wide = b.cast(index, torch.int64)
    return b.where(wide < 0, wide + b.const(size, torch.int64), wide)


def _eager_index(x: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
    """As in Python, but for 0-d indices alone: there that gives a view."""
    if all(i is None or i.dim() == 0 for i in indices):
        return torch.ops.aten.index(x, list(indices))
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
        call(t(4, 5, 6), (ix(4), None, ix(6, 2))),
        call(t(4, 5, 6, 3), (None, ix(5), None, ix(3, 2))),
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
    full = rules.shapes.broadcast_shapes(x.shape, src.shape)
    if len(full) != x.rank or not rules.shapes.same_shape(full, x.shape):
        raise RuntimeError(f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(full)}")
    return TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)


def _copy(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, src: Operand) -> Value:
    lead = meta_out.rank - src.meta.rank
    at = tuple(0 if rules.is_one(s) else coords[lead + d] for d, s in enumerate(src.meta.shape))
    return b.cast(b.load(src, at), meta_out.dtype)


declare(
    "fill(Tensor self, Tensor value) -> Tensor",
    _fill_meta,
    Indexed(_fill),
    torch.fill,
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
