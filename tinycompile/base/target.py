"""What code is generated for: a language, an architecture, and the numbers that the cost model reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """``language``: ``triton`` or ``cpp``. ``arch``: ``sm_90``; or the CPU's vector extension (``avx2``, ``avx512``, ``neon``,
    ``generic``). ``units``: SMs or threads. ``l2`` and ``shared`` in bytes (shared: per block). ``vector``: bytes in a SIMD
    register (CPU). ``overlaps``: a kernel is launched while the one before it runs, and waits for it. ``foresees``: the CPU
    reads long stretches ahead itself, and asking for each of their lines keeps it from that.
    """

    language: str
    arch: str
    units: int
    l2: int
    shared: int = 0
    vector: int = 16
    overlaps: bool = False
    foresees: bool = True


H100 = Target("triton", "sm_90", 132, 50 << 20, 227 << 10)
GENERIC = Target("generic", "generic", 1, 1 << 20)  # a device of which nothing is known
A100 = Target("triton", "sm_80", 108, 40 << 20, 163 << 10)
