"""``differentiate``: Graph -> joint Graph, which computes the forward's outputs and the gradients of its inputs.

The forward is recorded again on a :class:`~tinycompile.aot.tape.Tape`; then the tape is walked in reverse and each op's
formula is run on fake tensors, which records the backward behind the forward. Writes to inputs stay the last nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch

from tinycompile.aot.tape import AnyStep, OpaqueStep, PartsStep, Step, Tape, tensors_in
from tinycompile.aot.unsaved import unsaved
from tinycompile.base import shapes
from tinycompile.base.errors import InternalError
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ir.builder import map_refs
from tinycompile.ir.effects import COPY, written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.requires_grad import dense
from tinycompile.ops.calls import ops
from tinycompile.ops.record import OPS


class UntreatableError(Exception):
    """The joint stage has no way to treat a graph; the message says what it met."""


@dataclass(frozen=True, slots=True)
class Joint:
    """``graph`` takes the primals, then one tangent for each forward output listed in ``tangents``; it returns the
    forward's ``outputs`` results, then one gradient for each primal listed in ``gradients``. ``reached``: for each of these,
    the positions in ``tangents`` that lead to it; it need not depend on them, as where a slope is zero. ``opaque``: it has
    calls that torch differentiates. ``passing``: values that can't be saved, for others may write to their memory
    (``copies.py``), and ``copies``: by name of each copy of what others may write to, the name of that (``exposed.py``).
    ``exposed``: the primals that others may write to. ``early``: the forward's nodes; ``past``: calls that stand for their
    argument as it was when the forward ran. ``unsaved``: results that torch would not have saved (``unsaved.py``)."""

    graph: Graph
    primals: int
    outputs: int
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    reached: tuple[frozenset[int], ...]
    opaque: bool = False
    passing: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    exposed: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()
    past: frozenset[str] = frozenset()
    unsaved: frozenset[int] = frozenset()


def differentiate(
    graph: Graph, wanted: Sequence[bool], given: Sequence[bool], exposed: bool = False, again: bool = False
) -> Joint:
    """The joint graph. ``wanted``: which placeholders get a gradient; ``given``: which outputs come with a tangent.
    ``exposed``: inputs may be written to between the forward and the backward. ``again``: as :meth:`Reverse.walk` takes it.

    A placeholder that no tangent reaches gets no gradient. Raises UntreatableError."""
    check_treatable(graph)
    tape = Tape(exposed)
    with env_with(graph.hints).active(), tracing(tape):
        forward = Forward(tape, wanted)
        for node in graph.nodes:
            forward.add(node)
        tape.close()
        early = list(tape.nodes)
        reverse = Reverse(tape)
        tangents = tuple(i for i, g in enumerate(given) if g and isinstance(forward.outputs[i], FakeTensor))
        for at, i in enumerate(tangents):
            out: FakeTensor = forward.outputs[i]
            tape.location = None
            tangent = tape.placeholder(f"tangent_{tape.wish(out.ref)}", dense(out.meta))
            reverse.add(out, tangent, "an output", frozenset((at,)))
        reverse.walk(again)
        found = {i: reverse.grads.get(p.ref.name) for i, p in enumerate(forward.primals) if wanted[i]}
        gradients = tuple(i for i, g in found.items() if g is not None)
        for i in gradients:
            name_gradient(tape, found[i], f"grad_{tape.wish(forward.primals[i].ref)}")
        forward.write()
        reached = tuple(reverse.behind[forward.primals[i].ref.name] for i in gradients)
        outputs = [*forward.outputs, *(found[i] for i in gradients)]
        joint = tape.finish(graph.name, outputs, dict(graph.hints))
    opaque = any(isinstance(s, OpaqueStep) for s in tape.steps)
    sizes = len(forward.primals), len(forward.outputs)
    before, past = (frozenset(tape.final_names[n] for n in some) for some in (early, tape.past))
    return Joint(joint, *sizes, tangents, gradients, reached, opaque, unsaved=unsaved(graph), early=before, past=past)


def check_treatable(graph: Graph) -> None:
    """Raise UntreatableError for what the tape has no way to treat."""
    for node in graph.nodes:
        if written(node) and node.target != COPY:
            raise UntreatableError(f"{node.name} writes to memory")
        metas = node.meta if isinstance(node.meta, tuple) else (node.meta,)
        if any(isinstance(m, TensorMeta) and m.dtype.is_complex for m in metas):
            raise UntreatableError(f"{node.name} is complex")


def name_gradient(tape: Tape, value: Any, hint: str) -> None:
    """Call a gradient after its input, unless it is an input itself."""
    if tape.nodes[value.ref.name].kind != "placeholder":
        tape.rename(value.ref, hint)


class Forward:
    """Records a graph's nodes on the tape."""

    def __init__(self, tape: Tape, wanted: Sequence[bool]) -> None:
        self.tape = tape
        self.wanted = iter(wanted)
        self.values: dict[str, Any] = {}
        self.primals: list[Any] = []
        self.outputs: tuple[Any, ...] = ()
        self._writes: list[Node] = []

    def add(self, node: Node) -> None:
        """Record the next node."""
        self.tape.location = node.loc
        if node.kind == "placeholder":
            self._placeholder(node)
        elif node.kind == "output":
            self.outputs = self.given(node.args[0])
        elif node.target == COPY:
            self._writes.append(node)
        elif node.kind == "item":
            self._keep(node.name, self.values[node.args[0].name][node.args[1]])
        else:
            self.call(node)

    def write(self) -> None:
        """Copies into inputs, behind all else: what is computed before and after a write is not the same value."""
        for node in self._writes:
            self.tape.location = node.loc
            self.tape.extern(COPY, self.given(node.args), {}, node.meta)

    def _placeholder(self, node: Node) -> None:
        made = self.tape.placeholder(node.name, node.meta, node.target)
        if next(self.wanted):
            self.tape.live.add(made.ref.name)
        self.values[node.name] = made
        self.primals.append(made)

    def call(self, node: Node) -> None:
        """Record a call of a record or of one of torch's functions."""
        args = self.given(node.args)
        before = self.tape.count
        if node.kind == "call":
            refs = self.tape.record(OPS[node.target], args, node.meta)
        else:
            refs = self.tape.call_extern(node.target, args, {k: self.given(v) for k, v in node.kwargs}, node.meta)
        if isinstance(refs, Ref):
            self._keep(node.name, FakeTensor(node.meta, self.tape, refs), before)
        else:
            self.values[node.name] = tuple(FakeTensor(m, self.tape, r) for m, r in zip(node.meta, refs, strict=True))

    def _keep(self, name: str, value: FakeTensor, before: int = 0) -> None:
        """Note a node's value. One made since ``before`` takes the node's name; one handed through keeps its own."""
        self.values[name] = value
        if self.tape.is_newer(value.ref, before) and self.tape.nodes[value.ref.name].kind != "placeholder":
            self.tape.rename(value.ref, name)

    def given(self, arg: Any) -> Any:
        """An argument with values in place of Refs."""
        return map_refs(arg, lambda r: self.values[r.name])


class Reverse:
    """Walks the tape backwards. ``grads`` holds, by value, the sum of the gradients that came so far; ``wanted`` names values
    whose gradients stay there when the walk has gone on to what they are computed from. ``behind``: which of the walk's
    beginnings led to each."""

    def __init__(self, tape: Tape, wanted: AbstractSet[str] = frozenset()) -> None:
        self.tape, self.wanted = tape, wanted
        self.grads: dict[str, FakeTensor] = {}
        self.behind: dict[str, frozenset[int]] = {}

    def walk(self, again: bool = False) -> None:
        """Run the formula of each step that a gradient has come to, the last step first. ``again``: the gradients are to be
        differentiated again, which some formulas ask the gradient mode about."""
        with torch.set_grad_enabled(again):
            self._walk(self.tape.steps)

    def _walk(self, steps: Sequence[AnyStep]) -> None:
        for step in reversed(steps):
            grads = tuple(self._taken(r.ref.name) for r in step.results)
            if all(g is None for g in grads):
                continue
            self.tape.location = step.location
            came = frozenset[int]().union(*(self.behind.get(r.ref.name, ()) for r in step.results))
            if isinstance(step, OpaqueStep):
                for value, grad in zip(step.inputs, self.tape.pull_back(step, grads), strict=True):
                    self.add(value, grad, "an opaque call", came)
            elif isinstance(step, PartsStep):
                self._parts(step, grads, came)
            else:
                self._formula(step, grads, came)

    def _parts(self, step: PartsStep, grads: tuple[FakeTensor | None, ...], came: frozenset[int]) -> None:
        inner = Reverse(self.tape)
        with self.tape.again(step) as (made, steps):
            for value, grad in zip(made, grads, strict=True):
                inner.add(value, grad, step.name)
            inner._walk(steps)
        for value in {v.ref.name: v for v in tensors_in(step.args)}.values():
            self.add(value, inner.grads.get(value.ref.name), step.name, came)

    def _taken(self, name: str) -> FakeTensor | None:
        return self.grads.get(name) if name in self.wanted else self.grads.pop(name, None)

    def _formula(self, step: Step, grads: tuple[FakeTensor | None, ...], came: frozenset[int]) -> None:
        found = step.vjp.fn(grads, step.args, step.results, step.needs)
        if len(found) != len(step.args):
            raise InternalError(f"the formula of {step.name} gives {len(found)} gradients for {len(step.args)} arguments")
        for arg, grad, need in zip(step.args, found, step.needs, strict=True):
            if isinstance(arg, (tuple, list)) and any(need):
                for a, g, n in zip(arg, grad or (None,) * len(arg), need, strict=True):
                    if n:
                        self.add(a, g, step.name, came)
            elif need:
                self.add(arg, grad, step.name, came)

    def add(self, value: FakeTensor, grad: FakeTensor | None, origin: str, came: frozenset[int] = frozenset()) -> None:
        """Add a gradient to a value's. ``came``: where the walk began that led there."""
        if grad is None or value.ref.name not in self.tape.live:
            return
        if grad.dtype != value.dtype or not shapes.same_shape(grad.meta.shape, value.meta.shape):
            raise InternalError(f"the formula of {origin} gives a gradient {grad.meta} for a value {value.meta}")
        self.behind[value.ref.name] = self.behind.get(value.ref.name, frozenset()) | came
        have = self.grads.get(value.ref.name)
        self.grads[value.ref.name] = grad if have is None else ops.add(have, grad)
