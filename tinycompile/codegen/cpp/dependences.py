"""What a statement needs, in which loops it stands, and which reductions must be complete before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from tinycompile.base import expr as ex
from tinycompile.codegen.cpp.analysis import FlatNest, defined, expressions, locate, loops_of, operands
from tinycompile.codegen.cpp.scalars import COST
from tinycompile.ir.loops import Axis, Const, Load, Reduce, Scalar, Statement, Store

DEAR = 8  # the cost of a function that is worth an array to compute it once

Open = frozenset[str]  # names of axes whose loops are open


class Dependences:
    """Statements are named by their place in the body. ``order``: all loops, outermost first. ``has``: whether a value can be
    named at the current point, and so need not be computed there."""

    def __init__(self, flat: FlatNest, order: Sequence[Axis], has: Callable[[str], bool]) -> None:
        self.flat, self.body, self.has = flat, flat.body, has
        axes = frozenset(a.name for a in flat.axes)
        self.at = locate(flat.body, axes)
        self.loops = [loops_of(s, self.at, axes) for s in flat.body]
        self.rank = {a.name: i for i, a in enumerate(order)}
        self._maker = {name: i for i, s in enumerate(flat.body) for name in defined(s)}

    def needs(self, i: int) -> list[int]:
        """The statements whose values statement ``i`` uses, Consts excepted (they are literals)."""
        s = self.body[i]
        names = [*operands(s), *sorted(t.name for d in expressions(s) for t in ex.symbols(d))]
        makers = dict.fromkeys(self._maker[n] for n in names if n in self._maker)
        return [m for m in makers if not isinstance(self.body[m], Const)]

    def known(self, i: int) -> bool:
        """Whether the values of a statement can be named here already."""
        made = defined(self.body[i])
        return bool(made) and all(self.has(n) for n in made)

    def closure(self, roots: Iterable[int]) -> list[int]:
        """The roots and all that must be computed for them here, in program order."""
        return self._reachable(roots, lambda d: True)

    def pass_items(self, roots: Iterable[int], opened: Open, arrays: Collection[str] = ()) -> list[int]:
        """What a loop computes for its roots: back to what lives outside the loop, or completes there, or is read from
        ``arrays``, by the values' names."""

        def inside(d: int) -> bool:
            kept = arrays and not set(defined(self.body[d])).isdisjoint(arrays)
            return not kept and not self.loops[d] <= opened and not self.completes(d, opened)

        return self._reachable(roots, inside)

    def _reachable(self, roots: Iterable[int], inside: Callable[[int], bool]) -> list[int]:
        found: set[int] = set()
        waiting = list(roots)
        while waiting:
            i = waiting.pop()
            if i not in found:
                found.add(i)
                waiting += [d for d in self.needs(i) if not self.known(d) and inside(d)]
        return sorted(found)

    def stages(self, items: Sequence[int], opened: Open) -> dict[int, int]:
        """How many completed reductions lie before each item, one after the other."""
        stage: dict[int, int] = {}
        for i in items:
            before = [d for d in self.needs(i) if d in stage]
            stage[i] = max((stage[d] + self.completes(d, opened) for d in before), default=0)
        return stage

    def completes(self, i: int, opened: Open) -> bool:
        """A reduction whose value is whole at this point, after loops that are still to be opened."""
        s = self.body[i]
        if not isinstance(s, Reduce) or self.loops[i] <= opened or set(s.axes) & opened:
            return False
        return self.at[s.names[0]] <= opened

    def next_axis(self, i: int, opened: Open) -> str:
        """The outermost loop that an item still needs."""
        return min(self.loops[i] - opened, key=self.rank.__getitem__)

    def picks_along(self, s: Statement, axis: Axis | None) -> bool:
        """Whether a statement that may fault does so element by element along an axis: not if its indices are fixed there."""
        if axis is None or not isinstance(s, Load) or s.mask:
            return True
        return any(axis.name in self.at[t.name] for d in s.index[1:] for t in ex.symbols(d) if t.name in self.at)

    def only_useful(self, items: Sequence[int], shared: Sequence[int]) -> list[int]:
        """Without loads and index values that only later loops want: they make them anew. ``shared``: values that are kept."""
        useful = {i for i in items if i in shared or isinstance(self.body[i], (Store, Reduce))}
        for i in reversed(items):
            if i in useful:
                useful |= set(self.needs(i))
        return [i for i in items if i in useful]

    def is_dear(self, i: int, items: Sequence[int]) -> bool:
        """Whether computing item ``i`` from the other ``items`` takes a costly function."""
        waiting = [i]
        while waiting:
            j = waiting.pop()
            s = self.body[j]
            if isinstance(s, Scalar) and COST.get(s.op, 1) >= DEAR:
                return True
            waiting += [d for d in self.needs(j) if d in items]
        return False
