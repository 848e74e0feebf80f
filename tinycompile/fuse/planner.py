"""``plan``: from Loops to a Plan. The order of fusion's own stages is here, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.target import Target
from tinycompile.fuse import grouping, horizontal, inline, memory, products, split
from tinycompile.fuse.coalesce import coalesce
from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import Access, Facts, analyse, defined, reads_of, statement_axes, views_in, writes_of
from tinycompile.fuse.deps import Step as LoopStep
from tinycompile.fuse.horizontal import Together
from tinycompile.fuse.weave import without_idle_axes
from tinycompile.ir.loops import Buffer, ExternCall, Loops, Nest, Reduce, Scalar, Scan, Store
from tinycompile.ir.plan import Choice, Decision, Kernel, Plan
from tinycompile.ops.record import OPS, Indexed

NAME_LENGTH = 48


def plan(loops: Loops, target: Target, contests: bool = False) -> Plan:
    """Decide the kernels: inline, group, weave, coalesce, split reductions, name, and place memory. ``contests``: matrix
    products are generated too, to be timed beside the library's."""
    buffers = {b.name: b for b in loops.buffers}
    cost = Cost(buffers, loops.hints, target)
    kept = frozenset(views_in(loops.outputs)) | _extern_buffers(loops.steps) | _persistent(buffers)
    sizes = tuple(s.symbol for s in loops.sizes)

    steps: list[LoopStep] = [without_idle_axes(s) if isinstance(s, Nest) else s for s in loops.steps]
    inlined = inline.choose(steps, _facts(steps), kept, cost)
    steps = inline.apply(steps, inlined, buffers, sizes)
    grouped = grouping.group(steps, _facts(steps), kept, cost)
    decisions = [*_left_to_libraries(steps), *inlined.decisions, *grouped.decisions]

    final: list[Nest | ExternCall] = []
    woven: dict[int, Nest] = {}  # by id of what it became: over the axes of its own tensors
    for node in grouped.steps:
        if isinstance(node, ExternCall):
            final.append(node)
            continue
        loose = grouping.weave_group(node, grouped.vanish, cost, sizes)
        nest = coalesce(loose, cost)
        woven[id(nest)] = loose
        if any(isinstance(s, Store) for s in nest.body) and not _empty(nest):
            final.extend(_split(nest, cost, buffers, decisions))
    launches = horizontal.combine(final, cost, decisions)
    named = _Names({*buffers, *loops.inputs, *sizes}, {o: i for i, s in enumerate(loops.steps) for o in s.origins})
    why = _reasons(decisions)
    kernels = [s if isinstance(s, ExternCall) else _launch(s, named, cost, why) for s in launches]
    outside = frozenset(views_in(loops.outputs)) | _persistent(buffers)
    own = {
        k.nest.name: woven[id(s)] for k, s in zip(kernels, launches, strict=True) if isinstance(k, Kernel) and id(s) in woven
    }
    chosen: Sequence[Kernel | ExternCall | Choice] = kernels
    if target.language == "triton":
        chosen = products.choose(kernels, own, outside, cost, sizes, decisions, contests)
        kernels = [leaf for s in chosen for leaf in (s.library if isinstance(s, Choice) else (s,))]
    return Plan(
        loops.name, _device(kernels, buffers), loops.inputs, loops.sizes, _used(buffers, kernels, loops),
        tuple(memory.place(chosen, buffers, loops.outputs, loops.donated, target.language == "triton")), loops.outputs,
        tuple(decisions), _bytes_minimum(loops, kernels, cost), loops.hints, loops.lines, loops.donated,
    )  # fmt: skip


def _extern_buffers(steps: Iterable[LoopStep]) -> frozenset[str]:
    return frozenset(n for s in steps if isinstance(s, ExternCall) for n in (*reads_of(s), *writes_of(s)))


def _persistent(buffers: dict[str, Buffer]) -> frozenset[str]:
    return frozenset(n for n, b in buffers.items() if b.role != "temp")


def _facts(steps: Sequence[LoopStep]) -> list[Facts | None]:
    return [analyse(s) if isinstance(s, Nest) else None for s in steps]


def _left_to_libraries(steps: Sequence[LoopStep]) -> list[Decision]:
    """Calls that kernels could have computed for their readers."""
    found: list[Decision] = []
    for call in steps:
        lowering = OPS[call.target].lowering if isinstance(call, ExternCall) and call.kind == "call" else None
        if isinstance(call, ExternCall) and isinstance(lowering, Indexed) and (why := lowering.library(*call.args)):
            readers = [s.name for s in steps if reads_of(s) & writes_of(call)]
            found += [Decision(call.name, reader, False, "library-call", why) for reader in readers]
    return found


def _empty(nest: Nest) -> bool:
    return any(a.kind == "parallel" and a.extent == 0 for a in nest.axes)


def _split(nest: Nest, cost: Cost, buffers: dict[str, Buffer], decisions: list[Decision]) -> list[Nest]:
    how = split.choose(nest, cost)
    if how is None:
        return [nest]
    first, second, partial = split.split(nest, how, cost, set(buffers))
    buffers.update({b.name: b for b in partial})
    rows = cost.points({a.name: a.extent for a in nest.axes if a.kind == "parallel"})
    why = f"{rows} rows are too few for the target: {how.count} chunks each are reduced in parallel, then combined"
    decisions.append(Decision(first.name, second.name, False, "split-reduction", why))
    return [coalesce(first, cost), coalesce(second, cost)]


class _Names:
    """Kernel names: what the kernel computes, in program order, unique, valid, at most 48 characters."""

    def __init__(self, taken: set[str], order: dict[str, int]) -> None:
        self.taken, self.order = taken, order

    def of(self, nest: Nest) -> Nest:
        """The nest with its name, and its origins in program order."""
        origins = tuple(sorted(nest.origins, key=lambda o: self.order.get(o, 0)))
        tail = "_partial" if nest.name.endswith("_partial") else ""
        base = _phrase(origins or (nest.name,), NAME_LENGTH - 4 - len(tail)) + tail
        name, n = base, 1
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return replace(nest, name=name, origins=origins)


def _phrase(origins: Sequence[str], length: int) -> str:
    """``fused_softmax_sub_exp`` from names such as ``softmax_sub_1``: each word once, as many as fit."""
    words = dict.fromkeys(w for o in origins for w in re.split(r"\W|_", o) if w and not w.isdigit())
    if len(origins) == 1:
        return f"{'_'.join(words) or 'nest'}_kernel"[:length].rstrip("_")
    phrase = "fused"
    for word in words:
        if len(phrase) + 1 + len(word) > length:
            break
        phrase += f"_{word}"
    return phrase


def _reasons(decisions: Sequence[Decision]) -> dict[str, list[str]]:
    """The rules by which each nest was fused."""
    found: dict[str, list[str]] = {}
    for d in decisions:
        if d.fused or d.rule == "split-reduction":
            found.setdefault(d.second, []).append(d.rule)
    return found


def _launch(step: Nest | Together, named: _Names, cost: Cost, why: dict[str, list[str]]) -> Kernel:
    """The kernel of one nest, or of several that one launch does."""
    if isinstance(step, Nest):
        return _kernel(named.of(step), cost, why)
    first, *rest = [_kernel(n, cost, why) for n in step.nests]
    every = (first, *rest)
    return Kernel(
        named.of(replace(first.nest, origins=tuple(o for k in every for o in k.nest.origins))),
        tuple(dict.fromkeys(b for k in every for b in k.reads)),
        tuple(dict.fromkeys(b for k in every for b in k.writes)),
        sum((k.bytes_moved for k in every), start=0),
        sum((k.flops for k in every), start=0),
        f"{len(every)} x horizontal",
        tuple(replace(k.nest, name=f"{k.nest.name}_{i}", origins=()) for i, k in enumerate(rest, 1)),
    )


def _kernel(nest: Nest, cost: Cost, why: dict[str, list[str]]) -> Kernel:
    facts = analyse(nest)
    moved: Dim = 0
    for accesses in (facts.loads, facts.stores):
        for name in dict.fromkeys(a.buffer for a in accesses):
            moved = moved + _bytes(name, [a for a in accesses if a.buffer == name], facts, cost)
    reads = tuple(dict.fromkeys(a.buffer for a in facts.loads))
    writes = tuple(dict.fromkeys(a.buffer for a in facts.stores))
    rules = Counter(rule for origin in nest.origins for rule in why.get(origin, ()))
    words = ", ".join(f"{n} x {rule}" for rule, n in rules.items()) or "one operation"
    return Kernel(nest, reads, writes, moved, _flops(nest), words)


def _bytes(name: str, accesses: Sequence[Access], facts: Facts, cost: Cost) -> Dim:
    return cost.touched(name, accesses, facts.axes) * cost.itemsize(name)


def _flops(nest: Nest) -> Dim:
    """Scalar operations (casts and selections aside) times their points, and one a point reduced."""
    extents = {a.name: a.extent for a in nest.axes}
    lives: dict[str, frozenset[str]] = {}
    total: Dim = 0
    for s in nest.body:
        at = statement_axes(s, frozenset(extents), lives)
        lives.update(dict.fromkeys(defined(s), at))
        if isinstance(s, (Reduce, Scan)):
            at = at | set(s.axes if isinstance(s, Reduce) else (s.axis,))
        elif not isinstance(s, Scalar) or s.op in ("cast", "where"):
            continue
        total = total + ex.product(extents[a] for a in sorted(at))
    return total


def _device(steps: Sequence[Kernel | ExternCall], buffers: dict[str, Buffer]) -> Device:
    """Where the kernels run: an accelerator before the CPU."""
    made = [n for s in steps for n in (s.writes if isinstance(s, Kernel) else s.outputs) if n is not None]
    found = [buffers[n].meta.device for n in made] or [b.meta.device for b in buffers.values()] or [Device("cpu")]
    return next((d for d in found if d.type != "cpu"), found[0])


def _used(buffers: dict[str, Buffer], steps: Sequence[Kernel | ExternCall], loops: Loops) -> tuple[Buffer, ...]:
    """The buffers that are left: inputs, outputs, and what some step touches."""
    used = set(views_in(loops.outputs)) | set(loops.inputs)
    for s in steps:
        used |= {*s.reads, *s.writes} if isinstance(s, Kernel) else {*reads_of(s), *writes_of(s)}
    return tuple(b for n, b in buffers.items() if n in used)


def _bytes_minimum(loops: Loops, steps: Sequence[Kernel | ExternCall], cost: Cost) -> Dim:
    """Each input that is read, read once (gathers by what they touch); each output that is made, written once."""
    reads: dict[str, Dim] = {}
    for s in steps:
        known = [analyse(n) for n in s.nests] if isinstance(s, Kernel) else []
        for name in s.reads if isinstance(s, Kernel) else reads_of(s):
            if name not in loops.inputs:
                continue
            here = cost.elements(name)
            facts = next((f for f in known if any(a.buffer == name for a in f.loads)), None)
            if facts is not None:
                here = cost.touched(name, [a for a in facts.loads if a.buffer == name], facts.axes)
            if name not in reads or cost.size(reads[name]) < cost.size(here):
                reads[name] = here
    total: Dim = 0
    for name, count in reads.items():
        total = total + count * cost.itemsize(name)
    for name in dict.fromkeys(views_in(loops.outputs)):
        if name not in loops.inputs:
            total = total + cost.elements(name) * cost.itemsize(name)
    return total
