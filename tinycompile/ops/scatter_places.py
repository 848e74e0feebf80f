"""Writes at places that index tensors name, out of place: ``scatter``, ``index_add``, ``index_put`` and their relatives.

What of a call is wrong, or left to torch (values of another dtype, products and extremes by ``reduce=``), has no record: see
``spellings_scatters.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import laid_out_as, ops
from tinycompile.ops.creation import constant
from tinycompile.ops.declare import composite, declare, spelled
from tinycompile.ops.indexing import ANY, index_place, index_places, indexed_shape, ix
from tinycompile.ops.record import Scatter
from tinycompile.ops.samples import call, t
from tinycompile.ops.scalar import Builder, Operand, Value

Coords = tuple[Dim, ...]
Placed = tuple[Coords, Value]


def _like_first(x: TensorMeta, *rest: Any) -> TensorMeta:
    return rules.fresh(x.shape, x.dtype, x.device)


def _preserved(x: TensorMeta, *rest: Any) -> TensorMeta:
    return TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)


def _always(*args: Any) -> bool:
    return True


def _never(*args: Any) -> bool:
    return False


# ----------------------------------------------------------------------------------------------- an index for each element


def _index_shape(out: TensorMeta, x: Operand, dim: int, index: Operand, src: Any) -> Coords:
    return index.meta.shape


def _element(b: Builder, coords: Coords, out: TensorMeta, x: Operand, dim: int, index: Operand, src: Any) -> Placed:
    """``out[..., index[i, j, ...], ...] = src[i, j, ...]``. Tensors without dims count as tensors of one element."""
    value = b.load(src, coords[: src.meta.rank]) if isinstance(src, Operand) else constant(b, src, out.dtype)
    if not out.rank:
        return (), value
    at = shapes.normalize_dim(dim, out.rank)
    return rules.replaced(coords or (0,), at, b.as_index(b.load(index, coords), out.shape[at])), value


declare(
    "scatter(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
    _like_first,
    Scatter(_index_shape, _element, _never),
    torch.scatter,
    spelled("scatter"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1, t(4, 1, dtype="int64", fill="index:5"), t(4, 1, dtype=d)) for d in ANY),
        call(t(4, 5), 0, t(1, 5, dtype="int64", fill="index:4"), 2.5),
        call(t(4, 6, layout="transposed"), -1, t(3, 1, dtype="int64", fill="index:6"), t(4, 2)),
        call(t(4), 0, ix(4), t()),
        call(t(4, 5), 1, ix(5, 4, 0), t(4, 5)),
    ],
    doc="Of equal indices any one may win; on a CPU the last does.",
)
declare(
    "scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
    _like_first,
    Scatter(_index_shape, _element, _always),
    torch.scatter_add,
    spelled("scatter_add"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1, ix(5, 4, 3), t(4, 3, dtype=d)) for d in ANY),
        call(t(4, 5), 0, ix(4, 2, 5), t(3, 5)),
        call(t(4), 0, ix(4, 6), t(6)),
        call(t(4, 6, layout="transposed"), 0, ix(4, 9, 6), t(9, 6)),
        call(t(4, 5), 1, ix(5, 4, 0), t(4, 5)),
    ],
    ulp=4.0,
)


def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    return ops.scatter_add(x, dim, index, src) if reduce == "sum" and include_self else NotImplemented


composite(
    "scatter_reduce(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
    _scatter_reduce,
    lambda x, dim, index, src, reduce, include_self=True: torch.scatter_reduce(
        x, dim, index, src, reduce, include_self=include_self
    ),
    spelled("scatter_reduce"),
    lambda: [call(t(4, 5), 1, ix(5, 4, 3), t(4, 3), "sum")],
)


# ------------------------------------------------------------------------------------------------- an index for each slice


def _source_shape(out: TensorMeta, x: Operand, dim: int, index: Operand, source: Operand, *alpha: Any) -> Coords:
    return source.meta.shape


def _slice(
    b: Builder, coords: Coords, out: TensorMeta, x: Operand, dim: int, index: Operand, source: Operand, alpha: Any = 1
) -> Placed:
    value = b.load(source, coords)
    if alpha != 1:
        wide = b.cast(value, rules.opmath(out.dtype))
        value = wide * b.const(alpha, wide.dtype)
    if not out.rank:
        return (), value
    at = shapes.normalize_dim(dim, out.rank)
    row = b.load(index, (coords[at],) if index.meta.rank else ())
    return rules.replaced(coords, at, b.as_index(row, out.shape[at])), value


def _eager_index_add(x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> torch.Tensor:
    return torch.index_add(x, dim, index, source, alpha=alpha)


declare(
    "index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
    _like_first,
    Scatter(_source_shape, _slice, _always),
    _eager_index_add,
    spelled("index_add"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1, ix(5, 7), t(4, 7, dtype=d)) for d in ANY),
        call(t(4, 5), 0, ix(4, 2), t(2, 5), alpha=2.0),
        call(t(4, 5, dtype="int32"), 0, ix(4, 9, dtype="int32"), t(9, 5, dtype="int32"), alpha=3),
        call(t(4, 6, layout="transposed"), -1, ix(6, 2), t(4, 2)),
        call(t(4, 5), 0, ix(4, 0), t(0, 5)),
    ],
    ulp=4.0,
)
declare(
    "index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor",
    _like_first,
    Scatter(_source_shape, _slice, _never),
    torch.index_copy,
    spelled("index_copy"),
    lambda: [
        *(call(t(4, 5, dtype=d), 1, t(1, dtype="int64", fill="index:5"), t(4, 1, dtype=d)) for d in ANY),
        call(t(4, 5), 0, ix(4), t(1, 5)),
        call(t(4, 6, layout="transposed"), -1, ix(6, 1), t(4, 1)),
    ],
    doc="Of equal indices any one may win; on a CPU the last does.",
)


# ------------------------------------------------------------------------------------------------------ advanced indexing


def _index_put_meta(x: TensorMeta, indices: Sequence[Any], values: TensorMeta, accumulate: bool = False) -> TensorMeta:
    if x.dtype != values.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {rules.type_name(x.dtype)} for the destination "
            f"and {rules.type_name(values.dtype)} for the source."
        )
    block = shapes.broadcast_shapes(*(i.shape for i in indices if i is not None))
    whole = indexed_shape(x, indices, block)
    if not shapes.broadcasts_to(values.shape, whole):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape "
            f"{list(whole)}"
        )
    return _preserved(x)


def _put_shape(out: TensorMeta, x: Operand, indices: Sequence[Any], values: Operand, accumulate: bool = False) -> Coords:
    given = [i.meta.shape for i in indices if i is not None]
    return indexed_shape(x.meta, indices, shapes.broadcast_shapes(*given))


def _put(
    b: Builder, coords: Coords, out: TensorMeta, x: Operand, indices: Sequence[Any], values: Operand, accumulate: bool = False
) -> Placed:
    lead = len(coords) - values.meta.rank
    at = tuple(0 if rules.is_one(n) else coords[lead + d] for d, n in enumerate(values.meta.shape))
    return index_place(b, coords, x, indices), b.load(values, at)


def _adds_up(x: Any, indices: Any, values: Any, accumulate: bool = False) -> bool:
    return accumulate


def _eager_index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> torch.Tensor:
    """ATen's, with the indexed dims brought together: to it, a 0-d index is one like others."""
    before, indexed, after = index_places(x.dim(), indices)
    order = (*before, *indexed, *after)
    at = [*(None for _ in before), *(indices[d] for d in indexed)]
    if list(order) == sorted(order):
        return torch.ops.aten.index_put(x, at, values, accumulate)
    made = x.clone()
    torch.ops.aten.index_put_(made.permute(order), at, values, accumulate)
    return made


declare(
    "index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
    _index_put_meta,
    Scatter(_put_shape, _put, _adds_up, in_order=True),
    _eager_index_put,
    (),
    lambda: [
        *(call(t(4, 5, dtype=d), (ix(4, 3),), t(3, 5, dtype=d), True) for d in ANY),
        call(t(4, 5), (None, ix(5, 2, 3)), t(4, 2, 3), True),
        call(t(4, 5), (ix(4, 2), ix(5, 2)), t(2), True),
        call(t(4, 5), (ix(4, 1),), t(5)),
        call(t(4, 5, 6), (ix(4, 2), None, ix(6, 2)), t(2, 5), True),
        call(t(4, 5, 6), (ix(4), None, ix(6, 2)), t(5, 2), True),
    ],
    ulp=4.0,
    doc="Writes (or adds) ``values`` at integer indices; of equal indices without ``accumulate`` any one may win.",
)


def _flat_put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = ops.index_put(ops.reshape(x, (-1,)), (ops.reshape(index, (-1,)),), ops.reshape(source, (-1,)), accumulate)
    return laid_out_as(ops.reshape(flat, tuple(x.shape)), x)


composite(
    "put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor",
    _flat_put,
    torch.put,
    spelled("put"),
    lambda: [
        call(t(4, 5), ix(20, 3), t(3), True),
        call(t(4, 5), ix(20, 2, 3), t(2, 3), True),
        call(t(4, 5), ix(20, 1), t(1)),
        call(t(4, 5), t(3, dtype="int64", fill="index:-4"), t(3), True),
    ],
)


# -------------------------------------------------------------------------------------------------------------- embedding


def _embedding_backward_meta(grad: TensorMeta, indices: TensorMeta, rows: Dim, padding_idx: int | None = None) -> TensorMeta:
    return rules.fresh((rows, grad.shape[-1]), grad.dtype, grad.device)


def _gradient_shape(out: TensorMeta, grad: Operand, indices: Operand, rows: Dim, padding_idx: int | None = None) -> Coords:
    return grad.meta.shape


def _row(
    b: Builder, coords: Coords, out: TensorMeta, grad: Operand, indices: Operand, rows: Dim, padding_idx: int | None = None
) -> Placed:
    row, value = b.load(indices, coords[:-1]), b.load(grad, coords)
    if padding_idx is not None:
        wide = b.cast(value, rules.opmath(out.dtype))
        value = b.where(row.eq(padding_idx), 0, wide)
    return (b.as_index(row, rows), coords[-1]), value


def _eager_embedding_backward(grad: torch.Tensor, indices: torch.Tensor, rows: int, padding_idx: Any = None) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(grad, indices, rows, -1 if padding_idx is None else padding_idx, False)


declare(
    "embedding_dense_backward(Tensor grad, Tensor indices, SymInt rows, int? padding_idx=None) -> Tensor",
    _embedding_backward_meta,
    Scatter(_gradient_shape, _row, _always, from_zeros=True, in_order=True),
    _eager_embedding_backward,
    (),
    lambda: [
        *(call(t(2, 3, 4, dtype=d), ix(7, 2, 3), 7) for d in ("float32", "float64", "bfloat16", "float16")),
        call(t(5, 4), ix(7, 5), 7, 2),
        call(t(4), ix(7), 7),
    ],
    ulp=4.0,
    doc="The sum of the gradients of each row that an embedding read; the padding row gets none.",
)
