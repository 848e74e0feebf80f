"""Device functions that generated kernels call: ``from tinycompile.codegen.triton.library import tanh``.

Error bounds are in units in the last place (ulp) of float32 against the exact value, on the whole range unless said.
``fast_*`` forms serve kernels whose floating results are all stored as half types: their error (some 1e-5 relative at worst)
vanishes in the rounding of the store.

``LIBDEVICE`` lists what calls NVIDIA's libdevice: float64 forms of what ``tl.math`` lacks, and rare float32 functions. Those do
not run in Triton's interpreter, where NumPy stands in for them (so the interpreter does not check these; the GPU tests do).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import os

import triton
import triton.language as tl

# The functions that go to libdevice, for every float dtype (or only float64: the second tuple).
LIBDEVICE = (
    "pow",
    "fmod",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "erfc",
    "lgamma",
    "log10",
)
LIBDEVICE_FLOAT64 = ("tanh", "log1p", "expm1")

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
if INTERPRETED.value:
    from tinycompile.codegen.triton import numpy_math as libdevice  # kernels import it from here
else:
    from triton.language.extra import libdevice  # type: ignore[no-redef]  # noqa: F401

LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_LO = tl.constexpr(1.925963033500309e-08)  # log2(e) minus its float32 rounding
LN2 = tl.constexpr(0.6931471805599453)
LN2_HI = tl.constexpr(0.693145751953125)  # 16 leading bits: products with small integers are exact
LN2_LO = tl.constexpr(1.4286068203094172e-06)


# instructions ----------------------------------------------------------------------------------------------------------------
#
# ``tl.exp2`` and ``tl.rsqrt`` come by way of libdevice, with which each kernel would be linked for them (a quarter of what a
# small kernel takes to compile), and take denormals for zero (``.ftz``). With denormals an instruction is four of the machine:
# ``flush`` is for where the result can't show them, as in 1 + 2**x.


@triton.jit
def exp2_approx(x, flush: tl.constexpr = False):
    """2**x; 2 ulp (``ex2.approx.f32``). Float64: libdevice's. ``flush``: 0 below 2**-126."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.exp2(x)
    else:
        ptx: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;" if flush else "ex2.approx.f32 $0, $1;"
        return tl.inline_asm_elementwise(ptx, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def rsqrt_approx(x, flush: tl.constexpr = False):
    """1 / sqrt(x); 2 ulp (``rsqrt.approx.f32``). Float64: libdevice's. ``flush``: infinity below 2**-126."""
    if INTERPRETED or x.dtype == tl.float64:
        return tl.rsqrt(x)
    else:
        ptx: tl.constexpr = "rsqrt.approx.ftz.f32 $0, $1;" if flush else "rsqrt.approx.f32 $0, $1;"
        return tl.inline_asm_elementwise(ptx, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


# exponentials --------------------------------------------------------------------------------------------------------------


@triton.jit
def exp(x, flush: tl.constexpr = False):
    """e**x; 2.5 ulp. ``exp2(x * log2(e))`` with the rounding error of the product put back (it would cost 60 ulp near 88).
    Float64: libdevice's. ``flush``: as in ``exp2_approx``."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        t = x * LOG2E
        rest = tl.fma(x, LOG2E_LO, tl.fma(x, LOG2E, -t))
        rest = tl.where(tl.abs(t) < 256.0, rest, 0.0)  # infinities: inf - inf
        return exp2_approx(t, flush) * tl.fma(rest, LN2, 1.0)


@triton.jit
def fast_exp(x):
    """e**x; relative error 2**-22 + |x| * 2**-24."""
    return exp2_approx(x * LOG2E)


@triton.jit
def expm1(x):
    """e**x - 1; 3 ulp. With x = n*ln2 + r: 2**n * expm1(r) + (2**n - 1), expm1(r) Taylor's to r**7, |r| <= 0.35."""
    n = tl.floor(tl.fma(tl.minimum(tl.maximum(x, -60.0), 128.0), LOG2E, 0.5))
    r = tl.fma(-n, LN2_LO, tl.fma(-n, LN2_HI, x))
    p = tl.fma(r, 1.9841270e-04, 1.3888889e-03)
    p = tl.fma(p, r, 8.3333333e-03)
    p = tl.fma(p, r, 4.1666667e-02)
    p = tl.fma(p, r, 1.6666667e-01)
    p = tl.fma(p, r, 0.5)
    p = tl.fma(p * r, r, r)
    half_scale = exp2_approx(n - 1.0, True)  # 2**n may overflow where e**x - 1 does not
    near = 2.0 * tl.fma(half_scale, p, half_scale - 0.5)
    near = tl.where(x > 88.8, float("inf"), tl.where(x < -17.5, -1.0, near))
    return tl.where(x != x, x, tl.where(x == 0.0, x, near))


@triton.jit
def log1p(x):
    """log(1 + x); 5 ulp. log(u) * x / (u - 1) with u = 1 + x rounded: the division undoes the rounding of u (Kahan)."""
    u = 1.0 + x
    d = u - 1.0
    safe = tl.where(d == 0.0, 1.0, d)
    y = tl.log(u) * (x / safe)
    return tl.where(d == 0.0, x, tl.where(u == float("inf"), u, y))


# activations ---------------------------------------------------------------------------------------------------------------


@triton.jit
def sigmoid(x):
    """1 / (1 + e**-x); 6 ulp."""
    root = rsqrt_approx(1.0 + exp(-x, True), True)
    return root * root


@triton.jit
def sigmoid64(x):
    """Float64: 2 ulp."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def fast_sigmoid(x):
    """1 / (1 + e**-x); relative error 2**-20 + |x| * 2**-24."""
    root = rsqrt_approx(1.0 + exp2_approx(x * -LOG2E, True), True)
    return root * root


@triton.jit
def _with_sign(magnitude, x):
    """``magnitude``, which has the sign of ``x`` or none, with that sign."""
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (magnitude.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x):
    """tanh; 3 ulp. Below 0.55 an odd polynomial (minimax of the relative error): the form 1 - 2 / (e**2x + 1) cancels there."""
    z = x * x
    p = tl.fma(z, 1.643757897e-02, -5.267181225e-02)
    p = tl.fma(p, z, 1.332072503e-01)
    p = tl.fma(p, z, -3.333294664e-01)
    small = x * tl.fma(p, z, 1.0)
    root = rsqrt_approx(exp2_approx(tl.abs(x) * (2.0 * LOG2E), True) + 1.0, True)  # its square: a reciprocal in one instruction
    large = tl.fma(-2.0 * root, root, 1.0)
    return tl.where(tl.abs(x) < 0.55, small, _with_sign(large, x))


@triton.jit
def fast_tanh(x):
    """tanh; relative error 2**-14 below 0.2, 2**-19 above."""
    root = rsqrt_approx(exp2_approx(x * (2.0 * LOG2E), True) + 1.0, True)
    return tl.where(tl.abs(x) < 0.2, x * tl.fma(x * x, -0.328078032, 0.9999738336), tl.fma(-2.0 * root, root, 1.0))


@triton.jit
def erf(x):
    """erf; 3 ulp. Below 0.8 an odd polynomial, minimax of the relative error. Above, 1 - 2**q(|x|): the polynomial q is minimax
    for log2(1 - erf) weighted by what its error does to the result, and goes on falling beyond 4, where erf is 1. No branch:
    libdevice's costs a kernel of half types twice the time."""
    z = x * x
    p = tl.fma(z, -6.535302382e-04, 5.085142329e-03)
    p = tl.fma(p, z, -2.682081424e-02)
    p = tl.fma(p, z, 1.128311306e-01)
    p = tl.fma(p, z, -3.761260211e-01)
    small = x * tl.fma(p, z, 1.1283791065216064)
    t = tl.abs(x)
    q = tl.fma(t, -1.0213221896e-05, 1.0260625277e-04)
    q = tl.fma(q, t, -1.1203709437e-04)
    q = tl.fma(q, t, -3.7320761476e-03)
    q = tl.fma(q, t, 3.1930297613e-02)
    q = tl.fma(q, t, -1.5114013851e-01)
    q = tl.fma(q, t, -9.1737492491e-01)
    q = tl.fma(q, t, -1.6280802488)
    return tl.where(t < 0.8, small, _with_sign(1.0 - exp2_approx(q * t, True), x))


@triton.jit
def fast_erf(x):
    """erf; absolute error 2**-22 (1 + erf is as good as with the exact one), relative error 2**-14 below 0.25. The form of
    ``erf`` above 0.8, with a polynomial for the whole range."""
    t = tl.abs(x)
    q = tl.fma(t, -4.5358574426e-05, 4.4550740859e-04)
    q = tl.fma(q, t, -1.4894406777e-03)
    q = tl.fma(q, t, -7.7463133493e-04)
    q = tl.fma(q, t, 2.8253681958e-02)
    q = tl.fma(q, t, -1.4848162233e-01)
    q = tl.fma(q, t, -9.1841638088e-01)
    q = tl.fma(q, t, -1.6279085875)
    large = _with_sign(1.0 - exp2_approx(q * t, True), x)
    return tl.where(t < 0.25, x * tl.fma(x * x, -0.369162112, 1.128324866), large)


# circular functions --------------------------------------------------------------------------------------------------------


@triton.jit
def _pick(word, a, b, c, d):
    """a, b, c or d by ``word`` 0 to 3, as 64-bit."""
    return tl.where(word == 0, a, tl.where(word == 1, b, tl.where(word == 2, c, d))).to(tl.uint64)


@triton.jit
def _quotient_large(x, half):
    """|x|/pi + half/2 modulo 2 in units of 2**-63, for |x| >= 2**18 (Payne, Hanek 1983): the 24-bit significand of x times the
    96 bits of 1/pi that matter for its exponent."""
    bits = x.to(tl.int32, bitcast=True)
    significand = ((bits & 0x7FFFFF) | 0x800000).to(tl.uint64)
    shift = ((bits >> 23) & 255) - 145
    word = shift >> 5
    rest = (shift & 31).to(tl.uint64)
    a = _pick(word, 0x145F306, 0xDC9C882A, 0x53F84EAF, 0xA3EA69BB)
    b = _pick(word, 0xDC9C882A, 0x53F84EAF, 0xA3EA69BB, 0x81B6C52B)
    c = _pick(word, 0x53F84EAF, 0xA3EA69BB, 0x81B6C52B, 0x32788720)
    d = _pick(word, 0xA3EA69BB, 0x81B6C52B, 0x32788720, 0x83FCA2C7)
    high = (((a << 32) | b) << rest) >> 32
    middle = (((b << 32) | c) << rest) >> 32
    low = (((c << 32) | d) << rest) >> 32
    return ((significand * high) << 32) + significand * middle + ((significand * low) >> 32) + (half.to(tl.uint64) << 62)


@triton.jit
def _remainder_large(quotient):
    """The signed distance to the nearest multiple of pi, from a quotient modulo 2, and the parity of that multiple."""
    parity = (quotient + 4611686018427387904) >> 63
    distance = (quotient - (parity << 63)).to(tl.int64, bitcast=True)
    return distance.to(tl.float32) * 3.406121580086554e-19, parity.to(tl.int32)


@triton.jit
def _remainder(x, n):
    """x - n*pi with pi in three parts, each rounded down (so that -0 stays -0); exact enough while n < 2**22."""
    r = tl.fma(n, -3.141592502593994, x)
    r = tl.fma(n, -1.5099578831723193e-07, r)
    return tl.fma(n, -1.0780605906948477e-14, r)


@triton.jit
def _sin_near_zero(r, parity):
    """sin(r) for |r| <= pi/2, negated for odd ``parity``: an odd polynomial, minimax of the relative error."""
    z = r * r
    p = tl.fma(z, 2.603065024e-06, -1.980843136e-04)
    p = tl.fma(p, z, 8.333051156e-03)
    p = tl.fma(p, z, -1.666665900e-01)
    y = r * tl.fma(p, z, 1.0)
    return (y.to(tl.int32, bitcast=True) ^ (parity << 31)).to(tl.float32, bitcast=True)


@triton.jit
def sin_near(x):
    """sin for |x| <= 2.2; 5 ulp (float32). No multiple of pi is taken away: x plus an odd polynomial (minimax of the relative
    error), half of the instructions of ``sin_bounded``. Of -0 that sum is +0."""
    z = x * x
    p = tl.fma(z, -2.277197630e-08, 2.743227014e-06)
    p = tl.fma(p, z, -1.983809780e-04)
    p = tl.fma(p, z, 8.333297446e-03)
    p = tl.fma(p, z, -1.666666567e-01)
    return _with_sign(tl.fma(x * z, p, x), x)


@triton.jit
def sin_bounded(x):
    """sin for |x| < 2**18; 3 ulp (float32)."""
    t = tl.fma(x, 0.3183098861837907, 12582912.0)  # 1.5 * 2**23: the low bits hold the rounded quotient
    return _sin_near_zero(_remainder(x, t - 12582912.0), t.to(tl.int32, bitcast=True))


@triton.jit
def cos_bounded(x):
    """cos for |x| < 2**18; 3 ulp (float32). cos(x) = sin(x + pi/2), the half kept in the quotient."""
    t = tl.fma(tl.abs(x), 0.3183098861837907, 0.5) + 12582912.0
    return _sin_near_zero(_remainder(tl.abs(x), t - 12582912.0 - 0.5), t.to(tl.int32, bitcast=True))


@triton.jit
def _circular_far(x, near, half):
    """sin (``half`` 0) or cos (1) of arguments beyond 2**18, ``near`` elsewhere."""
    far = (tl.abs(x) >= 262144.0) & (tl.abs(x) < float("inf"))
    r, parity = _remainder_large(_quotient_large(x, half))
    r = tl.where((half == 0) & (x < 0.0), -r, r)
    return tl.where(far, _sin_near_zero(r, parity), near)


@triton.jit
def sin(x):
    """sin; 3 ulp (float32). The long reduction runs only in blocks that hold an argument beyond 2**18."""
    y = sin_bounded(x)
    if tl.max(tl.abs(x)) >= 262144.0:
        y = _circular_far(x, y, tl.full([], 0, tl.int32))
    return y


@triton.jit
def cos(x):
    """cos; 3 ulp (float32). The long reduction runs only in blocks that hold an argument beyond 2**18."""
    y = cos_bounded(x)
    if tl.max(tl.abs(x)) >= 262144.0:
        y = _circular_far(x, y, tl.full([], 1, tl.int32))
    return y


# rounding ------------------------------------------------------------------------------------------------------------------


@triton.jit
def trunc(x):
    """Towards zero; exact."""
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))


@triton.jit
def round_even(x):
    """To the nearest integer, halves to even; exact, keeps the sign of zero."""
    low = tl.floor(x)
    part = x - low
    odd = low - 2.0 * tl.floor(low * 0.5) != 0.0
    near = tl.where((part > 0.5) | ((part == 0.5) & odd), low + 1.0, low)
    return tl.where(near == 0.0, x * 0.0, near)


# integers ------------------------------------------------------------------------------------------------------------------


@triton.jit
def floor_divide(a, b):
    """Integer a / b towards minus infinity (Triton's ``//`` truncates)."""
    q = a // b
    r = a - q * b
    return q - ((r != 0) & ((r < 0) != (b < 0))).to(q.dtype)


@triton.jit
def floor_mod(a, b):
    """Integer remainder with the sign of ``b`` (Triton's ``%`` has that of ``a``)."""
    r = a % b
    return r + tl.where((r != 0) & ((r < 0) != (b < 0)), b, r - r)


# comparisons ---------------------------------------------------------------------------------------------------------------


@triton.jit
def maximum(a, b):
    """The larger; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller; NaN if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    """The product, as a combine function."""
    return a * b


@triton.jit
def add(a, b):
    """The sum, as a combine function."""
    return a + b


@triton.jit
def either(a, b):
    """Bitwise or, as a combine function."""
    return a | b


@triton.jit
def both(a, b):
    """Bitwise and, as a combine function."""
    return a & b


# random bits ---------------------------------------------------------------------------------------------------------------


@triton.jit
def philox(seed, counter):
    """32 random bits, as int64: word 0 of Philox4x32-10's block number ``counter`` under the key ``seed``, both int64 (Salmon
    et al., 2011)."""
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c2 = c0 ^ c0
    c3 = c2
    for _ in tl.static_range(10):
        high_a, low_a = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high_b, low_b = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0.to(tl.int64)
