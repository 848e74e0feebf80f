"""Derivatives of pointwise arithmetic and mathematics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.gradients import (
    Gradients,
    as_it_was,
    constant_op,
    one_input,
    several_inputs,
    stored,
    sum_to,
    times,
    vjp,
    wide,
    zeros,
)

Args = Sequence[Any]


# ---------------------------------------------------------------------------------------------------------- add, sub, mul


@vjp("add")
def _add(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, other, alpha) = grads, args
    return sum_to(g, x) if needs[0] else None, sum_to(g, other, alpha) if needs[1] else None, None


@vjp("sub")
def _sub(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, other, alpha) = grads, args
    return sum_to(g, x) if needs[0] else None, sum_to(ops.neg(g), other, alpha) if needs[1] else None, None


@vjp("mul", "self?other", "other?self")
def _mul(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, other) = grads, args
    return sum_to(ops.mul(g, other), x) if needs[0] else None, sum_to(ops.mul(g, x), other) if needs[1] else None


def _dividend(g: Any, x: Any, y: Any) -> Any:
    return ops.div(g, y)


def _divisor(g: Any, x: Any, y: Any) -> Any:
    y = y if hasattr(x, "dtype") else as_it_was(y)  # of a number over it, torch keeps the reciprocal
    return ops.mul(ops.neg(g), ops.div(ops.div(x, y), y))


def _same(g: Any, x: Any, y: Any) -> Any:
    return g


several_inputs("div", ("self?other", "other"), _dividend, _divisor)
for _name, _quotient in (("remainder", ops.div_floor), ("fmod", ops.div_trunc)):
    several_inputs(
        _name, ("self?other", "other?other"), _same,
        lambda g, x, y, quotient=_quotient: ops.mul(ops.neg(g), quotient(x, y)),
    )  # fmt: skip
for _name in ("div_floor", "div_trunc"):
    constant_op(_name, "self?other", "other")
for _name in ("sign", "floor", "ceil", "trunc", "round"):
    constant_op(_name)
constant_op("sgn", "self", "result")  # torch's formula is that of complex numbers too


# ------------------------------------------------------------------------------------------------------- ops of one tensor

_FROM_INPUT: dict[str, Any] = {
    "abs": lambda g, x: g * ops.sign(x),
    "square": lambda g, x: g * (x * 2),
    "log": lambda g, x: g / x,
    "log2": lambda g, x: g / (x * math.log(2)),
    "log10": lambda g, x: g / (x * math.log(10)),
    "log1p": lambda g, x: g / (x + 1),
    "sin": lambda g, x: g * ops.cos(x),
    "cos": lambda g, x: g * -ops.sin(x),
    "asin": lambda g, x: g * ops.rsqrt(1 - x * x),
    "acos": lambda g, x: g * -ops.rsqrt(1 - x * x),
    "atan": lambda g, x: g / (x * x + 1),
    "sinh": lambda g, x: g * ops.cosh(x),
    "cosh": lambda g, x: g * ops.sinh(x),
    "asinh": lambda g, x: g * ops.rsqrt(x * x + 1),
    "acosh": lambda g, x: g * ops.rsqrt(x * x - 1),
    "atanh": lambda g, x: g / (1 - x * x),
    "erf": lambda g, x: g * (ops.exp(-(x * x)) * (2 / math.sqrt(math.pi))),
    "erfc": lambda g, x: g * (ops.exp(-(x * x)) * (-2 / math.sqrt(math.pi))),
    "lgamma": lambda g, x: g * ops.digamma(x),
    "digamma": lambda g, x: g * ops.polygamma(x, 1),
    "polygamma": lambda g, x, n: g * ops.polygamma(x, n + 1),
    "replace_nonfinite": lambda g, x, *to: g * ops.to(ops.isfinite(x), g.dtype),
}
_FROM_RESULT: dict[str, Any] = {
    "exp": lambda g, y: g * y,
    "exp2": lambda g, y: g * y * math.log(2),
    "expm1": lambda g, y: g * (y + 1),
    "sqrt": lambda g, y: g / (y * 2),
    "rsqrt": lambda g, y: g * -0.5 * (y * y * y),
    "reciprocal": lambda g, y: g * -(y * y),
    "tan": lambda g, y: g * (y * y + 1),
    "tanh": lambda g, y: g * (1 - y * y),
    "sigmoid": lambda g, y: g * (1 - y) * y,
}
_FROM_NEITHER: dict[str, Any] = {
    "neg": ops.neg,
    "positive": lambda g: g,
    "frac": lambda g: g,
    "deg2rad": lambda g: g * (math.pi / 180),
    "rad2deg": lambda g: g * (180 / math.pi),
}
for _saved, _family in (("self", _FROM_INPUT), ("result", _FROM_RESULT), ("", _FROM_NEITHER)):
    for _name, _slope in _family.items():
        one_input(_name, _saved, _slope)


# ----------------------------------------------------------------------------------------------------- ops of two tensors


def _masked(mask: Any, g: Any) -> Any:
    """``g`` with zeros where ``mask`` holds."""
    return ops.where(mask, 0.0, g)


def _half_at_ties(x: Any, y: Any, g: Any) -> Any:
    return ops.where(ops.eq(x, y), ops.mul(g, 0.5), g)


def _over_squares(x: Any, y: Any) -> Any:
    """1 / (x^2 + y^2), zero at the origin."""
    length = ops.add(ops.square(x), ops.square(y))
    return _masked(ops.eq(length, 0), ops.reciprocal(length))


def _first_wins(word: str) -> Any:
    """fmax and fmin: the first of equals gets it all; NaN loses."""

    def wins(x: Any, y: Any) -> Any:
        return ops.logical_or((ops.ge if word == "fmax" else ops.le)(x, y), ops.isnan(y))

    return wins


_BOTH = ("self", "other")
several_inputs(
    "maximum", _BOTH,
    lambda g, x, y: _masked(ops.lt(x, y), _half_at_ties(x, y, g)),
    lambda g, x, y: _masked(ops.gt(x, y), _half_at_ties(x, y, g)),
)  # fmt: skip
several_inputs(
    "minimum", _BOTH,
    lambda g, x, y: _masked(ops.gt(x, y), _half_at_ties(x, y, g)),
    lambda g, x, y: _masked(ops.lt(x, y), _half_at_ties(x, y, g)),
)  # fmt: skip
for _name in ("fmax", "fmin"):
    several_inputs(
        _name, _BOTH,
        lambda g, x, y, wins=_first_wins(_name): ops.where(wins(x, y), g, 0.0),
        lambda g, x, y, wins=_first_wins(_name): _masked(wins(x, y), g),
    )  # fmt: skip
several_inputs(
    "atan2", _BOTH,
    lambda g, x, y: ops.mul(ops.mul(g, y), _over_squares(x, y)),
    lambda g, x, y: ops.mul(ops.mul(g, ops.neg(x)), _over_squares(x, y)),
)  # fmt: skip
several_inputs(
    "xlogy", _BOTH,
    lambda g, x, y: _masked(ops.eq(x, 0) & (y <= 0), ops.xlogy(g, y)),
    lambda g, x, y: ops.div(ops.mul(g, x), y),
)  # fmt: skip
several_inputs(
    "logaddexp", _BOTH,
    lambda g, x, y: ops.div(g, ops.add(ops.exp(ops.sub(y, x)), 1)),
    lambda g, x, y: ops.div(g, ops.add(ops.exp(ops.sub(x, y)), 1)),
)  # fmt: skip


@vjp("hypot", "self?self", "other?other", "result")
def _hypot(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    g, y = widen(grads[0]), widen(results[0])
    return tuple(sum_to(ops.div(g * wide(a), y), a) if need else None for a, need in zip(args, needs, strict=True))


@vjp("copysign", "self?self", "result")
def _copysign(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, other) = grads, args
    first = second = None
    if needs[0]:
        first = sum_to(ops.mul(g, _masked(ops.eq(x, 0), ops.div(results[0], x))), x)
    if needs[1]:
        second = zeros(other)
    return first, second


# -------------------------------------------------------------------------------------------------------------------- pow


def _pow_slope(x: Any, exponent: Any, dtype: Any) -> Any:
    """exponent * x^(exponent - 1), each step as it is stored."""
    if hasattr(exponent, "dtype"):
        power = ops.pow(x, stored(ops.sub(exponent, 1), dtype))
    else:
        power = ops.pow_scalar(x, exponent - 1)
    return stored(ops.mul(stored(power, dtype), exponent), dtype)


@vjp("pow_scalar", "self")
def _pow_scalar(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, exponent) = grads, args
    if exponent == 0:
        return zeros(x), None
    return cast(ops.mul(widen(g), _pow_slope(widen(x), exponent, g.dtype)), x.dtype), None


@vjp("pow", "self", "exponent", "result")
def _pow(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Where the slope in the exponent is set to zero, it is so before ``g`` gives it a sign; the base's only after."""
    g, x, exponent, dtype = widen(grads[0]), wide(args[0]), wide(args[1]), grads[0].dtype
    first = second = None
    if needs[0]:
        first = ops.mul(g, _pow_slope(x, exponent, dtype))
        first = _masked(ops.eq(exponent, 0), first) if hasattr(exponent, "dtype") else first
        first = sum_to(first, args[0])
    if needs[1]:
        if hasattr(x, "dtype"):
            log, at_zero = ops.log(x), ops.logical_and(ops.eq(x, 0), ops.ge(exponent, 0))
        else:
            log, at_zero = _log(x), ops.ge(exponent, 0) if x == 0 else None
        slope = stored(ops.mul(widen(results[0]), log), dtype)
        slope = slope if at_zero is None else _masked(at_zero, slope)
        second = sum_to(ops.mul(g, slope), args[1])
    return first, second


def _takes_integer_powers() -> bool:
    """Whether torch's formula for ``ldexp`` takes the power of an integer exponent in the exponent's dtype, where 2 ** -1 is 0.
    (The node is called by itself: a backward would start torch's threads.)"""
    with torch.inference_mode(False), torch.enable_grad():
        halved = torch.ldexp(torch.ones((), device="cpu", requires_grad=True), torch.tensor(-1, device="cpu"))
    node: Any = halved.grad_fn
    return bool(node(torch.ones((), device="cpu"))[0] == 0)


def _ldexp(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    g, (x, other) = widen(grads[0]), args
    first = second = None
    if needs[0]:
        if other.dtype.is_floating_point:
            power = stored(ops.pow(2.0, widen(other)), other.dtype)
        else:
            power = ops.bitwise_left_shift(ops.full_like(other, 1), other)
        first = sum_to(ops.mul(g, power), x)
    if needs[1]:
        second = sum_to(ops.mul(g, widen(results[0])), other, math.log(2))
    return first, second


if _takes_integer_powers():
    vjp("ldexp", "other?self", "result")(_ldexp)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


# ------------------------------------------------------------------------------------------------ three tensors, choices


several_inputs(
    "lerp", ("self?weight", "end?weight", "weight"),
    lambda g, x, end, w: ops.mul(g, 1 - w),
    lambda g, x, end, w: ops.mul(g, w),
    lambda g, x, end, w: ops.mul(g, ops.sub(end, x)),
)  # fmt: skip
several_inputs(
    "addcmul", ("tensor1?tensor2", "tensor2?tensor1"),
    lambda g, x, a, b, value: g,
    lambda g, x, a, b, value: ops.mul(g, times(b, value)),
    lambda g, x, a, b, value: ops.mul(g, times(a, value)),
)  # fmt: skip
several_inputs(
    "addcdiv", ("tensor1?tensor2", "tensor2"),
    lambda g, x, a, b, value: g,
    lambda g, x, a, b, value: ops.mul(g, ops.div(value, b)),
    lambda g, x, a, b, value: ops.mul(ops.neg(g), ops.div(times(a, value), ops.square(b))),
)  # fmt: skip


@vjp("where", "condition")
def _where(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (condition, x, other) = grads, args
    first = sum_to(ops.where(condition, g, 0.0), x) if needs[1] else None
    return None, first, sum_to(ops.where(condition, 0.0, g), other) if needs[2] else None


@vjp("masked_fill", "mask")
def _masked_fill(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    (g,), (x, mask, value) = grads, args
    first = sum_to(ops.masked_fill(g, mask, 0.0), x) if needs[0] else None
    return first, None, sum_to(ops.where(mask, g, 0.0), value) if needs[2] else None


def _within(x: Any, low: Any, high: Any) -> Any:
    """Where clamp lets ``x`` through, bounds included; None when there is no bound."""
    inside = None if low is None else ops.ge(x, low)
    if high is None:
        return inside
    below = ops.le(x, high)
    return below if inside is None else ops.logical_and(inside, below)


@vjp("clamp", "self", "min", "max")
def _clamp(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Where ``max`` is less than ``min``, ``max`` wins."""
    (g,), (x, low, high) = grads, args
    first = sum_to(ops.where(_within(x, low, high), g, 0.0), x) if needs[0] else None
    second = third = None
    if needs[1]:
        chosen = ops.lt(x, low) if high is None else ops.logical_and(ops.lt(low, high), ops.lt(x, low))
        second = sum_to(ops.where(chosen, g, 0.0), low)
    if needs[2]:
        chosen = ops.gt(x, high) if low is None else ops.logical_or(ops.lt(high, low), ops.gt(x, high))
        third = sum_to(ops.where(chosen, g, 0.0), high)
    return first, second, third


several_inputs(
    "clamp_min", ("self", "min"),
    lambda g, x, low: ops.where(ops.ge(x, low), g, 0.0),
    lambda g, x, low: ops.where(ops.lt(x, low), g, 0.0),
)  # fmt: skip
several_inputs(
    "clamp_max", ("self", "max"),
    lambda g, x, high: ops.where(ops.le(x, high), g, 0.0),
    lambda g, x, high: ops.where(ops.gt(x, high), g, 0.0),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- casts and copies


@vjp("to")
def _to(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return cast(grads[0], args[0].dtype), None, None, None


@vjp("to_device")
def _to_device(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x = args[0]
    return ops.to_device(grads[0], x.device, x.dtype), None, None, None, None


def _handed_on(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    return (grads[0], *(None for _ in args[1:]))


for _name in ("clone", "contiguous", "restride", "identity", "alias"):
    vjp(_name)(_handed_on)


@vjp("fill")
def _fill(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, value = args
    return zeros(x) if needs[0] else None, cast(ops.sum(grads[0]), value.dtype) if needs[1] else None


@vjp("copy")
def _copy(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, src = args
    return zeros(x) if needs[0] else None, sum_to(grads[0], src) if needs[1] else None
