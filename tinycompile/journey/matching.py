"""Which kernel and which op of torch's belongs to which step: the one that was running in its thread when it was asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from tinycompile.journey.events import KernelRun, Step
from tinycompile.journey.tracer import Launched, TorchOp

_RUNS_TORCH = ("op", "library", "torch")
_ENGINE = "autograd::engine::evaluate_function: "


class Spans:
    """The steps of every thread, to be asked what was running at a time."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.roots: dict[int, list[Step]] = {}
        for step in sorted(steps, key=lambda s: s.start):
            self.roots.setdefault(step.thread, []).append(step)
        self.starts = {thread: [s.start for s in found] for thread, found in self.roots.items()}

    def at(self, time: int, thread: int | None) -> Step | None:
        """The innermost step that was running. Without a thread, of any."""
        for t in self.roots if thread is None else (thread,):
            i = bisect_right(self.starts.get(t, []), time) - 1
            if i >= 0 and time <= self.roots[t][i].end:
                return _innermost(self.roots[t][i], time)
        return None


def _innermost(step: Step, time: int) -> Step:
    for child in step.children:
        if child.start <= time <= child.end:
            return _innermost(child, time)
    return step


def outside_of(ops: Iterable[TorchOp], asides: Iterable[tuple[int, int, int]]) -> list[TorchOp]:
    """Those that did not begin within one of these spans, (thread, start, end) each."""
    spans = Spans(Step("aside", "", start, end, thread) for thread, start, end in outermost_spans(asides))
    return [op for op in ops if spans.at(op.start, op.thread) is None]


def outermost_spans(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those of a thread that lie in no other."""
    found: list[tuple[int, int, int]] = []
    for thread, start, end in sorted(spans, key=lambda s: (s[0], s[1], -s[2])):
        if not found or found[-1][0] != thread or start > found[-1][2]:
            found.append((thread, start, end))
    return found


def drop(steps: list[Step], unsure: Iterable[Step]) -> None:
    """Take steps out in which nothing ran."""
    idle = {id(s) for s in unsure if not s.kernels and not s.children}
    if idle:
        steps[:] = [s for s in steps if id(s) not in idle]
        for step in steps:
            drop(step.children, unsure)


def assign(steps: list[Step], ops: Sequence[TorchOp], launched: Sequence[Launched], on_cpu: bool) -> None:
    """Give each step its kernels, and add steps of kind ``torch`` and ``backward`` for what ran outside of any. ``on_cpu``:
    torch's ops are the kernels themselves."""
    spans = Spans(steps)
    outside: list[Step] = []
    nodes = [op for op in outermost(ops) if op.name.startswith(_ENGINE)]
    for op in outermost([op for op in ops if _is_op(op.name)]):
        step = spans.at(op.start, op.thread)
        if step is None and not any(n.thread == op.thread and n.start <= op.start <= n.end for n in nodes):
            step = Step("torch", op.name, op.start, op.end, op.thread or 0)
            outside.append(step)
        if step is not None and step.kind == "compiled" and op.name not in _BOOKKEEPING:
            inside = Step("torch", op.name, op.start, op.end, step.thread)
            step.children.append(inside)
            step.children.sort(key=lambda s: s.start)
            step = inside
        if step is not None and on_cpu and step.kind in _RUNS_TORCH:
            step.kernels.append(KernelRun(op.name, op.start, op.end, "cpu"))
    outside += [_backward(op, ops, steps, on_cpu) for op in nodes if spans.at(op.start, op.thread) is None]
    left = Spans(outside)
    for one in launched:
        step = spans.at(one.asked, one.thread) or left.at(one.asked, one.thread)
        if step is None:
            step = Step("torch", one.run.name, one.asked, one.asked, one.thread)
            outside.append(step)
        step.kernels.append(one.run)
    steps += outside
    steps.sort(key=lambda s: s.start)


def _backward(node: TorchOp, ops: Sequence[TorchOp], steps: list[Step], on_cpu: bool) -> Step:
    """A node of torch's backward: our steps in it become its children, torch's ops its kernels."""
    made = Step("backward", node.name.removeprefix(_ENGINE), node.start, node.end, node.thread or 0)
    made.children = [s for s in steps if node.start <= s.start <= node.end and node.thread in (None, s.thread)]
    if made.children:
        made.thread = made.children[0].thread
        steps[:] = [s for s in steps if s not in made.children]
    inside = [o for o in ops if o.thread == node.thread and node.start <= o.start <= node.end and _is_op(o.name)]
    if on_cpu and not made.children:
        made.kernels = [KernelRun(o.name, o.start, o.end, "cpu") for o in outermost(inside)]
    return made


# What a wrapper does besides launching.
_BOOKKEEPING = frozenset(
    f"aten::{name}" for name in ("empty", "empty_strided", "as_strided", "detach", "view", "view_as", "alias", "resolve_conj")
)


def _is_op(name: str) -> bool:
    """``aten::mm``, or a library's; the tracer also reports nodes of the backward and of autograd functions."""
    return "::" in name and not name.startswith(("autograd::", "torch::", "profiler::"))


def outermost(ops: Sequence[TorchOp]) -> list[TorchOp]:
    """Those that no other op called."""
    found: list[TorchOp] = []
    ends: dict[int | None, int] = {}
    for op in sorted(ops, key=lambda o: (o.start, -o.end)):
        if op.start >= ends.get(op.thread, -1):
            found.append(op)
            ends[op.thread] = op.end
    return found
