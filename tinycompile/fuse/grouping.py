"""Grouping: which nests become one kernel. Greedy, the pair that saves most bytes first; every refusal keeps its reason."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import Facts, Reach, Step, predecessors, reads_of, writes_of
from tinycompile.fuse.legality import Group, Refusal, group_of, merge, shared_reads
from tinycompile.fuse.order import dependence_order
from tinycompile.fuse.weave import Weaver
from tinycompile.ir.loops import ExternCall, Nest
from tinycompile.ir.plan import Decision

ALL_PAIRS = 8  # siblings of a buffer with more readers than this are only tried next to each other


@dataclass
class Grouped:
    """Kernels-to-be and extern calls in an order in which they can run."""

    steps: list[Group | ExternCall]
    vanish: frozenset[str]
    decisions: list[Decision] = field(default_factory=list)


class _Row:
    """The nodes that read one buffer, in program order, as a list in which each knows the next and the one before."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.after: dict[int, int | None] = dict(itertools.zip_longest(nodes, nodes[1:]))
        self.before: dict[int, int | None] = dict(zip(nodes, (None, *nodes), strict=False))

    def near(self, node: int) -> Iterable[int]:
        """The readers that are tried with one: all, or its neighbours where there are many."""
        if len(self.after) <= ALL_PAIRS:
            return self.after
        return [i for i in (self.before[node], self.after[node]) if i is not None]

    def replace(self, old: int, new: int) -> None:
        """``old`` became part of ``new``, which may be here already."""
        before, after = self.before.pop(old), self.after.pop(old)
        if new not in self.after:
            self.before[new], self.after[new] = before, after
            before_that, after_that = new, new
        else:
            before_that, after_that = after, before  # type: ignore[assignment]
        if before is not None:
            self.after[before] = before_that
        if after is not None:
            self.before[after] = after_that


class _Grouping:
    def __init__(self, steps: Sequence[Step], facts: Sequence[Facts | None], kept: frozenset[str], cost: Cost) -> None:
        self.steps, self.kept, self.cost = steps, kept, cost
        inputs = {n for n, b in cost.buffers.items() if b.role == "input"}
        self.before = predecessors(steps, inputs)
        self.reach = Reach(self.before)
        self.nodes: dict[int, Group | ExternCall] = {}
        self.owner = list(range(len(steps)))  # step -> the node that it is part of now
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for i, (step, known) in enumerate(zip(steps, facts, strict=True)):
            self.nodes[i] = step if isinstance(step, ExternCall) else group_of(i, step, _known(known), cost)
            for name in reads_of(step):
                self.readers.setdefault(name, []).append(i)
            for name in writes_of(step):
                self.writers.setdefault(name, []).append(i)
        self.groups_reading = {name: _Row(readers) for name, readers in self.readers.items()}
        self.mutable = frozenset(n for n, w in self.writers.items() if len(w) > 1 or n in inputs)
        self.age = [0] * len(steps)
        self.heap: list[tuple[int, int, int, int, int, int]] = []
        self.refused: dict[tuple[str, str], Decision] = {}
        self.fused: list[Decision] = []

    def run(self) -> Grouped:
        for i in self.nodes:
            self.push_all(i, self.neighbours(i, later_only=True))
        while self.heap:
            _, _, a, b, age_a, age_b = heapq.heappop(self.heap)
            if self.age[a] == age_a and self.age[b] == age_b and a in self.nodes and b in self.nodes:
                self.attempt(a, b)
        fused = {(f.first, f.second) for f in self.fused}
        refused = [d for key, d in self.refused.items() if key not in fused]
        return Grouped(self.ordered(), self.vanished(), [*self.fused, *refused])

    def attempt(self, a: int, b: int) -> None:
        """Merge node ``b`` into node ``a``, or note why not."""
        one, other = self.nodes[a], self.nodes[b]
        assert isinstance(one, Group) and isinstance(other, Group)
        first, second, buffer = self.between(one, other)
        path = self.reach.between(a, b)
        found: Group | Refusal
        if path:
            third = self.name_of((path & -path).bit_length() - 1)
            found = Refusal("cycle", f"{third} lies between them")
        else:
            found = merge(one, other, self.mutable, self.cost)
        if isinstance(found, Refusal):
            self.refused.setdefault((first, second), Decision(first, second, False, found.rule, found.why))
            return
        rule = "producer-consumer" if buffer in one.stores or buffer in other.stores else "siblings"
        self.fused.append(Decision(first, second, True, rule, self.reason(rule, buffer, found)))
        self.nodes[a] = found
        del self.nodes[b]
        self.reach.merge(a, b)
        for m in other.members:
            self.owner[m.position] = a
        for name in other.loads:
            self.groups_reading[name].replace(b, a)
        self.age[a] += 1
        self.push_all(a, self.neighbours(a))

    def reason(self, rule: str, buffer: str, merged: Group) -> str:
        if rule == "siblings":
            return f"both read {buffer}, over the same axes"
        inside = {m.position for m in merged.members}
        gone = buffer not in self.kept and set(self.readers.get(buffer, ())) <= inside
        return f"{buffer} stays in registers" + (" and is never stored" if gone else ", and is also stored")

    # -- pairs -----------------------------------------------------------------------------------------------------

    def neighbours(self, i: int, later_only: bool = False) -> set[int]:
        """Nodes that share a buffer with node ``i``."""
        node = self.nodes[i]
        if not isinstance(node, Group):
            return set()
        found: set[int] = set()
        for name in node.stores:
            found.update(self.owner[r] for r in self.readers.get(name, ()))
        for name in node.loads:
            found.update(self.owner[w] for w in self.writers.get(name, ()))
            found.update(self.groups_reading[name].near(i))
        return {j for j in found if (j > i if later_only else j != i)}

    def push_all(self, i: int, others: Iterable[int]) -> None:
        for j in others:
            one, other = self.nodes[i], self.nodes[j]
            if not isinstance(one, Group) or not isinstance(other, Group):
                continue
            saved = self.saved(one, other)
            if saved > 0:
                a, b = min(i, j), max(i, j)
                heapq.heappush(self.heap, (-saved, b - a, a, b, self.age[a], self.age[b]))

    def saved(self, a: Group, b: Group) -> int:
        """How much one kernel instead of two is worth: the bytes of traffic that it saves."""
        total = shared_reads(a, b, self.cost)
        inside = {m.position for g in (a, b) for m in g.members}
        for one, other in ((a, b), (b, a)):
            for name in {*one.stores} & {*other.loads}:
                size = self.cost.bytes_of(name, other.loads[name], other.axes)
                gone = name not in self.kept and name not in self.mutable and set(self.readers[name]) <= inside
                total += size + (self.cost.bytes_of(name, one.stores[name], one.axes) if gone else 0)
                total += 1  # even an empty buffer is worth a launch
        return total // 2 if self.serialises(a, b) or self.serialises(b, a) else total

    def serialises(self, a: Group, b: Group) -> bool:
        """Whether pointwise work would move to a reduction of few rows: legal, but any other home is better."""
        few = self.cost.limits.enough
        return bool(b.reduction) and not a.reduction and self.cost.points(b.axes, b.parallel) < few < self.cost.points(a.axes)

    def between(self, a: Group, b: Group) -> tuple[str, str, str]:
        """The two nests that the pair is about, earlier first, and the buffer that joins them."""
        for one, other in ((a, b), (b, a)):
            for name in one.stores:
                if name in other.loads:
                    return self.steps[self.writer_in(one, name)].name, self.reader_in(other, name), name
        name = max({*a.loads} & {*b.loads}, key=lambda n: (self.cost.size(self.cost.elements(n)), n))
        first, second = (a, b) if a.first < b.first else (b, a)
        return self.reader_in(first, name), self.reader_in(second, name), name

    def writer_in(self, g: Group, name: str) -> int:
        inside = {m.position for m in g.members}
        return next(w for w in self.writers[name] if w in inside)

    def reader_in(self, g: Group, name: str) -> str:
        return next(m.nest.name for m in g.members if name in m.reads)

    def name_of(self, i: int) -> str:
        node = self.nodes[i]
        return node.name if isinstance(node, ExternCall) else node.members[0].nest.name

    # -- the outcome -----------------------------------------------------------------------------------------------

    def vanished(self) -> frozenset[str]:
        """Temporary buffers whose writer and readers are all in one kernel."""
        gone = set()
        for name, writers in self.writers.items():
            homes = {self.owner[s] for s in (*writers, *self.readers.get(name, ()))}
            plain = name not in self.kept and name not in self.mutable
            if plain and len(homes) == 1 and isinstance(self.nodes[homes.pop()], Group):
                gone.add(name)
        return frozenset(gone)

    def ordered(self) -> list[Group | ExternCall]:
        """The nodes in dependence order, otherwise in program order."""
        needs: dict[int, set[int]] = {i: set() for i in self.nodes}
        for i, before in enumerate(self.before):
            owner = self.owner[i]
            needs[owner] |= {self.owner[j] for j in before} - {owner}
        return [self.nodes[i] for i in dependence_order(needs)]


def _known(facts: Facts | None) -> Facts:
    assert facts is not None
    return facts


def group(steps: Sequence[Step], facts: Sequence[Facts | None], kept: frozenset[str], cost: Cost) -> Grouped:
    """Group the steps. ``facts`` is None at extern calls; ``kept``: buffers that must exist (outputs, extern arguments)."""
    return _Grouping(steps, facts, kept, cost).run()


def weave_group(g: Group, vanish: frozenset[str], cost: Cost, taken: Sequence[str]) -> Nest:
    """The members of a group as one nest."""
    if len(g.members) == 1 and not vanish & {*g.stores}:
        return g.members[0].nest
    order = list(g.axes)
    weaver = Weaver(cost.buffers, order, vanish=vanish, taken=taken)
    for m in g.members:
        weaver.add(m.nest, m.dims)
    origins = [o for m in g.members for o in m.nest.origins]
    return weaver.finish(g.members[-1].nest.name, g.axes, origins)
