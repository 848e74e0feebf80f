"""float8 as torch has it, from and to its bits: widened exactly, rounded to nearest even. The hardware's own conversion is not
there before Hopper, and saturates where torch gives infinity or, in some versions, NaN."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def from_float8_e5m2(x):
    """The upper byte of a float16."""
    return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def to_float8_e5m2(x):
    """What passes the largest number is infinite."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    subnormal = (magnitude.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 0x43000000  # rounds to 2**-16
    normal = (magnitude - (112 << 23) + 0xFFFFF + ((magnitude >> 21) & 1)) >> 21
    finite = tl.where(magnitude < 0x38800000, subnormal, normal)
    large = tl.where(magnitude > 0x7F800000, 0x7F, 0x7C)
    return (((bits >> 24) & 0x80) | tl.where(magnitude >= 0x47800000, large, finite)).to(tl.uint8)


@triton.jit
def from_float8_e4m3fn(x):
    """A float16 of the same digits with an exponent that is 8 too small; all ones are NaN."""
    wide = x.to(tl.uint16)
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)


@triton.jit
def to_float8_e4m3fn(x, OVER: tl.constexpr):
    """There are no infinities: what passes 464 is ``OVER``, NaN or the largest number."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    subnormal = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # rounds to 2**-9
    normal = (magnitude - (120 << 23) + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    finite = tl.where(magnitude < 0x3C800000, subnormal, normal)
    large = tl.where(magnitude > 0x7F800000, 0x7F, OVER)
    return (((bits >> 24) & 0x80) | tl.where(magnitude > 0x43E80000, large, finite)).to(tl.uint8)
