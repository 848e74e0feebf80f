"""Transcendental functions, rounding and the like: one tensor in, one out (atan2, xlogy and a few take two)."""

from __future__ import annotations

import math
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import binary, declare, spelled, unary
from tinycompile.ops.record import Pointwise
from tinycompile.ops.samples import FLOATS, INTS, Samples, call, one, t, two
from tinycompile.ops.scalar import Builder, Value

ANY = (*FLOATS, "int64", "int32", "uint8", "bool")


def _word(name: str) -> Any:
    """The formula that is one scalar op of the vocabulary."""
    return lambda b, x: b(name, x)


# name, namespaces, sample values, further spellings
_TRANSCENDENTAL: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("exp", "tm", "normal", ()),
    ("exp2", "tms", "normal", ()),
    ("expm1", "tms", "normal", ()),
    ("log", "tm", "positive", ()),
    ("log2", "tm", "positive", ()),
    ("log10", "tm", "positive", ()),
    ("log1p", "tms", "positive", ()),
    ("sqrt", "tm", "positive", ()),
    ("rsqrt", "tm", "positive", ()),
    ("reciprocal", "tm", "positive", ()),
    ("sin", "tm", "normal", ()),
    ("cos", "tm", "normal", ()),
    ("tan", "tm", "normal", ()),
    ("asin", "tm", "unit", spelled("arcsin")),
    ("acos", "tm", "unit", spelled("arccos")),
    ("atan", "tm", "normal", spelled("arctan")),
    ("sinh", "tm", "normal", ()),
    ("cosh", "tm", "normal", ()),
    ("tanh", "tmf", "normal", ()),
    ("asinh", "tm", "normal", spelled("arcsinh")),
    ("acosh", "tm", "positive", spelled("arccosh")),
    ("atanh", "tm", "unit", spelled("arctanh")),
    ("sigmoid", "tmf", "normal", ("torch.special.expit",)),
    ("erf", "tms", "normal", ()),
    ("erfc", "tms", "normal", ()),
    ("lgamma", "tm", "positive", ("torch.special.gammaln",)),
)
for _name, _where, _fill, _more in _TRANSCENDENTAL:
    unary(_name, _word(_name), "int_to_float", (*spelled(_name, _where), *_more), one(ANY, _fill), ulp=4.0)

for _name, _factor in (("deg2rad", math.pi / 180), ("rad2deg", 180 / math.pi)):
    unary(
        _name,
        lambda b, x, factor=_factor: x * factor,
        "int_to_float",
        spelled(_name),
        one(FLOATS),
        meta=lambda x: rules.empty_like(x, rules.float_type(x.dtype)),
    )


# --------------------------------------------------------------------------------------------------------------- rounding


def _rounding(name: str) -> Any:
    return lambda b, x: b(name, x) if x.dtype.is_floating_point else x


def _frac_meta(x: TensorMeta) -> TensorMeta:
    if not x.dtype.is_floating_point:
        raise NotImplementedError(f"\"frac\" not implemented for '{rules.type_name(x.dtype)}'")
    return rules.like(x)


_ROUNDED: Samples = lambda: [*one((*FLOATS, *INTS))(), call(t(8, fill="special"))]
for _name in ("floor", "ceil", "trunc"):
    unary(_name, _rounding(_name), "default", spelled(_name), _ROUNDED)
unary("round", _rounding("round"), "default", spelled("round", "tms"), _ROUNDED)
unary("frac", lambda b, x: x - b("trunc", x), "default", spelled("frac"), one(FLOATS), meta=_frac_meta)


# ------------------------------------------------------------------------------------------------------------- two inputs


def _xlogy(b: Builder, x: Value, other: Value) -> Value:
    product = x * b("log", other)
    return b.where(b("isnan", other), other, b.where(x.eq(0), 0.0, product))


def _logaddexp(b: Builder, x: Value, other: Value) -> Value:
    top = b("maximum", x, other)
    same_infinity = b("isinf", x) & x.eq(other)
    return b.where(same_infinity, x, top + b("log1p", b("exp", -b("abs", x - other))))


def _hypot(b: Builder, x: Value, other: Value) -> Value:
    """Scaled by the larger, so that squares can't overflow; an infinity beats NaN."""
    large, small = b("maximum", b("abs", x), b("abs", other)), b("minimum", b("abs", x), b("abs", other))
    ratio = small / large
    length = b.where(large.eq(0), large, large * b("sqrt", ratio * ratio + 1))
    return b.where(b("isinf", x) | b("isinf", other), math.inf, length)


def _copysign(b: Builder, x: Value, other: Value) -> Value:
    size = b("abs", x)
    return b.where(b("signbit", other), -size, size)


binary(
    "atan2",
    lambda b, x, y: b("atan2", x, y),
    "int_to_float",
    (*spelled("atan2"), *spelled("arctan2")),
    two((*FLOATS, "int64"), number=None),
    ulp=4.0,
)
binary("hypot", _hypot, "default", spelled("hypot"), two(FLOATS, number=None), ulp=4.0)
binary("xlogy", _xlogy, "int_to_float", spelled("xlogy", "tms"), two((*FLOATS, "int64"), fill="positive", number=2.0), ulp=4.0)
binary("logaddexp", _logaddexp, "int_to_float", spelled("logaddexp"), two(FLOATS, number=None, mixed=False), ulp=4.0)
binary("copysign", _copysign, "int_to_float", spelled("copysign"), two((*FLOATS, "int64"), number=-2.0))


# ------------------------------------------------------------------------------------------------------------- nan_to_num


def _replace_nonfinite(b: Builder, x: Value, nan: float, posinf: float, neginf: float) -> Value:
    infinite = b.where(x > 0, posinf, b.const(neginf, x.dtype))
    return b.where(b("isnan", x), nan, b.where(b("isinf", x), infinite, x))


def _eager_nan_to_num(x: torch.Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> torch.Tensor:
    return torch.nan_to_num(x, nan, posinf, neginf)


REPLACE = declare(
    "replace_nonfinite(Tensor self, float nan, float posinf, float neginf) -> Tensor",
    lambda x, nan, posinf, neginf: rules.empty_like(x),
    Pointwise(_replace_nonfinite),
    torch.nan_to_num,
    (),
    lambda: [call(t(8, dtype=d, fill="special"), 1.0, 2.0, -3.0) for d in FLOATS],
    doc="nan_to_num with every replacement given.",
)
