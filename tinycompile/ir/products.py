"""Matrix products in Loops: a sum over the reduction axes of ``left * right``, with what comes before and after in one nest.

A nest is a product when its reductions are such sums, when no axis but the reduced ones and those that both factors walk (a
batch) is in both factors, and when everything that is computed along a reduced axis belongs to one factor. What is made of the
sums (bias, activation, residual) is the nest's epilogue; what is made of an operand before it is multiplied, its prologue. That
of the left operand may reduce its rows first, along the same axes: a norm.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from tinycompile.base import expr as ex
from tinycompile.base.dtypes import NARROW
from tinycompile.ir.loops import Load, Reduce, Scalar, Scan, Statement, Store

# What tensor cores multiply, and the dtype in which a nest states it: narrow values are widened before arithmetic.
WIDENED = {**dict.fromkeys(NARROW, torch.float32), torch.int8: torch.int32}
Spans = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Factor:
    """``value`` is multiplied; ``narrow`` is the same number in the dtype in which it came (see ``WIDENED``)."""

    value: str
    narrow: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Dot:
    """One sum: ``total`` is the name of the value."""

    total: str
    left: Factor
    right: Factor


@dataclass(frozen=True, slots=True)
class Product:
    """``rows``: axes of the left factors alone, ``columns``: of the right ones alone, in the order of ``axes``; the rest of the
    parallel axes pick one product of many. ``left``, ``right``: positions of the statements along the reduced axes, by factor;
    ``first``: of those that these need, computed before the sums; ``norm``: of what reduces the left factor's rows, and what is
    made of that with one element a row; ``after``: of the rest."""

    dots: tuple[Dot, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    first: tuple[int, ...]
    norm: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    after: tuple[int, ...]


def find_product(body: Sequence[Statement], spans: Spans, axes: Sequence[str], reduced: frozenset[str]) -> Product | str:
    """The product that a body is, or why it is none. ``spans``: the axes of each value; ``axes``: the parallel ones, outermost
    in memory first."""
    reader = _Reader(body, spans, reduced)
    dots = reader.dots()
    if isinstance(dots, str):
        return dots
    lefts, rights = ({reader.own(getattr(d, side).value) for d in dots} for side in ("left", "right"))
    if len(lefts) > 1 or len(rights) > 1:
        return "its sums run over rows and columns of different axes"
    one, other = lefts.pop(), rights.pop()
    if axes and axes[-1] in one - other:  # what lies along memory are columns
        dots = [Dot(d.total, d.right, d.left) for d in dots]
        one, other = other, one
    rows = tuple(a for a in axes if a in one - other)
    alone = [a for a in axes if a in other - one]
    columns = tuple(alone[-1:])
    if not rows and not columns:
        return "its results are single sums, without rows or columns"
    batch = tuple(a for a in axes if a not in rows and a not in columns)
    parts = reader.parts(dots)
    return parts if isinstance(parts, str) else Product(tuple(dots), rows, columns, batch, *parts)


class _Reader:
    def __init__(self, body: Sequence[Statement], spans: Spans, reduced: frozenset[str]) -> None:
        self.body, self.spans, self.reduced = body, spans, reduced
        self.made: dict[str, int] = {n: i for i, s in enumerate(body) for n in _names(s)}

    def own(self, value: str) -> frozenset[str]:
        """The parallel axes of a value."""
        return self.spans[value] - self.reduced

    def dots(self) -> list[Dot] | str:
        found: list[Dot] = []
        for i, s in enumerate(self.body):
            if isinstance(s, Store) and (self.spans[s.value] | {y.name for d in s.index for y in ex.symbols(d)}) & self.reduced:
                return "something is stored along the sum"
            if isinstance(s, Scan):
                return "it scans"
            if not isinstance(s, Reduce) or i in self.inner:
                continue
            source = self.body[self.made[s.args[0]]]
            if s.kind != "sum" or not isinstance(source, Scalar) or source.op != "mul" or source.args[0] == source.args[1]:
                return f"{s.names[0]} is no sum of products"
            left, right = (self.factor(a) for a in source.args)
            if left is None or right is None or left.dtype != right.dtype:
                return f"{s.names[0]} multiplies what tensor cores don't"
            if not all(self.spans[f.value] >= self.reduced for f in (left, right)):
                return f"{s.names[0]} has a factor that is the same all along the sum"
            if found and self.own(left.value) != self.own(found[0].left.value):
                left, right = right, left
            found.append(Dot(s.names[0], left, right))
        return found or "it reduces nothing"

    @functools.cached_property
    def inner(self) -> set[int]:
        """The reductions that others wait for: of these are factors made, they are no products."""
        reductions = {i for i, s in enumerate(self.body) if isinstance(s, Reduce)}
        return {i for r in reductions for i in self.needed({self.body[r].args[0]}) & reductions}  # type: ignore[union-attr]

    def factor(self, value: str) -> Factor | None:
        """A factor, seen through the cast that widens it; None for a dtype that is not multiplied."""
        s = self.body[self.made[value]]
        if isinstance(s, Scalar) and s.op == "cast":
            below = self.dtype(s.args[0])
            if WIDENED.get(below) == s.dtype:
                return Factor(value, s.args[0], below)
        dtype = self.dtype(value)
        return Factor(value, value, dtype) if dtype == torch.float32 else None

    def dtype(self, value: str) -> torch.dtype:
        s = self.body[self.made[value]]
        return s.dtypes[0] if isinstance(s, Reduce) else s.dtype  # type: ignore[union-attr]

    def parts(self, dots: Sequence[Dot]) -> tuple[tuple[int, ...], ...] | str:
        """Positions: first, norm, left, right, after."""
        along = {i for i, s in enumerate(self.body) if any(self.spans[n] & self.reduced for n in _names(s))}
        inner = self.inner
        under = self.needed({n for i in inner for n in _names(self.body[i])})
        factors = [{getattr(d, side).narrow for d in dots} for side in ("left", "right")]
        sides = [self.needed(f) for f in factors]
        left, right = (self.needed(f, inner) & along for f in factors)
        sums = {self.made[d.total] for d in dots}
        shown = {self.made[self.body[i].args[0]] for i in sums}  # type: ignore[union-attr]
        skipped = sums | shown | {self.made[f.value] for d in dots for f in (d.left, d.right) if f.value != f.narrow}
        if left & right:
            return "both factors are made of one value along the sum"
        if along - left - right - under - skipped:
            return "something else is computed along the sum"
        if (sides[0] | sides[1]) & self.below(sums):
            return "one sum is a factor of another"
        if sides[1] & inner:
            return "the factor with the columns is made of reductions"
        above = self.below(inner)
        norm = under | ((sides[0] - along) & above)
        first = ((sides[0] | sides[1]) - along) - above
        rest = set(range(len(self.body))) - first - norm - left - right - skipped
        return tuple(tuple(sorted(part)) for part in (first, norm - first, left, right, rest))

    def needed(self, values: set[str], above: Collection[int] = ()) -> set[int]:
        """The statements that some values are made of; those at and under ``above`` left out."""
        found: set[int] = set()
        waiting = [self.made[v] for v in values]
        while waiting:
            at = waiting.pop()
            if at not in found and at not in above:
                found.add(at)
                waiting += [self.made[n] for n in _operands(self.body[at], self.made)]
        return found

    def below(self, roots: set[int]) -> set[int]:
        """The statements that are made of some."""
        found = set(roots)
        for i, s in enumerate(self.body):
            if any(self.made[n] in found for n in _operands(s, self.made)):
                found.add(i)
        return found


def _names(s: Statement) -> tuple[str, ...]:
    names = getattr(s, "names", None)
    return names if names is not None else (s.name,) if hasattr(s, "name") else ()


def _operands(s: Statement, known: Mapping[str, int]) -> list[str]:
    """The values that a statement reads, those of indirect indices too."""
    dims = (*s.index, *s.mask) if isinstance(s, Load) else getattr(s, "index", ())
    if hasattr(s, "expr"):
        dims = (s.expr,)
    through = [y.name for d in dims if not isinstance(d, int) for y in ex.symbols(d) if y.name in known]
    return [*getattr(s, "args", ()), *((s.value,) if isinstance(s, Store) else ()), *through]
