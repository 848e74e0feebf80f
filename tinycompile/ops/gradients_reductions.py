"""Derivatives of reductions, scans, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.gradients import Gradients, as_it_was, count_of, dims_of, kept, positions, stored, sum_to, vjp, zeros

Args = Sequence[Any]


def _spread(g: Any, x: Any, dim: Any, keepdim: bool) -> Any:
    """A reduction's gradient, repeated along the dims that were reduced."""
    return ops.expand(kept(g, x, dim, keepdim), tuple(x.shape)) if len(x.shape) else g


# -------------------------------------------------------------------------------------------------------- sums, products


@vjp("sum")
def _sum(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, keepdim, _dtype = args
    return _spread(cast(grads[0], x.dtype), x, dim, keepdim), None, None, None


def _to_numbers(g: Any, x: Any, dim: Any, keepdim: bool) -> Any:
    """To all elements, times 0 to those that are NaN: of what is infinite that is NaN, as ATen has it."""
    there = cast(ops.logical_not(ops.isnan(x)), x.dtype)
    return ops.mul(_spread(cast(g, x.dtype), x, dim, keepdim), there)


@vjp("nansum", "self")
def _nansum(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return _to_numbers(grads[0], *args[:3]), None, None, None


@vjp("nanmean", "self")
def _nanmean(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, keepdim, _dtype = args
    count = ops.sum(ops.logical_not(ops.isnan(x)), dim, keepdim)
    return _to_numbers(ops.div(grads[0], count), x, dim, keepdim), None, None, None


def _divisor(x: Any, dim: Any) -> Any:
    """What a mean is divided by. Of no elements nobody gets a share, and 1 leaves no NaN behind when that is differentiated."""
    count = count_of(x, dims_of(dim, len(x.shape)))
    return 1 if isinstance(count, int) and count == 0 else count


@vjp("mean")
def _mean(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, keepdim, _dtype = args
    spread = _spread(cast(ops.div(grads[0], _divisor(x, dim)), x.dtype), x, dim, keepdim)
    return ops.restride(spread, rules.dense_strides(tuple(x.shape))), None, None, None  # torch's has memory of its own


def _product_of_others(x: Any, dim: int) -> Any:
    """At each position the product of all the others along ``dim``: from the left times from the right; zeros do no harm."""
    n = x.shape[dim]
    one = ops.full(rules.replaced(tuple(x.shape), dim, 1), 1.0, dtype=x.dtype, device=x.device)
    left = ops.cumprod(ops.cat((one, ops.slice(x, dim, 0, n - 1)), dim), dim)
    turned = ops.flip(ops.slice(x, dim, 1), (dim,))
    return ops.mul(left, ops.flip(ops.cumprod(ops.cat((one, turned), dim), dim), (dim,)))


@vjp("prod", "self", "result")
def _prod(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, keepdim, _dtype = args
    if not len(x.shape):
        return cast(grads[0], x.dtype), None, None, None
    if any(rules.is_zero(s) for s in x.shape):
        return zeros(x), None, None, None
    wide = widen(x)
    if dim is None:
        others = ops.reshape(_product_of_others(ops.reshape(wide, (-1,)), 0), tuple(x.shape))
    else:
        others = _product_of_others(wide, dims_of(dim, len(x.shape))[0])
    zero = ops.eq(wide, 0)
    # without a zero in it ATen divides the product as it was stored by each: half types overflow, and infinities give NaN
    product = kept(widen(results[0]), x, dim, keepdim)
    others = ops.where(ops.any(zero), others, stored(ops.div(product, ops.where(zero, 1.0, wide)), grads[0].dtype))
    grad = ops.mul(kept(widen(grads[0]), x, dim, keepdim), others)
    if dim is None:  # with several it does not look at the rest
        grad = ops.where(ops.gt(ops.sum(zero), 1), 0.0, grad)
    return cast(grad, x.dtype), None, None, None


def _reversed_sum(x: Any, dim: int) -> Any:
    return ops.flip(ops.cumsum(ops.flip(x, (dim,)), dim), (dim,))


@vjp("cumsum")
def _cumsum(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, _dtype = args
    g = grads[0] if not len(x.shape) else _reversed_sum(grads[0], dim)
    return cast(g, x.dtype), None, None


@vjp("cumprod", "self", "result")
def _cumprod(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, _dtype = args
    if not len(x.shape):
        return cast(grads[0], x.dtype), None, None
    g, wide, y = widen(grads[0]), widen(x), widen(results[0])
    (dim,) = dims_of(dim, len(x.shape))
    if as_it_was(x) is x and torch.is_grad_enabled() and getattr(x, "requires_grad", False):
        return cast(_cumprod_by_pairs(g, wide, dim), x.dtype), None, None
    zero = ops.eq(x, 0)
    seen = ops.cumsum(ops.to(zero, y.dtype), dim)
    before, behind = ops.eq(seen, 0), ops.eq(seen, 1)
    first = ops.logical_and(zero, behind)
    through = ops.div(_reversed_sum(ops.where(before, ops.mul(g, y), 0.0), dim), ops.where(zero, 1.0, wide))
    # from the first zero to the second: the products from there on, times that of what is before it
    onward = ops.cumprod(ops.where(ops.logical_and(behind, ops.logical_not(zero)), wide, 1.0), dim)
    total = ops.sum(ops.mul(onward, ops.where(behind, g, 0.0)), (dim,), True)
    one = ops.full(rules.replaced(tuple(x.shape), dim, 1), 1.0, dtype=y.dtype, device=x.device)
    at = ops.mul(total, ops.cat((one, ops.slice(y, dim, 0, x.shape[dim] - 1)), dim))
    return cast(ops.where(before, through, ops.where(first, at, 0.0)), x.dtype), None, None


def _cumprod_by_pairs(g: Any, x: Any, dim: int) -> Any:
    """At k the sum over i >= k of g_i times the product of all up to i but k. It takes n^2 memory, and is for where it is
    differentiated again: the linear form above is right in value alone. (That is ATen's: before the first zero of a row,
    (sum of g y from here on) / x; at that zero the sum with it taken for a one; after it zero.)"""
    n, rank = x.shape[dim], len(x.shape) + 1
    rows, cols = (positions(n, rank, d, x.device) for d in (-2, -1))
    line, of_line = (ops.unsqueeze(ops.transpose(v, dim, -1), -2) for v in (x, g))
    products = ops.cumprod(ops.where(ops.eq(rows, cols), 1.0, line), -1)
    total = ops.sum(ops.where(ops.ge(cols, rows), ops.mul(products, of_line), 0.0), (-1,))
    return ops.transpose(total, dim, -1)


# -------------------------------------------------------------------------------------------------------------- extremes


def _shared(g: Any, x: Any, extreme: Any, dim: Any, keepdim: bool) -> Any:
    """Equal extremes share the gradient. (Of NaN, nothing is the extreme: 0 / 0.)"""
    if not len(x.shape):
        return g
    chosen = ops.to(ops.eq(x, kept(extreme, x, dim, keepdim)), g.dtype)
    many = ops.sum(chosen, dims_of(dim, len(x.shape)), True)
    return ops.div(ops.mul(chosen, kept(g, x, dim, keepdim)), many)


def _extreme(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, keepdim = args
    return _shared(grads[0], x, results[0], dim, keepdim), None, None


def _extreme_of_all(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """As ``_shared``, but NaNs share among themselves."""
    (g,), (x,), (y,) = grads, args, results
    chosen = ops.logical_or(ops.eq(x, y), ops.logical_and(ops.isnan(x), ops.isnan(y)))
    return (ops.where(chosen, ops.div(g, ops.sum(chosen)), 0.0),)


def _extreme_along(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """All of it goes to the position that was returned."""
    x, dim, keepdim = args
    rank = len(x.shape)
    if grads[0] is None:
        return None, None, None
    if not rank:
        return grads[0], None, None
    at = dims_of(dim, rank)[0]
    here = ops.eq(positions(x.shape[at], rank, at, x.device), kept(results[1], x, dim, keepdim))
    return ops.where(here, kept(grads[0], x, dim, keepdim), 0.0), None, None


for _name in ("max", "min"):
    vjp(f"a{_name}", "self", "result")(_extreme)
    vjp(f"{_name}_all", "self", "result")(_extreme_of_all)
    vjp(f"{_name}_dim", "result1")(_extreme_along)


# --------------------------------------------------------------------------------------------------------------- moments


def _of_variance(g: Any, x: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    """2 (x - mean) / (n - correction), in the opmath dtype."""
    wide = widen(x)
    dims = dims_of(dim, len(x.shape))
    taken = 1 if correction is None else correction
    centered = ops.sub(wide, ops.mean(wide, dims, True) if dims else wide)
    count = count_of(x, dims)
    if isinstance(count, int) or taken == int(taken):
        freedom = count - (taken if isinstance(count, int) else int(taken))
    else:
        freedom = ops.sub(ops.full((), count, dtype=wide.dtype, device=x.device), taken)
    share = 2.0 / freedom if isinstance(freedom, (int, float)) and freedom else None
    scaled = ops.div(ops.mul(widen(g), 2.0), freedom) if share is None else ops.mul(widen(g), share)
    return ops.mul(kept(scaled, x, dim, keepdim), centered)


def _of_deviation(g: Any, y: Any) -> Any:
    """The gradient of the variance, zero where the deviation is."""
    wide = widen(y)
    return ops.where(ops.eq(wide, 0), 0.0, ops.div(widen(g), ops.mul(wide, 2.0)))


@vjp("var", "self")
def _var(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, correction, keepdim = args
    return cast(_of_variance(grads[0], x, dim, correction, keepdim), x.dtype), None, None, None


@vjp("std", "self", "result")
def _std(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, correction, keepdim = args
    g = _of_variance(_of_deviation(grads[0], results[0]), x, dim, correction, keepdim)
    return cast(g, x.dtype), None, None, None


def _with_mean(spread: Any, g_mean: Any, x: Any, dim: Any, keepdim: bool) -> Gradients:
    """Add the mean's gradient; either may be missing."""
    total = spread
    if g_mean is not None:
        share = ops.div(widen(g_mean), _divisor(x, dim))
        total = _spread(share, x, dim, keepdim) if spread is None else ops.add(spread, kept(share, x, dim, keepdim))
    return None if total is None else cast(total, x.dtype), None, None, None


@vjp("var_mean", "self")
def _var_mean(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, correction, keepdim = args
    spread = None if grads[0] is None else _of_variance(grads[0], x, dim, correction, keepdim)
    return _with_mean(spread, grads[1], x, dim, keepdim)


@vjp("std_mean", "self", "result0")
def _std_mean(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, correction, keepdim = args
    spread = None
    if grads[0] is not None:
        spread = _of_variance(_of_deviation(grads[0], results[0]), x, dim, correction, keepdim)
    return _with_mean(spread, grads[1], x, dim, keepdim)


@vjp("linalg_vector_norm", "self", "result")
def _vector_norm(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Zero where the norm is."""
    x, order, dim, keepdim, _dtype = args
    if order == 0:  # a count: torch says that nothing depends on x
        return None, None, None, None, None
    wide = widen(cast(x, results[0].dtype))
    g, y = (kept(widen(v), x, dim, keepdim) for v in (grads[0], results[0]))
    if order == 2:
        found = ops.mul(g, ops.where(ops.eq(y, 0), 0.0, ops.div(wide, y)))  # in torch's order: x / |x| is exact
    elif order == 1:
        found = ops.mul(ops.sign(wide), g)
    elif order in (float("inf"), float("-inf")):
        size = ops.abs(wide)
        both = ops.logical_and(ops.isnan(size), ops.isnan(y))  # NaN is the extreme where there is one
        chosen = ops.to(ops.logical_or(ops.eq(size, y), both), g.dtype)
        many = ops.sum(chosen, dims_of(dim, len(x.shape)), True) if len(x.shape) else chosen
        found = ops.mul(ops.sign(wide), ops.mul(ops.div(g, many), chosen))
    else:
        found = _of_order(x, order, dim, g)
    return cast(found, x.dtype), None, None, None, None


@vjp("dist", "self", "other", "result")
def _dist(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, other, order = args
    off = ops.sub(widen(x), widen(other))
    norm = as_it_was(ops.linalg_vector_norm(off, order))
    g = _vector_norm((widen(grads[0]),), (off, order, None, False, None), (norm,), (True,))[0]
    if g is None:
        return None, None, None
    return sum_to(g, x) if needs[0] else None, sum_to(ops.neg(g), other) if needs[1] else None, None


def _of_order(x: Any, order: float, dim: Any, g: Any) -> Any:
    """In float64, and from a norm in float64: an error of the norm counts ``order - 1`` times in the gradient."""
    wide, g = cast(x, torch.float64), cast(g, torch.float64)
    size, y = ops.abs(wide), as_it_was(ops.linalg_vector_norm(wide, order, dim, True))  # whose own gradient is zero where it is
    if order > 2:  # torch's three ways
        slope = ops.mul(wide, ops.pow_scalar(size, order - 2))
    else:
        slope = ops.mul(ops.sign(wide), ops.pow_scalar(size, order - 1))
    if order < 1:
        return ops.mul(ops.mul(ops.where(ops.eq(size, 0), 0.0, slope), g), ops.pow_scalar(y, 1 - order))
    return ops.mul(slope, ops.where(ops.eq(y, 0), 0.0, ops.div(g, ops.pow_scalar(y, order - 1))))


# --------------------------------------------------------------------------------------------------------------- softmax


@vjp("logsumexp", "self", "result")
def _logsumexp(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, keepdim = args
    g, y = (kept(widen(v), x, dim, keepdim) for v in (grads[0], results[0]))
    return cast(ops.mul(g, ops.exp(ops.sub(widen(x), y))), x.dtype), None, None


def _row_total(v: Any, dim: int) -> Any:
    """The sum along a dim. Along the last one ATen's CPU kernels do not start from 0: -0 alone adds up to -0."""
    if not len(v.shape):
        return v
    total = ops.sum(v, (dim,), True)
    if v.device.type != "cpu" or dim % len(v.shape) != len(v.shape) - 1:
        return total
    negative = ops.all(ops.signbit(v), dim, True)
    return ops.where(ops.logical_and(negative, ops.eq(total, 0)), -0.0, total)


@vjp("softmax", "result")
def _softmax(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """In the order of the device's kernel: the other one has another rounding error, and another sign where y is zero."""
    x, dim, _dtype = args
    g, y = widen(grads[0]), widen(results[0])
    both = ops.mul(g, y)
    total = _row_total(both, dim)
    slope = ops.sub(both, ops.mul(y, total)) if x.device.type == "cuda" else ops.mul(ops.sub(g, total), y)
    return cast(slope, x.dtype), None, None


@vjp("log_softmax", "result")
def _log_softmax(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, dim, _dtype = args
    g, y = widen(grads[0]), widen(results[0])
    return cast(ops.sub(g, ops.mul(ops.exp(y), _row_total(g, dim))), x.dtype), None, None


@vjp("softmax_stats", "self", "result0", "result1")
def _softmax_stats(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """The sum of exp(x - max) also depends on the maximum, by minus itself."""
    x, dim = args
    g_top, g_total = grads
    top, total = results
    g = None
    if g_total is not None:
        g = ops.mul(g_total, ops.exp(ops.sub(x, top)))
        through_top = ops.neg(ops.mul(g_total, total))
        g_top = through_top if g_top is None else ops.add(g_top, through_top)
    if g_top is not None:
        at_top = _shared(g_top, x, top, dim, True)
        g = at_top if g is None else ops.add(g, at_top)
    return None if g is None else sum_to(g, x), None
