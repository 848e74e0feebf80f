"""Inlining: pointwise producers that are computed inside the kernels that read them, and so never stored.

Decided from the last nest to the first. A producer whose readers all end in one kernel (its *sink*) goes there, through any
index map; a cheap one goes into several. One with several sinks that is not cheap is left to grouping, which shares the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.fuse.cost import CHEAP_WEIGHT, MAX_INSTANCES, MAX_STATEMENTS, Cost
from tinycompile.fuse.deps import Access, Facts, Step, names_in, reads_of, writes_of
from tinycompile.fuse.weave import Producer, Weaver, identity
from tinycompile.ir.loops import Buffer, Nest
from tinycompile.ir.plan import Decision

Point = tuple[Dim, ...]  # the coordinates of a producer's buffer in terms of its sink's axes


@dataclass
class Inlined:
    """The outcome. ``producers`` by buffer; ``vanish``: those of them that are stored nowhere; ``decisions`` with reasons."""

    producers: dict[str, Producer] = field(default_factory=dict)
    vanish: set[str] = field(default_factory=set)
    decisions: list[Decision] = field(default_factory=list)


@dataclass
class _Uses:
    """Where a step's results are needed: sink -> the points at which each copy is evaluated."""

    sinks: dict[int, set[Point]]
    masked: bool = False


class _Chooser:
    def __init__(self, steps: Sequence[Step], facts: Sequence[Facts | None], kept: frozenset[str], cost: Cost) -> None:
        self.steps, self.facts, self.kept, self.cost = steps, facts, kept, cost
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for i, step in enumerate(steps):
            for name in reads_of(step):
                self.readers.setdefault(name, []).append(i)
            for name in writes_of(step):
                self.writers.setdefault(name, []).append(i)
        self.rows = self.row_results()
        self.uses: dict[int, _Uses] = {}  # of inlined steps
        self.spent: dict[int, float] = {}  # work added to each sink
        self.moved: dict[int, int] = {}  # bytes that each sink moves
        self.sizes = [len(s.body) if isinstance(s, Nest) else 0 for s in steps]
        self.result = Inlined()

    def run(self) -> Inlined:
        for i in range(len(self.steps) - 1, -1, -1):
            step, facts = self.steps[i], self.facts[i]
            if isinstance(step, Nest) and facts is not None:
                self.consider(i, step, facts)
        return self.result

    def row_results(self) -> set[str]:
        """Buffers with one value for each row of some reduction, computed from that reduction's results."""
        found: set[str] = set()
        for facts in self.facts:
            if facts is None:
                continue
            if facts.reduction:
                found.update(a.buffer for a in facts.stores if not a.axes & facts.reduction)
            elif any(a.buffer in found and len(a.axes) == len(facts.axes) for a in facts.loads):
                found.update(a.buffer for a in facts.stores)
        return found

    def consider(self, i: int, nest: Nest, facts: Facts) -> None:
        axes = invertible(facts) if facts.pointwise and len(facts.stores) == 1 else None
        if axes is None:
            return
        buffer = facts.stores[0].buffer
        readers = self.readers.get(buffer, [])
        constant = not facts.loads and facts.weight <= 4 * CHEAP_WEIGHT
        if self.cost.buffers[buffer].role == "input":  # a write, perhaps of a part: the readers see the rest too
            return
        if not readers or len(self.writers[buffer]) != 1 or (buffer in self.kept and not constant):
            return
        if any(self.facts[c] is None for c in readers):  # an extern call needs it in memory
            return
        if any(max(self.writers.get(a.buffer, [-1])) > i for a in facts.loads):
            self.refuse(nest, readers, "overwritten", "what it reads is overwritten later, so it cannot be computed later")
            return
        uses = self.gather(buffer, readers)
        if uses is None:
            self.refuse(nest, readers, "too-many-copies", f"one kernel would compute it at more than {MAX_INSTANCES} places")
        elif uses.masked and facts.faults:
            why = "its integer division, or its check of an index, would run on points that a mask excludes"
            self.refuse(nest, readers, "masked-fault", why)
        elif any(self.device(c) != self.cost.buffers[buffer].meta.device for c in uses.sinks):
            self.refuse(nest, readers, "devices-differ", "its reader is on another device")
        elif buffer in self.rows and any(self.reduced_there(c, points) for c, points in uses.sinks.items()):
            why = "it belongs to the rows of the reduction before it, which the next one reduces over"
            self.refuse(nest, readers, "rows-of-a-reduction", why)
        elif any(self.sizes[c] + len(points) * len(nest.body) > MAX_STATEMENTS for c, points in uses.sinks.items()):
            self.refuse(nest, readers, "too-long", f"the kernel would pass {MAX_STATEMENTS} statements")
        else:
            self.weigh(i, nest, facts, axes, uses, constant)

    def weigh(self, i: int, nest: Nest, facts: Facts, axes: tuple[str | None, ...], uses: _Uses, constant: bool) -> None:
        """Legal: is it worth it?"""
        buffer = facts.stores[0].buffer
        own = self.cost.points(facts.axes)
        written = own * self.cost.itemsize(buffer)
        by_buffer: dict[str, list[Access]] = {}
        for a in facts.loads:
            by_buffer.setdefault(a.buffer, []).append(a)
        read = sum(self.cost.bytes_of(name, accesses, facts.axes) for name, accesses in by_buffer.items())
        extra_reads = max(0, read - written) // max(own, 1)
        several = len(uses.sinks) > 1
        # Something broadcast may come with it; a lone value is not worth a launch, whatever it is made of.
        cheap = facts.weight <= CHEAP_WEIGHT and (own == 1 or read <= written + written // 8)
        readers = self.readers[buffer]
        if several and not constant and not cheap:
            return  # grouping shares the value among its readers where it can
        work = {c: self.extra_work(c, points, own, facts, extra_reads) for c, points in uses.sinks.items()}
        if not constant and self.unhidden(work) > 2 * written + self.cost.limits.launch_bytes:
            evaluated = sum(self.evaluations(c, points) for c, points in uses.sinks.items())
            why = f"{evaluated} evaluations instead of {own} take longer than the {2 * written} bytes that they save"
            self.refuse(nest, readers, "recompute-cost", why)
            return
        for c, amount in work.items():
            self.spent[c] = self.spent.get(c, 0.0) + amount
        self.uses[i] = uses
        for c, points in uses.sinks.items():
            self.sizes[c] += len(points) * len(nest.body)
        self.result.producers[buffer] = Producer(nest, axes)
        if buffer not in self.kept:
            self.result.vanish.add(buffer)
        for c in sorted(uses.sinks):
            why = "it reads no memory" if constant else "it is cheap" if several else "all its readers are in this kernel"
            words = f"{why}; {buffer} is not re-read"
            self.result.decisions.append(Decision(nest.name, self.steps[c].name, True, "inline", words))

    def gather(self, buffer: str, readers: Sequence[int]) -> _Uses | None:
        """All points at which a buffer is read, in the coordinates of the kernels where its readers end."""
        sinks: dict[int, set[Point]] = {}
        masked = False
        for c in readers:
            facts = self.facts[c]
            assert facts is not None
            indices = {a.index for a in facts.loads if a.buffer == buffer}
            masked |= any(a.masked for a in facts.loads if a.buffer == buffer)
            if c not in self.uses:
                sinks.setdefault(c, set()).update(indices)
                continue
            masked |= self.uses[c].masked
            made_at = self.result.producers[facts.stores[0].buffer].axes
            for sink, points in self.uses[c].sinks.items():
                for point in points:
                    dims = {a: d for a, d in zip(made_at, point, strict=True) if a is not None}
                    sinks.setdefault(sink, set()).update(tuple(ex.substitute(d, dims) for d in index) for index in indices)
        if any(len(points) > MAX_INSTANCES for points in sinks.values()):
            return None
        return _Uses(sinks, masked)

    def reduced_there(self, sink: int, points: set[Point]) -> bool:
        """Whether the sink reduces over the producer's own axes."""
        facts = self.facts[sink]
        assert facts is not None
        return any(names_in(d) & facts.reduction for point in points for d in point)

    def extra_work(self, sink: int, points: set[Point], own: int, facts: Facts, extra_reads: int) -> float:
        """What evaluating a producer more often costs, as bytes of traffic that would take as long."""
        extra = max(0, self.evaluations(sink, points) - own)
        return extra * (facts.weight / self.cost.limits.flops_per_byte + extra_reads / 4)

    def unhidden(self, work: Mapping[int, float]) -> float:
        """The part of the work that the sinks' own memory traffic does not hide."""
        return sum(max(0.0, self.spent.get(c, 0.0) + amount - self.traffic(c) / 2) for c, amount in work.items())

    def traffic(self, sink: int) -> int:
        if sink not in self.moved:
            facts = self.facts[sink]
            assert facts is not None
            by_buffer: dict[str, list[Access]] = {}
            for a in (*facts.loads, *facts.stores):
                by_buffer.setdefault(a.buffer, []).append(a)
            self.moved[sink] = sum(self.cost.bytes_of(name, acc, facts.axes) for name, acc in by_buffer.items())
        return self.moved[sink]

    def evaluations(self, sink: int, points: set[Point]) -> int:
        """How often code for the sink evaluates a producer: at every row, and along the reduction axes that its index walks."""
        facts = self.facts[sink]
        assert facts is not None
        total = 0
        for point in points:
            named = frozenset[str]().union(*(names_in(d) for d in point)) if point else frozenset[str]()
            indirect = not named <= set(facts.axes)
            total += self.cost.points(facts.axes, [a for a in facts.axes if indirect or a in named or a in facts.parallel])
        return total

    def device(self, i: int) -> object:
        facts = self.facts[i]
        assert facts is not None
        return self.cost.buffers[facts.stores[0].buffer].meta.device

    def refuse(self, nest: Nest, readers: Sequence[int], rule: str, why: str) -> None:
        self.result.decisions.append(Decision(nest.name, self.steps[readers[0]].name, False, rule, why))


def invertible(facts: Facts) -> tuple[str | None, ...] | None:
    """The axis that each dim of the stored buffer walks, when the store gives every axis a dim of its own; else None."""
    store = facts.stores[0]
    if store.kind != "store":
        return None
    walked: list[str | None] = []
    for d in store.index:
        lone = ex.as_sym(d)
        if lone is not None and lone.name in facts.axes and lone.name not in walked:
            walked.append(lone.name)
        elif d == 0:
            walked.append(None)
        else:
            return None
    return tuple(walked) if set(facts.axes) <= set(walked) else None


def choose(steps: Sequence[Step], facts: Sequence[Facts | None], kept: frozenset[str], cost: Cost) -> Inlined:
    """Decide what to inline. ``facts`` is None at extern calls; ``kept``: buffers that must exist (outputs, arguments)."""
    return _Chooser(steps, facts, kept, cost).run()


def apply(steps: Sequence[Step], inlined: Inlined, buffers: Mapping[str, Buffer], taken: Sequence[str]) -> list[Step]:
    """The steps that are left, with their producers inside them."""
    left: list[Step] = []
    for step in steps:
        if not isinstance(step, Nest):
            left.append(step)
            continue
        stored = writes_of(step)
        if stored and stored <= inlined.vanish:
            continue
        if not any(name in inlined.producers for name in reads_of(step)):
            left.append(step)
            continue
        order = [a.name for a in step.axes]
        weaver = Weaver(buffers, order, inlined.producers, frozenset(inlined.vanish), taken)
        weaver.add(step, identity(step))
        extents = {a.name: a.extent for a in step.axes}
        left.append(weaver.finish(step.name, extents, [*weaver.absorbed, *step.origins]))
    return left
