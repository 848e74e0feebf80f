"""Elementwise functions that are a few others: ``isclose``, ``heaviside``, ``ldexp``, ``sinc``, ``logit``, rounded decimals."""

from __future__ import annotations

import math
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, row_major, widen
from tinycompile.ops.declare import binary, composite, declare, spelled, unary
from tinycompile.ops.record import Pointwise
from tinycompile.ops.samples import FLOATS, call, one, t, two
from tinycompile.ops.scalar import Builder, Value

# ----------------------------------------------------------------------------------------------------------- one input


def _sinc(b: Builder, x: Value) -> Value:
    """sin(pi x) / (pi x), 1 at 0."""
    angle = x * math.pi
    return b.where(x.eq(0), 1.0, b("sin", angle) / angle)


def _entropy(b: Builder, x: Value) -> Value:
    """-x log(x); 0 at 0, -inf below."""
    return b.where(b("isnan", x), x, b.where(x > 0, -x * b("log", x), b.where(x.eq(0), 0.0, b.const(-math.inf, x.dtype))))


def _angle(b: Builder, x: Value) -> Value:
    return b.where(b("isnan", x), x, b.where(x < 0, math.pi, b.const(0.0, x.dtype)))


def _normal_cdf(b: Builder, x: Value) -> Value:
    """(1 + erf(x / sqrt(2))) / 2, as ATen has it: 0 in the far left tail."""
    return (b("erf", x * math.sqrt(0.5)) + 1) * 0.5


unary("sinc", _sinc, "int_to_float", spelled("sinc", "tms"), one((*FLOATS, "int64")), ulp=4.0)
unary("special_entr", _entropy, "int_to_float", ("torch.special.entr",), one((*FLOATS, "int64")), torch.special.entr, ulp=4.0)
unary("angle", _angle, "int_to_float", spelled("angle"), one((*FLOATS, "int64")))
unary(
    "special_ndtr",
    _normal_cdf,
    "int_to_float",
    ("torch.special.ndtr",),
    one((*FLOATS, "int64")),
    torch.special.ndtr,
    lambda x: rules.like(rules.pointwise_float(x, 1.0)),  # ATen's kernels: times a number first, ``where`` last
    ulp=4.0,
)


def _logit(b: Builder, x: Value, eps: float | None = None) -> Value:
    if eps is not None:
        low, high = b.const(float(eps), x.dtype), b.const(1.0, x.dtype) - float(eps)
        x = b.where(x < low, low, b.where(x > high, high, x))
    return b("log", x / (1 - x))


declare(
    "logit(Tensor self, float? eps=None) -> Tensor",
    lambda x, eps=None: rules.like(x, rules.float_type(x.dtype)),
    Pointwise(_logit, "int_to_float"),
    torch.logit,
    spelled("logit", "tms"),
    lambda: [*(call(t(4, 5, dtype=d, fill="unit")) for d in FLOATS), call(t(9), 0.1), call(t(3, dtype="int64"), 0.2)],
    ulp=4.0,
)


def _round_decimals(x: Any, decimals: int) -> Any:
    """ATen's: scaled by a power of ten, rounded, scaled back."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    ten = 10.0 ** abs(decimals)
    wide = widen(x)
    scaled = ops.div(wide, ten) if decimals < 0 else ops.mul(wide, ten)
    whole = ops.round(cast(cast(scaled, x.dtype), wide.dtype))
    return cast(ops.mul(whole, ten) if decimals < 0 else ops.div(whole, ten), x.dtype)


def _multivariate_lgamma(x: Any, p: int) -> Any:
    if p < 1 or not x.dtype.is_floating_point:
        return NotImplemented
    wide = widen(x)
    total: Any = p * (p - 1) / 4 * math.log(math.pi)
    for i in range(p):
        total = ops.add(ops.lgamma(ops.add(wide, -i / 2)), total)
    return cast(total, x.dtype)


composite(
    "round_decimals(Tensor self, int decimals) -> Tensor",
    _round_decimals,
    lambda x, decimals: torch.round(x, decimals=decimals),
    (),
    lambda: [call(t(9), 2), call(t(9, dtype="float64"), -1)],
)
composite(
    "isreal(Tensor self) -> Tensor",
    lambda x: ops.full_like(x, True, dtype=torch.bool),
    torch.isreal,
    spelled("isreal"),
    lambda: [call(t(3, 4)), call(t(3, dtype="int32"))],
)
composite(
    "mvlgamma(Tensor self, int p) -> Tensor",
    _multivariate_lgamma,
    torch.mvlgamma,
    (*spelled("mvlgamma"), "torch.special.multigammaln"),
    lambda: [call(t(9, fill="positive"), 1), call(t(9, fill="positive"), 3)],
    ulp=16.0,
)


# ---------------------------------------------------------------------------------------------------------- two inputs


def _xlog1py(b: Builder, x: Value, other: Value) -> Value:
    return b.where(b("isnan", other), other, b.where(x.eq(0), 0.0, x * b("log1p", other)))


def _logaddexp2(b: Builder, x: Value, other: Value) -> Value:
    top = b("maximum", x, other)
    same_infinity = b("isinf", x) & x.eq(other)
    return b.where(same_infinity, x, top + b("log1p", b("exp2", -b("abs", x - other))) * (1 / math.log(2)))


binary(
    "special_xlog1py",
    _xlog1py,
    "int_to_float",
    ("torch.special.xlog1py",),
    two((*FLOATS, "int64"), fill="positive", number=2.0),
    torch.special.xlog1py,
    ulp=4.0,
)
binary("logaddexp2", _logaddexp2, "int_to_float", spelled("logaddexp2"), two(FLOATS, number=None, mixed=False), ulp=4.0)


def _heaviside_meta(x: TensorMeta, values: TensorMeta) -> TensorMeta:
    if x.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return rules.pointwise_default(x, values)


def _heaviside(b: Builder, x: Value, values: Value) -> Value:
    if x.dtype == torch.bool:
        return x | values
    return b.where(x.eq(0), values, b.where(x > 0, 1, b.const(0, x.dtype)))


declare(
    "heaviside(Tensor self, Tensor values) -> Tensor",
    _heaviside_meta,
    Pointwise(_heaviside),
    torch.heaviside,
    spelled("heaviside"),
    lambda: [
        *(call(t(4, 5, dtype=d, fill="integers"), t(5, dtype=d)) for d in (*FLOATS, "int32", "uint8", "bool")),
        call(t(3), t(3, dtype="int32")),
    ],
)


def _ldexp(x: Any, other: Any) -> Any:
    """``x * 2 ** other``. With an integer ``other``, torch's kernel rounds once, where 2 ** other is out of range, too: in
    float64, that takes steps (as musl's ``scalbn``)."""
    if not x.dtype.is_floating_point or other.dtype.is_floating_point:
        return ops.mul(x, ops.pow(2.0, other))
    steps = 3 if x.dtype == torch.float64 else 1
    wide, rest = cast(x, torch.float64), cast(cast(other, torch.int32), torch.float64)
    for left in reversed(range(steps)):
        power = ops.clamp(rest, -969.0 if left else -1000.0, 1000.0)
        wide, rest = ops.mul(wide, ops.exp2(power)), ops.sub(rest, power)
    return cast(wide, x.dtype)


def _float_power(x: Any, exponent: Any) -> Any:
    tensors = [cast(v, torch.float64) if hasattr(v, "dtype") else v for v in (x, exponent)]
    if hasattr(exponent, "dtype"):
        return ops.pow(*tensors)
    return ops.pow_scalar(tensors[0], float(exponent))


def _isclose(x: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """|x - y| <= atol + rtol |y|, or equal; without the intermediate steps' rounding."""
    if x.dtype != other.dtype or rtol < 0 or atol < 0:
        return NotImplemented
    close = ops.eq(x, other)
    floating = x.dtype.is_floating_point
    if floating and equal_nan:
        close = ops.logical_or(close, ops.logical_and(ops.isnan(x), ops.isnan(other)))
    if rtol == 0 and atol == 0:
        return close
    if x.dtype == torch.bool:
        x, other = ops.to(x, torch.int64), ops.to(other, torch.int64)
    y = other if floating else ops.to(other, torch.get_default_dtype())
    error = ops.abs(ops.sub(x, other))
    allowed = ops.add(ops.abs(ops.mul(y, rtol)), atol)
    near = ops.le(error, allowed)
    if floating:
        near = ops.logical_and(ops.isfinite(error), near)
    return ops.logical_or(close, near)


composite(
    "ldexp(Tensor self, Tensor other) -> Tensor",
    _ldexp,
    torch.ldexp,
    spelled("ldexp"),
    lambda: [*(call(t(4, 5, dtype=d), t(5, dtype="int32")) for d in FLOATS), call(t(4), t(4)), call(t(4), t(4, dtype="uint8"))],
)
composite(
    "float_power(Tensor self, Tensor exponent) -> Tensor",
    _float_power,
    torch.float_power,
    (),
    lambda: [call(t(4, fill="positive"), t(4)), call(t(4, dtype="int32", fill="positive"), 2)],
)
composite(
    "isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor",
    _isclose,
    torch.isclose,
    spelled("isclose"),
    lambda: [call(t(4, 5), t(5)), call(t(9, fill="special"), t(9, fill="special"), equal_nan=True), call(t(3), t(3), 0.5, 1.0)],
)


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The k-th true place takes the k-th element of ``source``; too few of them is an index error, and torch's to raise."""
    if mask.dtype != torch.bool or source.dtype != x.dtype:
        return NotImplemented
    shape = rules.shapes.broadcast_shapes(tuple(x.shape), tuple(mask.shape))
    wide = ops.expand(mask, shape)
    rank = ops.sub(ops.cumsum(ops.to(ops.reshape(wide, (-1,)), torch.int64), 0), 1)
    place = ops.where(wide, ops.reshape(rank, shape), 0)
    taken = ops.index(ops.reshape(source, (-1,)), (place,))
    return row_major(ops.where(wide, taken, x))


composite(
    "masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor",
    _masked_scatter,
    torch.masked_scatter,
    spelled("masked_scatter"),
    lambda: [call(t(4, 5), t(4, 5, dtype="bool"), t(4, 5)), call(t(4, 5), t(5, dtype="bool"), t(5, 4))],
)
