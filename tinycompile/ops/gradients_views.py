"""Derivatives of views, and of ops that move elements: joins, pads, flips, repeats, triangles, reads by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.gradients import Gradients, positions, sum_to, vjp, zeros
from tinycompile.ops.permutations import moved
from tinycompile.ops.view_parts import slice_bounds

Args = Sequence[Any]


def _only(g: Any, args: Args) -> Gradients:
    """The gradient of the first argument; the others have none."""
    return (g, *(None for _ in args[1:]))


# ----------------------------------------------------------------------------------------------------- shapes and orders


def _reshaped(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.reshape(grads[0], tuple(args[0].shape)), args)


for _name in ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "row_3d"):
    vjp(_name)(_reshaped)


def _unpermuted(g: Any, order: Sequence[int]) -> Any:
    return ops.permute(g, tuple(order.index(d) for d in range(len(order))))


@vjp("permute")
def _permute(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    rank = len(args[0].shape)
    return _only(_unpermuted(grads[0], [d % rank for d in args[1]]), args)


@vjp("movedim")
def _movedim(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(_unpermuted(grads[0], moved(len(args[0].shape), args[1], args[2])), args)


@vjp("transpose")
def _transpose(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.transpose(grads[0], args[1], args[2]), args)


@vjp("t")
def _t(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.t(grads[0]), args)


@vjp("with_data")
def _with_data(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return grads[0], None


@vjp("expand")
def _expand(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(sum_to(grads[0], args[0]), args)


# ----------------------------------------------------------------------------------------------------------------- parts


def _at(dim: int, x: Any) -> int:
    return int(rules.shapes.normalize_dim(dim, len(x.shape)))


def _wrapped(index: Any, size: Any) -> Any:
    return index if rules.shapes.at_least(index, 0) else index + size


@vjp("slice")
def _slice(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, start, end, step = args
    at = _at(dim, x)
    first, _ = slice_bounds(x.shape[at], start, end, step)
    return _only(ops.slice_backward(grads[0], tuple(x.shape), at, first, step), args)


@vjp("narrow")
def _narrow(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, start, _ = args
    at = _at(dim, x)
    return _only(ops.slice_backward(grads[0], tuple(x.shape), at, _wrapped(start, x.shape[at])), args)


@vjp("select")
def _select(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, index = args
    at = _at(dim, x)
    return _only(ops.slice_backward(ops.unsqueeze(grads[0], at), tuple(x.shape), at, _wrapped(index, x.shape[at])), args)


@vjp("slice_backward")
def _slice_backward(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    grad, _, dim, start, step = args
    end = start + (grad.shape[dim] - 1) * step + 1
    part = ops.slice(grads[0], dim, start, start if rules.is_zero(grad.shape[dim]) else end, step)
    return _only(part, args)


@vjp("diagonal")
def _diagonal(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, offset, dim1, dim2 = args
    return _only(ops.diagonal_backward(grads[0], tuple(x.shape), offset, dim1, dim2), args)


@vjp("diagonal_backward")
def _diagonal_backward(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.diagonal(grads[0], *args[2:]), args)


def _joined(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Pieces side by side: undefined gradients are zeros."""
    _x, dim = args[0], args[2] if len(args) > 2 else args[1]
    pieces = tuple(zeros(r) if g is None else g for g, r in zip(grads, results, strict=True))
    return _only(ops.cat(pieces, dim), args)


for _name in ("split", "split_with_sizes", "chunk"):
    vjp(_name)(_joined)


@vjp("unbind")
def _unbind(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim = args
    pieces = tuple(zeros(r) if g is None else g for g, r in zip(grads, results, strict=True))
    return (ops.stack(pieces, dim) if pieces else zeros(x)), None


# ----------------------------------------------------------------------------------------------------------------- joins


@vjp("cat")
def _cat(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """A 1-d empty tensor joins anything (ATen's legacy rule) and takes no part."""
    tensors, dim = args
    (g,), found, start = grads, [], 0
    for x, need in zip(tensors, needs[0], strict=True):
        if len(x.shape) == 1 and rules.is_zero(x.shape[0]):
            found.append(zeros(x) if need else None)
            continue
        length = x.shape[dim]
        found.append(cast(ops.narrow(g, dim, start, length), x.dtype) if need else None)
        start = start + length
    return tuple(found), None


@vjp("pad")
def _pad(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, pad, mode, _ = args
    g = grads[0]
    if mode == "constant":
        return _only(ops.pad(g, tuple(-p for p in pad)), args)
    for k in range(len(pad) // 2):
        at = len(x.shape) - 1 - k
        size = x.shape[at]
        places = ops.sub(positions(g.shape[at], 1, 0, g.device), pad[2 * k])
        source = _padding_source(places, size, mode, ex.maximum(-pad[2 * k], 0), ex.maximum(-pad[2 * k + 1], 0))
        empty = ops.full(rules.replaced(tuple(g.shape), at, size), 0.0, dtype=g.dtype, device=g.device)
        g = ops.index_add(empty, at, source, g)
    return _only(g, args)


def _padding_source(place: Any, size: Any, mode: str, cut: Dim, cut_after: Dim) -> Any:
    """Where in a dim of ``size`` each padded position reads; ``place``: positions counted from the first unpadded one.
    ``cut`` and ``cut_after``: how much negative padding removes."""
    if mode == "replicate":
        return ops.clamp(place, 0, size - 1)
    if mode == "circular":
        return ops.add(ops.remainder(ops.sub(place, cut), size - cut - cut_after), cut)
    place = ops.abs(place)
    return ops.minimum(place, ops.sub(2 * (size - 1), place))


# ------------------------------------------------------------------------------------------------------- moved elements


@vjp("flip")
def _flip(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.flip(grads[0], args[1]), args)


@vjp("roll_dim")
def _roll_dim(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.roll_dim(grads[0], -args[1], args[2]), args)


@vjp("repeat")
def _repeat(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, repeats = args
    lead = len(repeats) - len(x.shape)
    if any(rules.is_zero(r) for r in repeats):
        return _only(zeros(x), args)
    grown = (*([1] * lead), *x.shape)
    apart = ops.reshape(grads[0], tuple(n for pair in zip(repeats, grown, strict=True) for n in pair))
    total = ops.sum(apart, tuple(range(0, 2 * len(repeats), 2))) if repeats else apart
    return _only(ops.reshape(total, tuple(x.shape)), args)


@vjp("tril")
def _tril(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.tril(grads[0], args[1]), args)


@vjp("triu")
def _triu(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _only(ops.triu(grads[0], args[1]), args)


# -------------------------------------------------------------------------------------------------------- reads by index


@vjp("embedding", "indices")
def _embedding(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    weight, indices, padding_idx = args
    if padding_idx is not None and padding_idx < 0:
        padding_idx = weight.shape[0] + padding_idx
    return ops.embedding_dense_backward(grads[0], indices, weight.shape[0], padding_idx), None, None


@vjp("embedding_dense_backward", "indices")
def _embedding_dense_backward(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    _grad, indices, _, padding_idx = args
    g = ops.embedding(grads[0], indices)
    if padding_idx is not None:
        g = ops.where(ops.unsqueeze(ops.eq(indices, padding_idx), -1), 0.0, g)
    return _only(g, args)


@vjp("gather", "self", "index")
def _gather(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, index = args
    return ops.scatter_add(zeros(x), dim, index, grads[0]), None, None


@vjp("scatter_add", "index?src")
def _scatter_add(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    _x, dim, index, _src = args
    return grads[0], None, None, ops.gather(grads[0], dim, index) if needs[3] else None


FEW_PLACES = 16  # in a window: so many are added one by one, each a strided part of the whole


@vjp("unfold")
def _unfold(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Each element gets the sum of what its places in the windows get."""
    (g,), (x, dimension, size, step) = grads, args
    if not len(x.shape):
        return _only(ops.sum(g, (0,)), args)
    at, whole = dimension % len(x.shape), tuple(x.shape)
    if isinstance(size, int) and 0 < size <= FEW_PLACES:
        total = ops.slice_backward(ops.select(g, -1, 0), whole, at, 0, step)
        for k in range(1, size):
            total = ops.add(total, ops.slice_backward(ops.select(g, -1, k), whole, at, k, step))
        return _only(total, args)
    count = g.shape[at]
    places = ops.add(ops.mul(positions(count, 2, 0, g.device), step), positions(size, 2, 1, g.device))
    flat = ops.reshape(ops.movedim(g, -1, at + 1), (*whole[:at], count * size, *whole[at + 1 :]))
    return _only(ops.index_add(zeros(x), at, ops.reshape(places, (-1,)), flat), args)


@vjp("scatter", "index")
def _scatter(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    _x, dim, index, _src = args
    (g,) = grads
    return ops.scatter(g, dim, index, 0.0) if needs[0] else None, None, None, ops.gather(g, dim, index) if needs[3] else None


@vjp("index_copy", "index", "source?source")
def _index_copy(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    _, dim, index, _ = args
    (g,) = grads
    first = ops.index_fill(g, dim, index, 0.0) if needs[0] else None
    return first, None, None, ops.index_select(g, dim, index) if needs[3] else None


@vjp("index_select", "index")
def _index_select(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, index = args
    if not len(x.shape):
        return ops.reshape(grads[0], ()), None, None
    line = ops.reshape(index, (-1,))
    return ops.index_add(zeros(x), dim, line, grads[0]), None, None


@vjp("index_add", "index?source", "source?source")
def _index_add(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    _, dim, index, _, alpha = args
    part = None
    if needs[3]:
        part = ops.index_select(grads[0], dim, index)
        part = part if isinstance(alpha, (int, float)) and alpha == 1 else ops.mul(part, alpha)
    return grads[0], None, None, part, None


@vjp("index", "indices")
def _index(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, indices = args
    return ops.index_put(zeros(x), tuple(indices), grads[0], True), None


@vjp("index_put", "indices")
def _index_put(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (_x, indices, values, accumulate) = grads, args
    first = None
    if needs[0]:
        nothing = ops.full((), 0.0, dtype=g.dtype, device=g.device)
        first = g if accumulate else ops.index_put(g, tuple(indices), nothing, False)
    return first, None, sum_to(ops.index(g, tuple(indices)), values) if needs[2] else None, None
