"""Derivatives of normalisations and of losses. They recompute statistics by the forward's own ops: eager saves memory, and a
compiler that sees both directions finds the common parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.ops import meta_rules as rules
from tinycompile.ops.batch_norm import per_channel, reduced_dims
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.gradients import Gradients, as_it_was, positions, sum_to, vjp
from tinycompile.ops.losses_classes import class_dim

Args = Sequence[Any]


# ------------------------------------------------------------------------------------------------------------- layer, RMS


def _weighted(g: Any, weight: Any) -> Any:
    return g if weight is None else ops.mul(g, widen(weight))


def _centered(g: Any, normal: Any, scale: Any, dims: Sequence[int], with_mean: bool = True) -> Any:
    """The gradient through ``normal = (x - mean) * scale`` where ``scale`` is 1 / deviation: minus its projections."""
    along = ops.mul(normal, ops.mean(ops.mul(g, normal), dims, True))
    rest = ops.sub(ops.sub(g, ops.mean(g, dims, True)), along) if with_mean else ops.sub(g, along)
    return ops.mul(rest, scale)


@vjp("layer_norm", "self", "weight", "bias")
def _layer_norm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, shape, weight, bias, eps = args
    g, dims = widen(grads[0]), tuple(range(-len(shape), 0))
    first = second = None
    if needs[0] or needs[2]:
        wide = widen(x)
        var, mean = ops.var_mean(wide, dims, correction=0, keepdim=True)
        mean, scale = as_it_was(mean), as_it_was(ops.rsqrt(ops.add(var, eps)))
        normal = ops.mul(ops.sub(wide, mean), scale)
        first = cast(_centered(_weighted(g, weight), normal, scale, dims), x.dtype) if needs[0] else None
        second = sum_to(ops.mul(g, normal), weight) if needs[2] else None
    return first, None, second, sum_to(g, bias) if needs[3] else None, None


@vjp("rms_norm", "self", "weight?self")
def _rms_norm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, shape, weight, eps = args
    wide, g = widen(x), widen(grads[0])
    dims = tuple(range(-len(shape), 0))
    mean = ops.mean(ops.square(wide), dims, True)
    scale = as_it_was(ops.rsqrt(ops.add(mean, torch.finfo(wide.dtype).eps if eps is None else eps)))
    normal = ops.mul(wide, scale)
    first = cast(_centered(_weighted(g, weight), normal, scale, dims, False), x.dtype) if needs[0] else None
    normal = as_it_was(normal) if x.device.type == "cpu" else normal  # there torch's is made of several ops
    return first, None, sum_to(ops.mul(g, normal), weight) if needs[2] else None, None


@vjp("group_norm", "self", "weight")
def _group_norm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, groups, weight, bias, eps = args
    size = tuple(x.shape)
    apart = (size[0], groups, size[1] // groups, *size[2:])
    g, grouped = widen(grads[0]), ops.reshape(widen(x), apart)
    dims, rest = tuple(range(2, len(size) + 1)), tuple(d for d in range(len(size)) if d != 1)
    var, mean = ops.var_mean(grouped, dims, correction=0, keepdim=True)
    mean, scale = as_it_was(mean), as_it_was(ops.rsqrt(ops.add(var, eps)))
    normal = ops.mul(ops.sub(grouped, mean), scale)
    first = second = None
    if needs[0]:
        channels = None if weight is None else ops.reshape(weight, (1, -1, *([1] * (len(size) - 2))))
        inner = ops.reshape(_weighted(g, channels), apart)
        first = cast(ops.reshape(_centered(inner, normal, scale, dims), size), x.dtype)
    if needs[2]:
        second = cast(ops.sum(ops.mul(g, ops.reshape(normal, size)), rest), weight.dtype)
    return first, None, second, cast(ops.sum(g, rest), bias.dtype) if needs[3] else None, None


@vjp("batch_norm_training", "self", "weight", "result1", "result2")
def _batch_norm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Also through the statistics: d mean / dx = 1 / n, d var / dx = 2 (x - mean) / n."""
    x, weight, bias, eps = args
    rank, dims = len(x.shape), reduced_dims(len(x.shape))
    wide = widen(x)
    mean, scale = per_channel(results[1], rank), per_channel(ops.rsqrt(ops.add(results[2], eps)), rank)
    apart = ops.sub(wide, mean)
    first: Any = None
    second = third = None
    if grads[0] is not None:
        g, normal = widen(grads[0]), ops.mul(apart, scale)
        if needs[0]:
            along = None if weight is None else per_channel(widen(weight), rank)
            first = _centered(_weighted(g, along), normal, scale, dims)
        second = cast(ops.sum(ops.mul(g, normal), dims), weight.dtype) if needs[1] else None
        third = cast(ops.sum(g, dims), bias.dtype) if needs[2] else None
    if needs[0]:
        count = rules.shapes.numel(tuple(x.shape[d] for d in dims))
        for g, slope in ((grads[1], None), (grads[2], apart)):
            if g is not None:
                part = ops.div(per_channel(g, rank), count)
                part = ops.expand(part, tuple(x.shape)) if slope is None else ops.mul(ops.mul(part, 2.0), slope)
                first = part if first is None else ops.add(first, part)
        first = None if first is None else cast(first, x.dtype)
    return first, second, third, None


# ---------------------------------------------------------------------------------------------------------------- losses


def _share(g: Any, reduction: str, count: Any) -> Any:
    """What one element of the loss gets of the gradient of its reduction."""
    return ops.div(widen(g), count) if reduction == "mean" else widen(g)


@vjp("binary_cross_entropy", "self", "target", "weight")
def _binary_cross_entropy(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """ATen keeps the denominator above 1e-12."""
    x, target, weight, reduction = args
    p, y = widen(x), widen(target)
    g = _weighted(_share(grads[0], reduction, rules.shapes.numel(tuple(x.shape))), weight)
    first = second = None
    if needs[0]:
        slope = ops.div(ops.sub(p, y), ops.clamp_min(ops.mul(ops.sub(1, p), p), 1e-12))
        first = cast(ops.mul(g, slope), x.dtype)
    if needs[1]:
        second = cast(ops.mul(g, ops.sub(ops.log(ops.sub(1, p)), ops.log(p))), target.dtype)
    return first, second, None, None


def _class_grad(g: Any, target: Any, weight: Any, ignore_index: int, reduction: str, at: int) -> Any:
    """The gradient of each row's loss, its class dim as size 1: zero where ignored, and a share of the mean."""
    counts = ops.ne(target, ignore_index)
    if reduction == "mean":
        if weight is None:
            total = ops.to(ops.sum(counts), widen(g).dtype)
        else:
            total = ops.sum(ops.where(counts, _class_weight(weight, target, counts), 0.0))
        g = ops.div(widen(g), cast(as_it_was(total), widen(g).dtype))
    rows = ops.where(counts, widen(g), 0.0)
    return ops.unsqueeze(rows, at)


def _class_weight(weight: Any, target: Any, counts: Any) -> Any:
    """The weight of each row's class."""
    safe = ops.to(ops.where(counts, target, 0), torch.int64)
    return ops.reshape(ops.index_select(widen(weight), 0, ops.reshape(safe, (-1,))), tuple(target.shape))


def _is_class(x: Any, target: Any, at: int) -> Any:
    """Whether an element stands for its row's class."""
    return ops.eq(positions(x.shape[at], len(x.shape), at, x.device), ops.unsqueeze(target, at))


@vjp("nll_loss", "self", "target", "weight")
def _nll_loss(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, target, weight, ignore_index, reduction = args
    at = class_dim(len(x.shape))
    g = _class_grad(grads[0], target, weight, ignore_index, reduction, at)
    if weight is not None:
        g = ops.mul(g, ops.unsqueeze(_class_weight(weight, target, ops.ne(target, ignore_index)), at))
    counts = ops.unsqueeze(ops.ne(target, ignore_index), at)  # no minus zero where a row does not
    return cast(ops.where(ops.logical_and(_is_class(x, target, at), counts), ops.neg(g), 0.0), x.dtype), None, None, None, None


def _over_classes(v: Any, rank: int, at: int) -> Any:
    return ops.reshape(v, tuple(-1 if d == at else 1 for d in range(rank)))


@vjp("cross_entropy", "self", "target", "weight")
def _cross_entropy(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """A row's loss is -sum(q log p) with q its target distribution, so the gradient is (p sum(q) - q)."""
    x, target, weight, ignore_index, reduction, smoothing = args
    x = as_it_was(x)  # torch keeps the logarithms
    at, rank = class_dim(len(x.shape)), len(x.shape)
    wide = widen(x)
    top, total = ops.softmax_stats(wide, at)
    below = ops.sub(wide, top)
    p = ops.div(ops.exp(below), total)
    classes = None if weight is None else _over_classes(widen(weight), rank, at)
    if target.dtype.is_floating_point:
        rows = rules.shapes.numel(tuple(x.shape)) // x.shape[at]
        g = _share(grads[0], reduction, rows)
        g = ops.unsqueeze(g, at) if reduction == "none" else g
        target = as_it_was(target) if smoothing else target
        q = _smoothed(widen(target), smoothing, x.shape[at], classes)
        first = cast(ops.mul(g, ops.sub(ops.mul(p, ops.sum(q, (at,), True)), q)), x.dtype)
        second = None
        if needs[1]:
            slope = ops.mul(ops.mul(g, ops.sub(ops.log(total), below)), 1.0 - smoothing)
            second = cast(slope if classes is None else ops.mul(slope, classes), target.dtype)
        third = None
        if needs[2]:  # a weighs what class a adds to each row
            shares = _smoothed(widen(target), smoothing, x.shape[at], None)
            added = ops.mul(ops.mul(g, ops.sub(ops.log(total), below)), shares)
            third = cast(ops.sum(added, tuple(d for d in range(rank) if d != at)) if rank > 1 else added, weight.dtype)
        return first, second, third, None, None, None
    g = _class_grad(grads[0], target, weight, ignore_index, reduction, at)
    counts = ops.ne(target, ignore_index)  # no minus zero where a row does not
    one = _is_class(x, target if ignore_index < 0 else ops.where(counts, target, -1), at)
    if smoothing:
        q = _smoothed(ops.to(one, wide.dtype), smoothing, x.shape[at], classes)
        q = ops.where(ops.unsqueeze(counts, at), q, 0.0)
        first = ops.mul(g, ops.sub(ops.mul(p, ops.sum(q, (at,), True)), q))
    elif weight is None:
        first = ops.mul(g, ops.sub(p, ops.to(one, wide.dtype)))
    else:  # a weight of 0 makes a zero of the gradient's sign, in the row's class alone
        g = ops.mul(g, ops.unsqueeze(_class_weight(weight, target, counts), at))
        first = ops.add(ops.mul(g, ops.sub(p, ops.to(one, wide.dtype))), ops.where(one, -0.0, 0.0))
    return cast(first, x.dtype), None, None, None, None, None


def _smoothed(q: Any, smoothing: float, classes: Any, weight: Any) -> Any:
    """The target distribution, mixed with the uniform one, times the class weights."""
    if smoothing:
        q = ops.add(ops.mul(q, 1.0 - smoothing), ops.div(ops.full((), smoothing, dtype=q.dtype, device=q.device), classes))
    return q if weight is None else ops.mul(q, weight)
