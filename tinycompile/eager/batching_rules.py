"""Batching rules of views, indexing, joining and creation ops: what the record does not imply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.eager.backends import meta_of
from tinycompile.eager.batched import active
from tinycompile.eager.batched_random import RANDOMNESS, below, draws, record_below
from tinycompile.eager.batching import RULES, Batch, along_dim, as_it_is, call, pointwise, rank_of, reduction, rule
from tinycompile.ops.calls import cast, ops

for _name in (
    "flip", "roll_dim", "softmax", "log_softmax", "softmax_stats", "transpose", "movedim", "slice",
    "narrow", "split", "split_with_sizes", "chunk", "logcumsumexp", "cummax", "cummin",
):  # fmt: skip
    RULES[_name] = along_dim
for _name in ("select", "diagonal", "unflatten", "unfold", "unbind"):  # one example of 0 dims is refused by the op's own rule
    RULES[_name] = along_dim
for _name in ("tril", "triu", "detach", "alias"):
    RULES[_name] = as_it_is
for _name in ("max_dim", "min_dim", "linalg_vector_norm"):  # the norm's own derivative at zero is none of its parts'
    RULES[_name] = reduction
for _name in ("digamma", "polygamma", "pow_integers"):
    RULES[_name] = pointwise


@rule("ldexp")
def _ldexp(batch: Batch, x: Any, other: Any) -> Any:
    """Not by its parts, whose derivative is another. Floats of one example with 0 dims have no say in the dtype."""
    dtype = batch.op.meta(meta_of(x), meta_of(other)).dtype
    given = [cast(t, dtype) if t.dtype.is_floating_point and not len(t.shape) else t for t in (x, other)]
    return pointwise(batch, *given)


# --- casts and copies --------------------------------------------------------------------------------------------------------


@rule("to", "clone", "contiguous", "to_device", "full_like", "empty_like")
def _copies(batch: Batch, *args: Any) -> Any:
    """Memory formats are of one example; all together are laid out as they come."""
    below, at = list(batch.below(args)), batch.op.schema.positions.get("memory_format")
    if at is not None and below[at] not in (None, torch.preserve_format, torch.contiguous_format):
        below[at] = None if batch.op.schema.args[at].optional else torch.contiguous_format
    return call(batch, *below)


@rule("new_full")
def _new_full(
    batch: Batch, x: Any, size: Sequence[Any], value: Any, dtype: Any = None, device: Any = None, stride: Any = None
) -> Any:
    if stride is not None:
        stride = (shapes.reach(tuple(size), tuple(stride)), *stride)
    return call(batch, batch.below(x), (batch.size, *size), value, dtype, device, stride)


@rule("restride")
def _restride(batch: Batch, x: Any, stride: Any) -> Any:
    value = batch.below(x)
    return ops.restride(value, (shapes.reach(tuple(value.shape[1:]), tuple(stride)), *stride))


@rule("masked_fill")
def _masked_fill(batch: Batch, x: Any, mask: Any, value: Any) -> Any:
    if not hasattr(value, "dtype"):
        rank = rank_of(x, mask)
        return ops.masked_fill(batch.aligned(x, rank), batch.aligned(mask, rank), value)
    rank = rank_of(x, mask, value)
    x_, mask_, value_ = batch.aligned(x, rank), batch.aligned(mask, rank), batch.aligned(cast(value, x.dtype), rank)
    return ops.where(mask_, value_, x_)


@rule("copy", "fill")
def _copy(batch: Batch, x: Any, source: Any) -> Any:
    if batch.has(source):
        return ops.copy(batch.full(x), batch.aligned(source, len(x.shape)))
    return call(batch, batch.full(x), batch.below(source))


# --- views -------------------------------------------------------------------------------------------------------------------


@rule("view", "reshape")
def _view(batch: Batch, x: Any, size: Sequence[Any]) -> Any:
    value = batch.below(x)
    if -1 in size:  # of one example: with an empty batch it could not be told
        known = shapes.numel(tuple(n for n in size if n != -1))
        total = shapes.numel(tuple(x.shape))
        if isinstance(known, int) and known and isinstance(total, int) and total % known == 0:
            size = tuple(total // known if n == -1 else n for n in size)
    return call(batch, value, (value.shape[0], *size))


@rule("expand")
def _expand(batch: Batch, x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    return call(batch, batch.aligned(x, len(size)), (-1, *size), implicit)


@rule("permute")
def _permute(batch: Batch, x: Any, dims: Sequence[int]) -> Any:
    return call(batch, batch.below(x), (0, *(batch.dim(d, len(x.shape)) for d in dims)))


@rule("t")
def _t(batch: Batch, x: Any) -> Any:
    value = batch.below(x)
    if len(x.shape) > 2:
        return NotImplemented
    return ops.transpose(value, 1, 2) if len(x.shape) == 2 else ops.alias(value)


@rule("flatten")
def _flatten(batch: Batch, x: Any, start: int = 0, end: int = -1) -> Any:
    value = batch.below(x)
    return along_dim(batch, x, start, end) if len(x.shape) else ops.unsqueeze(value, 1)


@rule("squeeze")
def _squeeze(batch: Batch, x: Any, dim: Sequence[int] | None = None) -> Any:
    rank, value = len(x.shape), batch.below(x)
    if not rank:
        return ops.alias(value)
    dims = range(rank) if dim is None else [shapes.normalize_dim(d, rank) for d in dim]
    return ops.squeeze(value, tuple(d + 1 for d in dims))


@rule("unsqueeze")
def _unsqueeze(batch: Batch, x: Any, dim: int) -> Any:
    return ops.unsqueeze(batch.below(x), batch.dim(dim, len(x.shape) + 1))


@rule("slice_backward")
def _slice_backward(batch: Batch, grad: Any, size: Sequence[Any], dim: int, start: Any, step: Any = 1) -> Any:
    return call(batch, batch.below(grad), (batch.size, *size), batch.dim(dim, len(size)), start, step)


@rule("diagonal_backward")
def _diagonal_backward(batch: Batch, grad: Any, size: Sequence[Any], offset: int, dim1: int, dim2: int) -> Any:
    rank = len(size)
    return call(batch, batch.below(grad), (batch.size, *size), offset, batch.dim(dim1, rank), batch.dim(dim2, rank))


# --- joining and repeating ---------------------------------------------------------------------------------------------------


@rule("cat")
def _cat(batch: Batch, tensors: Sequence[Any], dim: int = 0) -> Any:
    rank = rank_of(*tensors)
    kept = [t for t in tensors if len(t.shape) == rank or tuple(t.shape) != (0,)]  # torch skips empty 1-d tensors
    if not rank:
        return NotImplemented
    return call(batch, tuple(batch.full(t) for t in kept), batch.dim(dim, rank))


@rule("repeat")
def _repeat(batch: Batch, x: Any, repeats: Sequence[Any]) -> Any:
    return call(batch, batch.aligned(x, len(repeats)), (1, *repeats))


@rule("pad")
def _pad(batch: Batch, x: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    below = batch.below(x)
    if mode == "constant":
        return call(batch, below, pad, mode, value)
    spatial = len(pad) // 2
    if len(x.shape) == spatial + 1:
        return call(batch, below, pad, mode, value)
    if len(x.shape) != spatial + 2:
        return NotImplemented
    return ops.unflatten(call(batch, ops.flatten(below, 0, 1), pad, mode, value), 0, tuple(below.shape[:2]))


# --- reading and writing at indices ------------------------------------------------------------------------------------------


def _rows(batch: Batch, rank: int, like: Any) -> Any:
    """The examples' numbers, with ``rank`` more dims of 1."""
    rows = ops.arange(0, batch.size, 1, dtype=torch.int64, device=like.device)
    return ops.reshape(rows, (batch.size, *([1] * rank)))


@rule("gather", "scatter_add")
def _gather(batch: Batch, x: Any, dim: int, *tensors: Any) -> Any:
    rank = rank_of(x, *tensors)
    values = [batch.full(a) for a in (x, *tensors)]
    values = [ops.unsqueeze(v, 1) if rank_here == 0 else v for v, rank_here in zip(values, _ranks(x, *tensors), strict=True)]
    result = call(batch, values[0], batch.dim(dim, rank), *values[1:])
    wanted = x if batch.op.name == "scatter_add" else tensors[0]
    return ops.squeeze(result, (1,)) if not len(wanted.shape) else result


def _ranks(*tensors: Any) -> list[int]:
    return [len(t.shape) for t in tensors]


@rule("index_select")
def _index_select(batch: Batch, x: Any, dim: int, index: Any) -> Any:
    if not len(x.shape):
        return NotImplemented
    at = batch.dim(dim, len(x.shape))
    if not batch.has(index):
        return call(batch, batch.below(x), at, batch.below(index))
    if not len(index.shape):
        index = index.unsqueeze(0)
    indices = [None] * (at - 1) + [index]
    return _index(batch, x, tuple(indices), through=ops.index)


@rule("index_add")
def _index_add(batch: Batch, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    if batch.has(index) or not len(x.shape) or not len(source.shape):
        return NotImplemented
    return call(batch, batch.full(x), batch.dim(dim, len(x.shape)), batch.below(index), batch.full(source), alpha)


@rule("index")
def _index(batch: Batch, x: Any, indices: Sequence[Any], through: Any = None) -> Any:
    """As torch: index tensors broadcast; where they stand apart, their dims come first in the result. What an index of one
    number selects is gone before that is asked."""
    fn = through or ops.index
    given = [i for i in indices if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for i in given):
        return NotImplemented
    rank = rank_of(*given)
    left = [i for i in indices if i is None or len(i.shape)]
    places = [p for p, i in enumerate(left) if i is not None]
    together = not places or places == list(range(places[0], places[-1] + 1))
    if not any(batch.has(i) for i in given):
        result = fn(batch.below(x), (None, *batch.below(tuple(indices))))
        return result if together else ops.movedim(result, (rank,), (0,))
    aligned = [None if i is None else batch.aligned(i, rank) for i in indices]
    result = fn(batch.full(x), (_rows(batch, rank, x), *aligned))
    if together and places and places[0]:  # the examples' own index stands apart: examples, index dims, the rest
        result = ops.movedim(result, tuple(range(1, rank + 1)), tuple(range(places[0] + 1, places[0] + 1 + rank)))
    return result


@rule("index_put")
def _index_put(batch: Batch, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    given = [i for i in indices if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for i in given) or list(indices[: len(given)]) != given:
        return NotImplemented
    rank = rank_of(*given)
    aligned = [batch.aligned(i, rank) for i in given]
    rest = len(x.shape) - len(given)
    return call(batch, batch.full(x), (_rows(batch, rank, x), *aligned), batch.aligned(values, rank + rest), accumulate)


@rule("embedding")
def _embedding(batch: Batch, weight: Any, indices: Any, padding_idx: int | None = None) -> Any:
    if not batch.has(weight):
        return call(batch, batch.below(weight), batch.below(indices), padding_idx)
    rows = weight.shape[0]
    table = ops.reshape(batch.below(weight), (batch.size * rows, *weight.shape[1:]))
    moved = ops.add(batch.full(indices), ops.mul(_rows(batch, len(indices.shape), weight), rows))
    result = ops.embedding(table, moved)
    if padding_idx is None:
        return result
    is_padding = ops.unsqueeze(ops.eq(batch.full(indices), padding_idx % rows), -1)
    return ops.where(is_padding, ops.detach(result), result)  # no gradient flows into any table's row of padding


@rule("embedding_dense_backward")
def _embedding_backward(batch: Batch, grad: Any, indices: Any, rows: Any, padding_idx: int | None = None) -> Any:
    if padding_idx is not None and padding_idx >= 0:
        return NotImplemented
    moved = ops.add(batch.full(indices), ops.mul(_rows(batch, len(indices.shape), grad), rows))
    result = call(batch, batch.full(grad), moved, batch.size * rows, None)
    return ops.unflatten(result, 0, (batch.size, rows))


# --- random numbers ----------------------------------------------------------------------------------------------------------


@rule("rand_like", "randn_like", "bernoulli", "dropout", "native_dropout")
def _random(batch: Batch, x: Any, *rest: Any) -> Any:
    """``different``: numbers of its own for each example; ``same``: one draw of an example's shape for all."""
    name = batch.op.name
    if not draws(name, (x, *rest)):
        return call(batch, batch.full(x), *rest)
    how = next((level.randomness for level in active.levels if level.number == batch.level), "different")
    if how == "error":
        raise RuntimeError(RANDOMNESS)
    with below(batch.level):
        if how == "different":
            return record_below(name, (batch.full(x), *rest))
        first = ops.select(batch.full(x), 0, 0)
        if name in ("rand_like", "randn_like"):
            return ops.expand(record_below(name, (first, *rest)), (batch.size, *x.shape))
        if name == "bernoulli":
            return cast(ops.lt(record_below("rand_like", (first, None)), batch.full(x)), x.dtype)
        scaled, kept = record_below("native_dropout", (ops.full_like(first, 1.0), *rest))
        result = ops.mul(batch.full(x), scaled)
        return result if name == "dropout" else (result, ops.expand(kept, (batch.size, *x.shape)))
