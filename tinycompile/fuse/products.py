"""Matrix products that one generated kernel does, with the kernel behind them where there is one.

A library call whose loops are known (``ExternCall.body``), or several that one kernel reads, are woven with that kernel as a
reduction is with its epilogue. It is offered beside the library: which of the two is faster is measured on the card, at the
first call (``runtime/contest.py``). What is not offered keeps its reason.

Products of few rows of halves are generated in any case, an epilogue or none: a library's call takes the host two to four times
a launch, longer than the card takes to read what it multiplies. On an H200 they were not slower on the card, either
(``docs/results/h200/skinny.md``). What makes their left operand goes into them too (``fuse/prologues.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tinycompile.base.expr import Dim
from tinycompile.fuse.coalesce import coalesce
from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import analyse, may_fail, reads_of, value_axes, writes_of
from tinycompile.fuse.grouping import weave_group
from tinycompile.fuse.legality import Group, Refusal, group_of, merge
from tinycompile.fuse.product_groups import together
from tinycompile.fuse.prologues import Prologue, folded, prologue_of
from tinycompile.ir.loops import ExternCall, Nest, Reduce, Scan, Store
from tinycompile.ir.plan import Choice, Decision, Kernel
from tinycompile.ir.products import Product, find_product

MOST_DOTS = 2  # sums that a program keeps: more leave too small a tile for each
MOST_BYTES = 32 << 20  # what a product multiplies that is generated in any case
MOST_BEHIND_ROWS = 9 << 20  # the same, of one that makes its rows first: all that while it reads no weights
RULE = "product"
CONTEST = "one kernel is timed beside the library call at the first call, and used where it is faster"
FEW_ROWS = "few rows of halves: launching a kernel costs less than the library's call"
AGAIN = "few rows: each program makes them again, which takes less than a kernel of their own"
HALVES = (torch.bfloat16, torch.float16)
Step = Kernel | ExternCall


@dataclass(frozen=True, slots=True)
class Offer:
    """Calls and the kernel that reads their results, by position in the program."""

    calls: tuple[int, ...]
    kernel: int
    choice: Choice


def choose(
    steps: Sequence[Step],
    woven: Mapping[str, Nest],
    kept: frozenset[str],
    cost: Cost,
    taken: Iterable[str],
    decisions: list[Decision],
    contests: bool,
) -> list[Step | Choice]:
    """The program with kernels in place of small calls and, with ``contests``, choices in place of what they stand for.
    ``woven``: kernels' nests over the axes of their tensors, before these were merged; ``kept``: buffers that are seen from
    outside."""
    return _Offers(steps, woven, kept, cost, tuple(taken), decisions, contests).run()


class _Offers:
    def __init__(
        self,
        steps: Sequence[Step],
        woven: Mapping[str, Nest],
        kept: frozenset[str],
        cost: Cost,
        taken: tuple[str, ...],
        decisions: list[Decision],
        contests: bool,
    ) -> None:
        self.steps, self.woven = list(steps), dict(woven)
        self.kept, self.cost, self.taken, self.decisions = kept, cost, taken, decisions
        self.contests = contests
        self.reads = [_reads(s) for s in steps]
        self.writes = [_writes(s) for s in steps]
        self.readers = self.find_readers()
        self.calls = {
            s.outputs[0]: i for i, s in enumerate(steps) if isinstance(s, ExternCall) and s.body and s.outputs[0] is not None
        }
        self.prologues: dict[str, Prologue] = {}
        self.made: dict[tuple[int | str, ...], Choice | str] = {}

    def run(self) -> list[Step | Choice]:
        for i, step in enumerate(self.steps):
            if isinstance(step, Kernel):
                self.fold(i, step)
        replaced: dict[int, Step | Choice] = {}
        gone = {p.position for p in self.prologues.values() if p.rest is None}
        for j, step in enumerate(self.steps):
            found = self.at(j, step, gone) if isinstance(step, Kernel) and j not in gone else None
            if found is not None:
                replaced[j] = found.choice if self.contests else found.choice.product
                gone.update(found.calls)
        for i, call in enumerate(self.steps):
            if isinstance(call, ExternCall) and i not in gone and (kernel := self.alone(call)) is not None:
                replaced[i] = kernel
        steps = [replaced.get(i, s) for i, s in enumerate(self.steps) if i not in gone]
        return together(steps, {n: b.meta for n, b in self.cost.buffers.items()}, _touched, self.decisions)

    def fold(self, i: int, kernel: Kernel) -> None:
        """Let the products that read what a kernel makes make it themselves, where that pays and all of them can."""
        nest = self.woven.get(kernel.nest.name)
        if nest is None or kernel.more:
            return
        for buffer in kernel.writes:
            calls = self.products_alone(buffer)
            if not calls or self.behind(i, kernel):
                continue
            found = prologue_of(i, nest, buffer, self.cost)
            if found is not None and all(self.takes(c, found) for c in calls) and self.parts(i, kernel, found, calls):
                self.prologues[buffer] = found
                self.decisions += [Decision(kernel.nest.name, c.name, True, RULE, AGAIN) for c in calls]
                return

    def products_alone(self, buffer: str) -> list[ExternCall]:
        """The calls that read a buffer, where these are products that may make their rows and nobody else sees it."""
        readers = self.readers.get(buffer, [])
        if buffer in self.kept or not {*readers} <= {*self.calls.values()}:
            return []
        calls = [c for c in (self.steps[r] for r in readers) if isinstance(c, ExternCall) and c.body is not None]
        return calls if all(makes_its_rows(c.body, self.cost) for c in calls if c.body is not None) else []

    def behind(self, i: int, kernel: Kernel) -> bool:
        """Whether a kernel can go into the products before it, which is better: there it is done once."""
        calls = sorted({self.calls[n] for n in kernel.reads if n in self.calls})
        made = self.combined(calls, i, kernel) if calls else ""
        return not isinstance(made, str) and (self.contests or is_skinny(made.product.nest, self.cost))

    def takes(self, call: ExternCall, prologue: Prologue) -> bool:
        """Whether a product can make its left operand."""
        assert call.body is not None and call.outputs[0] is not None
        if self.contests and any(isinstance(self.steps[r], Kernel) for r in self.readers.get(call.outputs[0], [])):
            return False
        body = folded(call.body, {**self.prologues, prologue.buffer: prologue}, self.cost, self.taken)
        if body is None or not makes_its_rows(coalesce(body, self.cost), self.cost):
            return False
        return not self.overwritten(prologue, self.position(call))

    def overwritten(self, prologue: Prologue, at: int) -> bool:
        """Whether what a prologue reads is written to before a step, or by it."""
        return any(self.writes[i] & prologue.reads for i in range(prologue.position + 1, at + 1))

    def parts(self, i: int, kernel: Kernel, prologue: Prologue, calls: Sequence[ExternCall]) -> bool:
        """Take a prologue out of its kernel, if what is left goes into the product before it."""
        name, before = kernel.nest.name, (self.steps[i], dict(self.woven), list(self.reads), list(self.writes))
        for c in calls:
            self.reads[self.position(c)] = self.reads[self.position(c)] - {prologue.buffer} | prologue.reads
        if prologue.rest is None:
            self.reads[i] = self.writes[i] = frozenset()
            self.readers = self.find_readers()
            return True
        rest = replace(self.kernel_of(coalesce(replace(prologue.rest, name=name), self.cost), 0), why=kernel.why)
        self.steps[i], self.reads[i], self.writes[i], self.woven[name] = rest, _reads(rest), _writes(rest), prologue.rest
        self.readers = self.find_readers()
        if not self.contests and self.behind(i, rest):
            return True
        self.steps[i], self.woven, self.reads, self.writes = before
        self.readers = self.find_readers()
        return False

    def find_readers(self) -> dict[str, list[int]]:
        """By buffer, the positions of the steps that read it."""
        found: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            for name in names:
                found.setdefault(name, []).append(i)
        return found

    def position(self, call: ExternCall) -> int:
        """Where a product is in the program."""
        assert call.outputs[0] is not None
        return self.calls[call.outputs[0]]

    def alone(self, call: ExternCall) -> Kernel | None:
        """A kernel for a small call, without what is behind it."""
        if call.body is None or call.outputs[0] is None:
            return None
        body = folded(call.body, self.prologues, self.cost, self.taken)
        assert body is not None, "a prologue was taken that does not fit"
        nest = coalesce(replace(body, name=f"{call.name}_product", origins=self.origins([call])), self.cost)
        if not is_skinny(nest, self.cost):
            return None
        self.decisions.append(Decision(call.name, nest.name, True, RULE, FEW_ROWS))
        return replace(self.kernel_of(nest, 0), product=True, why=FEW_ROWS)

    def at(self, j: int, kernel: Kernel, gone: set[int]) -> Offer | None:
        """What can be offered in place of a kernel and the products that it reads."""
        calls = sorted({self.calls[n] for n in kernel.reads if n in self.calls} - gone)
        if not calls:
            return None
        made = self.combined(calls, j, kernel)
        first = self.steps[calls[0]]
        assert isinstance(first, ExternCall)
        if isinstance(made, str):
            if self.contests:
                self.decisions.append(Decision(first.name, kernel.nest.name, False, RULE, made))
            return None
        if not self.contests:
            if not is_skinny(made.product.nest, self.cost):
                return None
            made = replace(made, product=replace(made.product, product=True, why=FEW_ROWS))
        why = CONTEST if self.contests else FEW_ROWS
        self.decisions.append(Decision(first.name, kernel.nest.name, True, RULE, why))
        return Offer(tuple(calls), j, made)

    def combined(self, calls: Sequence[int], j: int, kernel: Kernel) -> Choice | str:
        """The choice, or why there is none. Asked for twice: what comes before a kernel is decided when it is first asked."""
        key: tuple[int | str, ...] = (*calls, j, *kernel.writes)
        if key not in self.made:
            self.made[key] = self.combine(calls, j, kernel)
        return self.made[key]

    def combine(self, calls: Sequence[int], j: int, kernel: Kernel) -> Choice | str:
        refusal = self.refusal(calls, j, kernel)
        if refusal is not None:
            return refusal
        externs = [s for s in (self.steps[i] for i in calls) if isinstance(s, ExternCall)]
        bodies = [e.body for e in externs if e.body is not None]
        group: Group | Refusal = self.group(j, self.woven[kernel.nest.name])
        for at, nest in reversed([*zip(calls, bodies, strict=True)]):  # the reader first: what it joins need share nothing else
            assert isinstance(group, Group)
            group = merge(self.group(at, nest), group, frozenset(), self.cost)
            if isinstance(group, Refusal):
                return group.why
        made = {e.outputs[0] for e in externs if e.outputs[0] is not None}
        lasting = tuple(n for n in made if n in self.kept or self.readers[n] != [j])
        assert isinstance(group, Group)
        woven = weave_group(group, frozenset(made - set(lasting)), self.cost, self.taken)
        body = folded(woven, self.prologues, self.cost, self.taken)
        if body is None:
            return "the rows of its left operand are not what it sums over"
        nest = replace(coalesce(body, self.cost), name=f"{kernel.nest.name}_product", origins=self.origins(externs, kernel))
        found = find(nest)
        if isinstance(found, str):
            return found
        return Choice(nest.name, self.kernel_of(nest, kernel.flops), (*externs, kernel), lasting)

    def group(self, position: int, nest: Nest) -> Group:
        return group_of(position, nest, analyse(nest), self.cost)

    def origins(self, externs: Sequence[ExternCall], kernel: Kernel | None = None) -> tuple[str, ...]:
        made = {n for e in externs for n in _reads(e)}
        before = [o for b, p in self.prologues.items() if b in made for o in p.producer.nest.origins]
        behind = kernel.nest.origins if kernel is not None else ()
        return tuple(dict.fromkeys((*before, *(o for e in externs for o in e.origins), *behind)))

    def kernel_of(self, nest: Nest, epilogue: Dim) -> Kernel:
        """As a kernel: what it touches, counted once. ``epilogue``: operations behind the sums."""
        facts = analyse(nest)
        reads = tuple(dict.fromkeys(a.buffer for a in facts.loads))
        writes = tuple(dict.fromkeys(a.buffer for a in facts.stores))
        moved: Dim = 0
        for accesses in (facts.loads, facts.stores):
            for name in dict.fromkeys(a.buffer for a in accesses):
                here = [a for a in accesses if a.buffer == name]
                moved = moved + self.cost.touched(name, here, facts.axes) * self.cost.itemsize(name)
        points: Dim = 1
        for extent in facts.axes.values():
            points = points * extent
        found = find(nest)
        sums = len(found.dots) if isinstance(found, Product) else 0
        return Kernel(nest, reads, writes, moved, points * 2 * sums + epilogue, "offered beside the library")

    def refusal(self, calls: Sequence[int], j: int, kernel: Kernel) -> str | None:
        """Why a kernel can't take part."""
        body = kernel.nest.body
        inputs = {n for n, b in self.cost.buffers.items() if b.role == "input"}
        if kernel.more or kernel.nest.name not in self.woven or any(isinstance(s, (Reduce, Scan)) for s in body):
            return "the kernel that reads its result also reduces, or does other work in one launch"
        if len(calls) > MOST_DOTS:
            return f"more than {MOST_DOTS} sums at once leave too small a tile for each"
        if may_fail(kernel.nest) or set(kernel.writes) & (inputs | set(kernel.reads)):
            return "it can't be run again to be timed: it writes what it reads, or may fail"
        if any(isinstance(s, Store) and s.mode != "plain" for s in body):
            return "it can't be run again to be timed: it adds to memory"
        between = range(calls[0] + 1, j)
        given = frozenset().union(*(self.reads[i] for i in calls))
        if any(self.writes[i] & given for i in between if i not in calls):
            return "something in between writes to its operands"
        made = frozenset().union(*(self.writes[i] for i in calls))
        if any(self.reads[i] & made for i in between):
            return "something in between reads its result"
        if any(self.overwritten(p, j) for b, p in self.prologues.items() if b in given):
            return "what its left operand is made of is overwritten"
        return None


def find(nest: Nest) -> Product | str:
    """The product that a nest is, or why it is none."""
    reduced = frozenset(a.name for a in nest.axes if a.kind != "parallel")
    axes = [a.name for a in nest.axes if a.kind == "parallel"]
    return find_product(nest.body, value_axes(nest), axes, reduced)


def is_skinny(nest: Nest, cost: Cost) -> bool:
    """Whether a product has few rows of halves and little to read."""
    return _within(nest, cost, cost.limits.product_rows, MOST_BYTES)


def makes_its_rows(nest: Nest, cost: Cost) -> bool:
    """The same, so few and so little that its programs may make the rows."""
    return _within(nest, cost, cost.limits.prologue_rows, MOST_BEHIND_ROWS)


def _within(nest: Nest, cost: Cost, most: int, most_bytes: int) -> bool:
    """Whether a product of halves has that few rows and reads that little, all of it known: where sizes change, rows may be
    many."""
    found, axes = find(nest), {a.name: a.extent for a in nest.axes}
    if isinstance(found, str) or found.batch or not all(isinstance(extent, int) for extent in axes.values()):
        return False
    if any(f.dtype not in HALVES for d in found.dots for f in (d.left, d.right)):
        return False
    reduced = [a.name for a in nest.axes if a.kind != "parallel"]
    rows, columns, inner = (cost.points(axes, names) for names in (found.rows, found.columns, reduced))
    return rows <= most and inner * (rows + columns) * 2 <= most_bytes


def _touched(step: Step | Choice) -> tuple[frozenset[str], frozenset[str]]:
    """What a step reads and writes."""
    if isinstance(step, Choice):
        return frozenset(step.touched), frozenset((*step.writes, *step.lasting))
    return _reads(step), _writes(step)


def _reads(step: Step) -> frozenset[str]:
    if isinstance(step, Kernel):
        return frozenset(step.reads)
    return reads_of(step) | (reads_of(step.body) if step.body is not None else frozenset())


def _writes(step: Step) -> frozenset[str]:
    return frozenset(step.writes) if isinstance(step, Kernel) else writes_of(step)
