"""Cutting a reduction whose rows don't fit in registers into passes over the row.

Pass k accumulates the reductions whose operands wait for k earlier ones. What a pass needs of row-long values is computed again
in it (loads come from cache the second time); values with one element a row are computed once, between the passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tinycompile.codegen.triton.analysis import Analysis, names_of, uses_of
from tinycompile.ir.loops import Const, Load, Reduce, Statement, Store

Numbered = tuple[int, Statement]


@dataclass(frozen=True, slots=True)
class Pass:
    """``before``: row statements that come first. ``inside``: what runs along the row. ``reduces``: what accumulates."""

    before: tuple[Numbered, ...]
    inside: tuple[Numbered, ...] = ()
    reduces: tuple[Numbered, ...] = ()


def plan_passes(analysis: Analysis, among: Collection[int] | None = None) -> list[Pass]:
    """The passes of a nest, the last one possibly without a loop (row statements after the last reduction). ``among``: of these
    statements alone."""
    along = {a.name for a in analysis.reduction}
    body = range(len(analysis.nest.body)) if among is None else sorted(among)
    statements: list[Numbered] = [(i, s) for i in body if not isinstance(s := analysis.nest.body[i], Const)]
    tile = {i for i, s in statements if not isinstance(s, Reduce) and analysis.axes_at(i) & along}
    depth = {i: _depth(analysis, i, s) for i, s in statements}
    last = max(depth.values(), default=0)
    loaded = {s.buffer for _, s in statements if isinstance(s, Load)}
    for i, s in statements:  # a store to what this nest also reads waits until every pass has read it
        if isinstance(s, Store) and s.buffer in loaded:
            depth[i] = last
    passes: list[Pass] = []
    for k in range(last + 1):
        before: tuple[Numbered, ...] = tuple(
            (i, s) for i, s in statements if depth[i] == k and i not in tile and not isinstance(s, Reduce)
        )
        reduces: tuple[Numbered, ...] = tuple((i, s) for i, s in statements if isinstance(s, Reduce) and depth[i] == k)
        roots: list[Numbered] = [
            *reduces,
            *((i, s) for i, s in statements if isinstance(s, Store) and i in tile and depth[i] == k),
        ]
        passes.append(Pass(before, _needed(analysis, roots, statements, tile), reduces))
    return passes


def _depth(analysis: Analysis, position: int, s: Statement) -> int:
    """How many passes must be complete before the statement can run."""
    uses = uses_of(s, analysis.forms[position])
    return max((analysis.level[u] for u in uses if u in analysis.level), default=0)


def _needed(analysis: Analysis, roots: list[Numbered], statements: list[Numbered], tile: set[int]) -> tuple[Numbered, ...]:
    """The row-long statements that ``roots`` depend on, with the roots, in order."""
    wanted = {i for i, _ in roots}
    names: set[str] = set()
    for i, s in roots:
        names |= uses_of(s, analysis.forms[i])
    for i, s in reversed(statements):
        if i in tile and not isinstance(s, Store) and names & set(names_of(s)):
            wanted.add(i)
            names |= uses_of(s, analysis.forms[i])
    return tuple((i, s) for i, s in statements if i in wanted)
