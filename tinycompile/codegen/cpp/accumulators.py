"""How reductions accumulate: per kind and dtype, what to start from, how to take in a value, how partial results join.

A sum of float32 along the lane runs in float64: the error doesn't depend on its length, and a conversion serves four values. A
long sum of columns (or of float64) has two levels: a part in its own precision over a few dozen additions a lane, then a total
in float64, or of float64 in ``tc::Sum``, which takes in the values too where they come one by one. So the error of a long sum
stays that of a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinycompile.base.errors import BackendError
from tinycompile.base.expr import Dim
from tinycompile.codegen.cpp.scalars import C_TYPES, c_const
from tinycompile.ir.loops import Reduce, Scan

ADDITIONS = 64  # of a part before it goes into the total, in each of its accumulators


@dataclass(frozen=True, slots=True)
class Combine:
    """``join``: C++ of two values ``{a}`` and ``{b}``. ``clause``: the name in OpenMP's ``reduction(...)``."""

    start: str
    join: str
    clause: str


def combine(kind: str, dtype: torch.dtype) -> Combine:
    """The operation of a reduction or scan ``kind`` on ``dtype``."""
    if kind in ("any", "all") or dtype == torch.bool:
        one = kind in ("any", "max")
        return Combine("false", "{a} | {b}", "|") if one else Combine("true", "{a} & {b}", "&")
    if kind in ("max", "min"):
        return _extreme(kind, dtype)
    if kind == "sum":
        join = "{a} + {b}" if dtype.is_floating_point else "tc::add({a}, {b})"
        return Combine(c_const(0, dtype), join, "+")
    if kind == "prod":
        join = "{a} * {b}" if dtype.is_floating_point else "tc::mul({a}, {b})"
        return Combine(c_const(1, dtype), join, "*")
    raise BackendError(f"no C++ for a reduction of kind {kind}")


def _extreme(kind: str, dtype: torch.dtype) -> Combine:
    word = "maximum" if kind == "max" else "minimum"
    join = f"tc::{word}({{b}}, {{a}})"
    if dtype.is_floating_point:
        return Combine(c_const(float("-inf") if kind == "max" else float("inf"), dtype), join, word)
    info = torch.iinfo(dtype)
    return Combine(c_const(info.min if kind == "max" else info.max, dtype), join, kind)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One reduction under way. ``total`` outlives all loops of the reduction; ``part`` takes in values: the same variable, or
    the first level of a sum whose ``total`` is wider. ``lanes``: both are arrays along the lane. ``alone``: values come one
    by one, in no vector. ``holds``: ``part`` is a place that holds a value until others are there, too."""

    reduce: Reduce
    total: str
    part: str
    lanes: bool
    alone: bool = False
    holds: bool = False

    @property
    def two_levels(self) -> bool:
        """Whether part and total differ."""
        return self.part != self.total

    @property
    def dtype(self) -> torch.dtype:
        """What the reduction's value is."""
        return self.reduce.dtypes[0]

    @property
    def combine(self) -> Combine:
        """Its operation."""
        return combine(self.reduce.kind, self.dtype)

    @property
    def part_type(self) -> str:
        """Bools accumulate as int, for vectors of bools are slow; products in float64, whose range holds what comes between."""
        if self.dtype == torch.bool:
            return "int"
        if self.alone and self.two_levels:
            return self.total_type
        return "double" if is_wide(self.reduce, self.lanes) else C_TYPES[self.dtype]

    @property
    def in_vectors(self) -> bool:
        """Whether OpenMP can share the part among a vector's elements."""
        return self.part_type != "tc::Sum"

    @property
    def total_type(self) -> str:
        """More exact above the first level of a sum."""
        if not self.two_levels:
            return self.part_type
        return "tc::Sum" if self.dtype == torch.float64 and not self.lanes else "double"

    def update(self, place: str, value: str) -> str:
        """Take in a value."""
        variable = self.part + place
        if self.holds:
            return f"{variable} = {value};"
        return f"{variable} = {self.combine.join.format(a=variable, b=value)};"

    def join_total(self, target: str, value: str) -> str:
        """Join a partial total (another thread's) into ``target``."""
        return f"{target} = {self.combine.join.format(a=target, b=value)};"

    def flush(self, place: str) -> str:
        """Add the part to the total."""
        return f"{self.total}{place} += {self.part}{place};"

    def result(self, place: str) -> str:
        """The finished value, as an expression."""
        return result_text(self.total + place, self.total_type, self.dtype)


def result_text(variable: str, kind: str, dtype: torch.dtype) -> str:
    """``variable`` of the C++ type ``kind`` as a value of ``dtype``."""
    return variable if kind == C_TYPES[dtype] else f"({C_TYPES[dtype]}){variable}"


def is_wide(reduce: Reduce, lanes: bool) -> bool:
    """Whether float32 accumulates in float64 from the first value on: products, and sums whose lanes are added up."""
    return reduce.dtypes[0] == torch.float32 and (reduce.kind == "prod" or (reduce.kind == "sum" and not lanes))


def has_own_type(reduce: Reduce, lanes: bool) -> bool:
    """Whether the accumulator has the type of the result, and so can be named as it."""
    return reduce.dtypes[0] != torch.bool and not is_wide(reduce, lanes)


def needs_two_levels(reduce: Reduce, lanes: bool) -> bool:
    """Long sums of floats do, if nothing wider takes them in."""
    return reduce.kind == "sum" and reduce.dtypes[0].is_floating_point and not is_wide(reduce, lanes)


def part_length(step: int, extent: Dim, parts: Sequence[Accumulator]) -> int:
    """How many values make a part, if ``step`` of them are ``ADDITIONS`` additions: more where nothing wider adds up the parts,
    so that there are about as many parts as additions in one. Then the error grows with the square root of ``extent``."""
    additions = ADDITIONS
    if all(a.part_type == a.total_type == "double" for a in parts) and isinstance(extent, int):
        while additions < extent // step:
            step, additions = 2 * step, 2 * additions
    return step


def scan_state(scan: Scan) -> tuple[str, str, str]:
    """The type, start and joining expression of a scan's running value; float32 sums run in float64."""
    dtype = scan.dtypes[0]
    op = combine(scan.kind, dtype)
    wide = scan.kind in ("sum", "prod") and dtype == torch.float32
    return ("double" if wide else C_TYPES[dtype]), op.start, op.join
