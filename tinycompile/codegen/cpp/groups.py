"""Reductions along a row with as many accumulators as a group of elements has places: with one, each vector waits for the last,
and its lanes are joined one after the other. Where float64 takes in float32, four of them are added up before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tinycompile.codegen.cpp.accumulators import Accumulator
from tinycompile.codegen.cpp.names import Names
from tinycompile.codegen.cpp.schedule import Schedule
from tinycompile.codegen.cpp.statements import Statements
from tinycompile.codegen.writer import Writer
from tinycompile.ir.loops import Axis, Statement

LONG_ROW = 8  # groups from which on it pays to join them in the end
FIRST = 4  # float32 values that are added up before float64 takes them in: one conversion for all


def can_group(row: Axis, plan: Schedule, items: Sequence[Statement], text: Statements) -> bool:
    """Whether a loop along ``row`` that holds ``items`` goes in groups: it is long, and no index is checked."""
    long = not isinstance(row.extent, int) or row.extent >= LONG_ROW * plan.group
    return long and not any(text.may_fault(s) for s in items)


@dataclass(frozen=True, slots=True)
class Group:
    """The accumulators ``array`` of the reduction ``one``, which takes them in. ``values``: the array that holds a group of
    ``size`` elements until four by four go into the accumulators; empty where each has its own."""

    one: Accumulator
    array: str
    size: int
    values: str = ""

    @property
    def count(self) -> int:
        """How many accumulators."""
        return self.size // FIRST if self.values else self.size

    @property
    def declaration(self) -> str:
        """The arrays, and the start."""
        kind = self.one.part_type
        held = f"float {self.values}[{self.size}]; " if self.values else ""
        return f"{held}{kind} {self.array}[{self.count}]; for ({kind}& place : {self.array}) place = {self.one.combine.start};"

    @property
    def joined(self) -> str:
        """All places go into the one."""
        join = self.one.combine.join
        folded = f"tc::fold<{self.count}>({self.array}, [](auto a, auto b) {{ return {join.format(a='a', b='b')}; }})"
        return f"{self.one.part} = {join.format(a=self.one.part, b=folded)};"

    def at(self, place: str) -> Accumulator:
        """The accumulator at a place."""
        return replace(self.one, part=(self.values or self.array) + place, holds=bool(self.values))


def group_of(one: Accumulator, size: int, names: Names) -> Group:
    """The group of a reduction under way."""
    held = one.reduce.kind == "sum" and one.dtype == torch.float32 and one.part_type == "double"
    return Group(one, names.fresh(f"{one.part}_group"), size, names.fresh(f"{one.part}_values") if held else "")


@contextlib.contextmanager
def group_loops(
    out: Writer, names: Names, name: str, groups: Sequence[Group], begin: str, whole: str, ahead: Callable[[str], Iterable[str]]
) -> Iterator[str]:
    """Open the loops over ``name`` from ``begin`` to ``whole``, in groups; yields the subscript of a place. ``ahead``: lines
    for each group, given where it begins."""
    first, size = names.fresh(f"{name}_first"), groups[0].size
    for g in groups:
        out.line(g.declaration)
    with out.block(f"for (int64_t {first} = {begin}; {first} < {whole}; {first} += {size}) {{", "}"):
        for line in ahead(first):
            out.line(line)
        out.line("#pragma omp simd")
        with out.block(f"for (int64_t {name} = {first}; {name} < {first} + {size}; ++{name}) {{", "}"):
            yield f"[{name} - {first}]"
        for g in (g for g in groups if g.values):
            out.line(f"tc::add_fours<{size}>({g.array}, {g.values});")
    for g in groups:
        out.line(g.joined)
