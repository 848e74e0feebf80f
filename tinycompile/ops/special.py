"""Special functions by Chebyshev series (``special_tables.py``), computed in float64 whatever the argument's dtype.

Bessel, Airy and the normal distribution's functions are rarely hot; in double precision a float32 result is the exact one
rounded, and a float64 result is good to some 80 units of the last place of max(|value|, 0.1) (torch's own are off by up to
3e-7 near 5). Compared with mpmath in tests/ops/test_special.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from tinycompile.ops import special_tables as tables
from tinycompile.ops.declare import spelled, unary
from tinycompile.ops.samples import FLOATS, one
from tinycompile.ops.scalar import Builder, Number, Value

Formula = Callable[[Builder, Value], Value]


def chebyshev(b: Builder, y: Value, coefficients: Sequence[float]) -> Value:
    """The sum of ``c[k] T_k(y)`` by Clenshaw's recurrence."""
    twice = y * 2
    ahead: Value = b.const(0.0, y.dtype)
    here: Value = b.const(coefficients[-1], y.dtype)
    for c in reversed(coefficients[1:-1]):
        here, ahead = twice * here - ahead + c, here
    return y * here - ahead + coefficients[0]


def in_double(formula: Formula) -> Formula:
    """The formula on float64, rounded once to the argument's dtype."""
    return lambda b, x: b.cast(formula(b, b.cast(x, torch.float64)), x.dtype)


def _choose(b: Builder, *cases: tuple[Value, Value | Number], otherwise: Value) -> Value:
    """The value of the first case that holds."""
    for condition, value in reversed(cases):
        otherwise = b.where(condition, value, otherwise)
    return otherwise


def _far(b: Builder, x: Value, start: float) -> Value:
    """Positions ``x >= start`` as a place in [-1, 1], infinity at -1."""
    return b.const(2 * start, x.dtype) / x - 1


# ----------------------------------------------------------------------------------------------- modified Bessel functions


def _i0e(b: Builder, x: Value) -> Value:
    size = b("abs", x)
    near = chebyshev(b, size * 0.25 - 1, tables.I0_NEAR)
    far = chebyshev(b, _far(b, size, 8), tables.I0_FAR) / b("sqrt", size)
    return b.where(size <= 8, near, far)


def _i1e(b: Builder, x: Value) -> Value:
    size = b("abs", x)
    near = chebyshev(b, size * 0.25 - 1, tables.I1_NEAR) * size
    far = chebyshev(b, _far(b, size, 8), tables.I1_FAR) / b("sqrt", size)
    found = b.where(size <= 8, near, far)
    return b.where(x < 0, -found, found)


def _i0(b: Builder, x: Value) -> Value:
    return b("exp", b("abs", x)) * _i0e(b, x)


def _i1(b: Builder, x: Value) -> Value:
    return b("exp", b("abs", x)) * _i1e(b, x)


def _k0e(b: Builder, x: Value) -> Value:
    """exp(x) K0(x)."""
    near = chebyshev(b, x * x * 0.5 - 1, tables.K0_NEAR) - b("log", x * 0.5) * _i0(b, x)
    far = chebyshev(b, _far(b, x, 2), tables.K0_FAR) / b("sqrt", x)
    return _positive(b, x, b.where(x <= 2, near * b("exp", x), far), math.inf)


def _k1e(b: Builder, x: Value) -> Value:
    """exp(x) K1(x)."""
    near = chebyshev(b, x * x * 0.5 - 1, tables.K1_NEAR) / x + b("log", x * 0.5) * _i1(b, x)
    far = chebyshev(b, _far(b, x, 2), tables.K1_FAR) / b("sqrt", x)
    return _positive(b, x, b.where(x <= 2, near * b("exp", x), far), math.inf)


def _positive(b: Builder, x: Value, value: Value, at_zero: float) -> Value:
    """A function that has a pole at 0 and is not defined below."""
    return _choose(b, (x < 0, math.nan), (x.eq(0), at_zero), otherwise=value)


# ---------------------------------------------------------------------------------------------------------- Bessel functions


def _waves(b: Builder, x: Value, order: int) -> tuple[Value, Value]:
    """J and Y for x > 8: sqrt(2 / (pi x)) (P cos(c) - Q sin(c)) and the like, where c = x - (2 order + 1) pi / 4."""
    y = b.const(128.0, x.dtype) / (x * x) - 1
    p = chebyshev(b, y, tables.P1 if order else tables.P0)
    q = chebyshev(b, y, tables.Q1 if order else tables.Q0) / x
    angle = x - (2 * order + 1) * math.pi / 4
    cos, sin = b("cos", angle), b("sin", angle)
    size = b("sqrt", b.const(2 / math.pi, x.dtype) / x)
    return size * (p * cos - q * sin), size * (p * sin + q * cos)


def _square_place(x: Value) -> Value:
    return x * x * (1 / 32) - 1


def _j0(b: Builder, x: Value) -> Value:
    size = b("abs", x)
    return b.where(size <= 8, chebyshev(b, _square_place(x), tables.J0_NEAR), _waves(b, size, 0)[0])


def _j1(b: Builder, x: Value) -> Value:
    size = b("abs", x)
    far = _waves(b, size, 1)[0]
    return b.where(size <= 8, chebyshev(b, _square_place(x), tables.J1_NEAR) * x, b.where(x < 0, -far, far))


def _y0(b: Builder, x: Value) -> Value:
    near = chebyshev(b, _square_place(x), tables.Y0_NEAR) + b("log", x) * _j0(b, x) * (2 / math.pi)
    return _positive(b, x, b.where(x <= 8, near, _waves(b, x, 0)[1]), -math.inf)


def _y1(b: Builder, x: Value) -> Value:
    pole = b("log", x) * _j1(b, x) - b("reciprocal", x)
    near = chebyshev(b, _square_place(x), tables.Y1_NEAR) * x + pole * (2 / math.pi)
    return _positive(b, x, b.where(x <= 8, near, _waves(b, x, 1)[1]), -math.inf)


def _spherical_j0(b: Builder, x: Value) -> Value:
    """sin(x) / x."""
    return _choose(b, (b("isinf", x), 0.0), (x.eq(0), 1.0), otherwise=b("sin", x) / x)


def _airy_ai(b: Builder, x: Value) -> Value:
    """Abramowitz and Stegun 10.4.59 and 10.4.60 beyond [-4, 2]."""
    size = b("abs", x)
    root = b("sqrt", size)
    zeta = size * root * (2 / 3)
    scale = b("rsqrt", b("sqrt", size)) / math.sqrt(math.pi)
    far = chebyshev(b, _far(b, zeta, 2 / 3 * 2**1.5), tables.AIRY_FAR) * scale * b("exp", -zeta) * 0.5
    start = 2 / 3 * 4**1.5
    y = b.const(2 * start * start, x.dtype) / (zeta * zeta) - 1
    angle = zeta - math.pi / 4
    p, q = chebyshev(b, y, tables.AIRY_P), chebyshev(b, y, tables.AIRY_Q) / zeta
    waves = (p * b("cos", angle) + q * b("sin", angle)) * scale
    middle = chebyshev(b, (x + 1) * (1 / 3), tables.AIRY_MIDDLE)
    found = _choose(b, (x > 2, far), (x < -4, waves), otherwise=middle)
    return _choose(b, (b("isinf", x), math.nan), (x > 103.892, 0.0), otherwise=found)


# ------------------------------------------------------------------------------------------------- the normal distribution


def _erfcx(b: Builder, x: Value) -> Value:
    """exp(x^2) erfc(x), in (x - 3.75) / (x + 3.75) (Shepherd and Laframboise, 1981)."""
    size = b("abs", x)
    right = chebyshev(b, (size - 3.75) / (size + 3.75), tables.ERFCX) / (size * 2 + 1)
    left = b("exp", x * x) * 2 - right
    return _choose(b, (b("isinf", x) & (x > 0), 0.0), (x < -26.7, math.inf), (x < 0, left), otherwise=right)


def _log_normal_cdf(b: Builder, x: Value) -> Value:
    at = x * math.sqrt(0.5)
    tail = b("log", _erfcx(b, -at) * 0.5) - at * at
    return b.where(x < -1, tail, b("log1p", b("erfc", at) * -0.5))


# Giles, 2010: the inverse error function in single precision, in w = -log(1 - y^2), small and large.
_GILES_NEAR = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06, 3.43273939e-07,
    2.81022636e-08,
)  # fmt: skip
_GILES_FAR = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322, 0.000100950558,
    -0.000200214257,
)  # fmt: skip


def _horner(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    total = b.const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _erfinv(b: Builder, y: Value) -> Value:
    """Giles' approximation, or that of a tail beyond its range, then Newton's steps. Near 1 those solve erfc(x) = 1 - y, whose
    sides have all their digits."""
    size = b("abs", y)
    left = 1 - size
    w = -b("log", left * (size + 1))
    x = size * b.where(w < 5, _horner(b, w - 2.5, _GILES_NEAR), _horner(b, b("sqrt", w) - 3, _GILES_FAR))
    x = b.where(w > 16, b("sqrt", w - b("log", w * (math.pi / 4)) * 0.5), x)
    for _ in range(3):
        gap = b.where(size > 0.5, left - b("erfc", x), b("erf", x) - size)
        x = x - gap * b("exp", x * x) * (math.sqrt(math.pi) / 2)
    found = _choose(b, (size > 1, math.nan), (size.eq(1), math.inf), otherwise=x)
    return b.where(b("signbit", y), -found, found)


def _normal_quantile(b: Builder, p: Value) -> Value:
    """By erfinv in the middle; in the tails Newton's method on log of the distribution, which is concave: from the left it only
    climbs."""
    tail = b("minimum", p, 1 - p)
    logarithm = b("log", tail)
    x = -b("sqrt", logarithm * -2)
    for _ in range(5):
        value = _log_normal_cdf(b, x)
        slope = b("exp", x * x * -0.5 - value) * (1 / math.sqrt(2 * math.pi))
        x = x - (value - logarithm) / slope
    outer = b.where(p > 0.5, -x, x)
    inner = _erfinv(b, p * 2 - 1) * math.sqrt(2)
    middle = (p > 0.1) & (p < 0.9)
    inside = b.where(middle, inner, outer)
    cases = (((p < 0) | (p > 1), math.nan), (p.eq(0), -math.inf), (p.eq(1), math.inf))
    return _choose(b, *cases, otherwise=inside)


# ----------------------------------------------------------------------------------------------------------------- digamma


def _digamma(b: Builder, x: Value) -> Value:
    """Shifted to arguments of at least 10, then the asymptotic series; reflected for x < 0."""
    below = x < 0
    at = b.where(below, 1 - x, x)
    shift = b.const(0.0, x.dtype)
    for _ in range(10):
        small = at < 10
        shift = b.where(small, shift - b("reciprocal", at), shift)
        at = b.where(small, at + 1, at)
    z = b("reciprocal", at * at)
    bernoulli = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
    found = b("log", at) - b.const(0.5, x.dtype) / at - z * _horner(b, z, bernoulli) + shift
    angle = (x - b("trunc", x)) * math.pi
    reflected = found - b.const(math.pi, x.dtype) / b("tan", angle)
    whole = below & b("floor", x).eq(x)
    pole = b.where(b("signbit", x), math.inf, b.const(-math.inf, x.dtype))
    infinite = b("isinf", x) & (x > 0)
    return _choose(b, (x.eq(0), pole), (whole, math.nan), (infinite, math.inf), (below, reflected), otherwise=found)


# name, formula, further spellings, sample values
_SPECIAL: tuple[tuple[str, Formula, tuple[str, ...], str], ...] = (
    ("i0e", _i0e, (), "normal"),
    ("i1", _i1, (), "normal"),
    ("i1e", _i1e, (), "normal"),
    ("modified_bessel_i0", _i0, (), "normal"),
    ("modified_bessel_i1", _i1, (), "normal"),
    ("modified_bessel_k0", lambda b, x: _k0e(b, x) * b("exp", -x), (), "positive"),
    ("modified_bessel_k1", lambda b, x: _k1e(b, x) * b("exp", -x), (), "positive"),
    ("scaled_modified_bessel_k0", _k0e, (), "positive"),
    ("scaled_modified_bessel_k1", _k1e, (), "positive"),
    ("bessel_j0", _j0, (), "normal"),
    ("bessel_j1", _j1, (), "normal"),
    ("bessel_y0", _y0, (), "positive"),
    ("bessel_y1", _y1, (), "positive"),
    ("spherical_bessel_j0", _spherical_j0, (), "normal"),
    ("airy_ai", _airy_ai, (), "normal"),
    ("erfcx", _erfcx, (), "normal"),
    ("log_ndtr", _log_normal_cdf, (), "normal"),
    ("ndtri", _normal_quantile, (), "unit"),
)
_KINDS = ("float32", "int64")
_ULPS = dict.fromkeys(
    ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"), 64.0
)  # of which torch's have their share
for _name, _formula, _more, _fill in _SPECIAL:
    _fn = getattr(torch.special, _name)
    _names = (f"torch.special.{_name}", *_more)
    unary(f"special_{_name}", in_double(_formula), "int_to_float", _names, one(_KINDS, _fill), _fn, ulp=_ULPS.get(_name, 16.0))
unary("i0", in_double(_i0), "int_to_float", spelled("i0", "tms"), one((*FLOATS, "int64")), ulp=8.0)
unary("erfinv", in_double(_erfinv), "int_to_float", spelled("erfinv", "tms"), one((*FLOATS, "int64"), "unit"), ulp=8.0)
unary(
    "digamma",
    in_double(_digamma),
    "int_to_float",
    (*spelled("digamma", "tms"), "torch.special.psi"),
    one((*FLOATS, "int64"), "positive"),
    ulp=8.0,
)
