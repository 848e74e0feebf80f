"""Horizontal fusion: one launch for many small loops that are alike but work on other tensors, of other sizes.

An optimizer's step is one loop a parameter, and a network's running statistics are two a layer. Such nests share nothing that
ordinary fusion could save, but each launch costs as much as moving some megabytes. Nests are *alike* when they differ in their
buffers and in the number of elements alone: each access walks its buffer element by element, or reads one fixed element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import Reach, Step, analyse, defined, may_fail, predecessors
from tinycompile.fuse.order import dependence_order
from tinycompile.ir.loops import Const, Load, Nest, Reduce, Scalar, Scan, Statement, Store
from tinycompile.ir.plan import Decision

MOST_MEMBERS = 32  # tensors of one launch
MOST_POINTERS = 96  # parameters of one kernel: they share 4 kB with everything else


@dataclass(frozen=True, slots=True)
class Together:
    """Nests for one launch, the first of which stands for all."""

    nests: tuple[Nest, ...]


def combine(steps: Sequence[Step], cost: Cost, decisions: list[Decision]) -> list[Step | Together]:
    """The steps in an order in which they can run, with alike nests that nothing keeps apart put together."""
    keys = [_key(s, cost) if isinstance(s, Nest) else None for s in steps]
    if len(set(keys)) == len(keys) - keys.count(None) + (None in keys):  # no two are alike
        return list(steps)
    inputs = {n for n, b in cost.buffers.items() if b.role == "input"}
    before = predecessors(steps, inputs)
    reach = Reach(before)
    members: dict[int, list[int]] = {}
    open_: dict[Any, list[int]] = {}  # by key: the launches that have room
    for i, key in enumerate(keys):
        if key is None:
            continue
        for first in open_.setdefault(key, []):
            apart = not ((reach.below[first] | reach.above[first]) >> i) & 1
            if apart and _has_room([steps[j] for j in (*members[first], i)]):
                members[first].append(i)
                reach.merge(first, i)
                decisions.append(_decision(steps[first], steps[i]))
                break
        else:
            members[i] = [i]
            open_[key].append(i)
    return _ordered(steps, before, members)


def _decision(first: Step, second: Step) -> Decision:
    return Decision(first.name, second.name, True, "horizontal", "they are alike but for their tensors: one launch does both")


def _has_room(nests: Sequence[Step]) -> bool:
    pointers = {s.buffer for n in nests if isinstance(n, Nest) for s in n.body if isinstance(s, (Load, Store))}
    return len(nests) <= MOST_MEMBERS and len(pointers) <= MOST_POINTERS


def _ordered(steps: Sequence[Step], before: Sequence[set[int]], members: dict[int, list[int]]) -> list[Step | Together]:
    """Launches and calls in dependence order, otherwise in program order."""
    home = list(range(len(steps)))
    for first, inside in members.items():
        for i in inside:
            home[i] = first
    needs: dict[int, set[int]] = {h: set() for h in dict.fromkeys(home)}
    for i, earlier in enumerate(before):
        needs[home[i]] |= {home[j] for j in earlier} - {home[i]}
    done: list[Step | Together] = []
    for h in dependence_order(needs):
        nests = tuple(s for s in (steps[i] for i in members.get(h, ())) if isinstance(s, Nest))
        done.append(Together(nests) if len(nests) > 1 else steps[h])
    return done


# --- which nests are alike ---------------------------------------------------------------------------------------------------


def _key(nest: Nest, cost: Cost) -> Any:
    """Equal for nests that are alike; None for one that is to have a launch of its own."""
    if len(nest.axes) > 1 or any(isinstance(s, (Reduce, Scan)) for s in nest.body) or may_fail(nest):
        return None
    if any(not isinstance(a.extent, int) for a in nest.axes) or not _may_wait(nest, cost):
        return None
    values: dict[str, int] = {}
    buffers: dict[str, int] = {}
    found = []
    for s in nest.body:
        part = _statement_key(s, nest, values, buffers, cost)
        if part is None:
            return None
        found.append(part)
        values.update((name, len(values)) for name in defined(s))
    metas = [cost.buffers[b].meta for b in buffers]
    return len(nest.axes), tuple(found), tuple((m.dtype, m.device, is_aligned(m)) for m in metas)


def is_aligned(meta: Any) -> bool:
    """Whether a buffer's first element lies at a multiple of 16 bytes."""
    return ex.divisible_by(meta.offset * meta.dtype.itemsize, 16)


def _may_wait(nest: Nest, cost: Cost) -> bool:
    """Whether running it earlier or later costs nothing: it updates inputs, or moves little."""
    facts = analyse(nest)
    if all(cost.buffers[s.buffer].role == "input" for s in facts.stores):
        return True
    points = cost.points(facts.axes)
    return points * sum(cost.itemsize(a.buffer) for a in (*facts.loads, *facts.stores) if a.axes) <= cost.limits.launch_bytes


def _statement_key(s: Statement, nest: Nest, values: dict[str, int], buffers: dict[str, int], cost: Cost) -> Any:
    if isinstance(s, (Load, Store)):
        place = walked(cost.offset(s.buffer, s.index), nest)
        if place is None or (s.mask if isinstance(s, Load) else s.mode != "plain"):
            return None
        at = buffers.setdefault(s.buffer, len(buffers))
        return ("load", s.dtype, at, place) if isinstance(s, Load) else ("store", values[s.value], at, place)
    if isinstance(s, Scalar):
        return s.op, s.dtype, tuple(values[a] for a in s.args)
    if not isinstance(s, Const) or isinstance(s.value, ex.Expr):
        return None
    return repr(s.value), s.dtype  # repr tells 0.0 from -0.0


def walked(offset: Dim, nest: Nest) -> int | str | None:
    """``"each"`` for an access that goes through its buffer with the axis, a number for one fixed element, else None."""
    if isinstance(offset, int):
        return offset
    symbol = ex.as_sym(offset)
    return "each" if symbol is not None and nest.axes and symbol.name == nest.axes[0].name else None
