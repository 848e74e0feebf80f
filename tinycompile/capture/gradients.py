"""Gradients within a captured program: ``backward()``, ``torch.autograd.grad`` and the ``.grad`` of leaves.

A backward becomes one node, ``torch.autograd.grad``, which the ``aot`` stage writes out. What torch then does with the results
is done here: a leaf that has a gradient gets the new one added in place, others are given it. Like all that a program changes
outside itself, a ``.grad`` is brought to its end state behind the graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.capture.breaks import GraphBreak, NotRebuildable
from tinycompile.capture.sources import Attr, Held, Source
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import NONE
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.saved import FREED
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.eager.tensor import from_torch
from tinycompile.ir.builder import inputs_of
from tinycompile.ir.graph import Node
from tinycompile.ir.requires_grad import GRAD, dense, requires_grad, saves

if TYPE_CHECKING:
    from tinycompile.capture.reconstruct import Rebuilder
    from tinycompile.capture.tracer import Tracer


@dataclass
class Slot:
    """The ``.grad`` of one tensor from outside. ``before``: what it held at the beginning, None if nobody asked; ``now``: what
    it holds, None for what it held at the beginning."""

    obj: torch.Tensor
    source: Source
    before: Value | None = None
    now: Value | None = None

    @property
    def changed(self) -> bool:
        """Whether it has to be set in the end."""
        return self.now is not None and self.now is not self.before


class Gradients:
    """The slots of one capture, and which values a backward has freed."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}  # by id of the tensor
        self.asked: Value | None = None  # stands for the first backward, which can be left undone by leaving there
        self.asks_inside = False  # whether gradients of values on the way were asked for
        self.asked_for = 0  # how many backwards are in the graph so far
        self._flags: dict[str, bool] = {}  # by node: whether it requires grad
        self._spent: set[str] = set()  # nodes whose saved values a backward has freed
        self._empty: list[torch.Tensor] = []  # held tensors that had no gradient
        self._unhooked: list[torch.Tensor] = []  # held leaves without hooks

    # --- .grad ---

    def slot(self, tr: Tracer, obj: torch.Tensor, source: Source) -> Slot:
        """The slot of a tensor; the first way to reach it counts, and others are guarded to lead there too."""
        found = self.slots.setdefault(id(obj), Slot(obj, source))
        if found.source != source:
            tr.guards.check(f"{source.text} is {found.source.text}", f"{source.label} is {found.source.label}")
        return found

    def read(self, tr: Tracer, slot: Slot) -> Value:
        """``x.grad``."""
        if slot.now is None:
            slot.now = slot.before = self._outside(tr, slot)
        return slot.now

    def _outside(self, tr: Tracer, slot: Slot) -> Value:
        """What it holds at the beginning, guarded."""
        found, source = slot.obj.grad, slot.source
        if found is None:
            if isinstance(source, Held):
                self._empty.append(slot.obj)
            else:
                tr.guards.check(f"{source.text}.grad is None", f"{source.label}.grad is None")
            return NONE
        if found.requires_grad:
            raise GraphBreak("backward", f"{source.label}.grad has a history of its own")
        return tr.wrap(found, Attr(source, "grad"))

    def write(self, tr: Tracer, target: TensorValue, value: Value) -> None:
        """``x.grad = value``."""
        if not target.is_input or target.source is None or not target.is_leaf:
            raise GraphBreak("side-effect", "the .grad of a tensor that is no leaf from outside was set")
        if value is not NONE and not _fits(target, value):
            raise GraphBreak("side-effect", f"{target.source.label}.grad was set to something of another kind")
        self.slot(tr, target.obj, target.source).now = value

    def forget(self, tr: Tracer, tensors: Sequence[torch.Tensor]) -> None:
        """``x.grad = None`` for held tensors, whatever they held."""
        for obj in tensors:
            self.slot(tr, obj, tr.guards.hold(obj, "param")).now = NONE

    # --- backward ---

    def run(self, tr: Tracer, outputs: Sequence[TensorValue], tangents: Sequence[Value], keep: bool) -> None:
        """``torch.autograd.backward``: the gradients of all leaves that the outputs depend on are added to their ``.grad``."""
        above = self._passed(tr, outputs, keep)
        leaves = [t for t, fake in tr.given.values() if fake.ref.name in above]
        for leaf in leaves:
            self._check_leaf(tr, leaf)
        for leaf, grad in zip(leaves, self.of(tr, outputs, leaves, tangents), strict=True):
            assert leaf.source is not None
            self._accumulate(tr, self.slot(tr, leaf.obj, leaf.source), grad)

    def asks_of(self, tr: Tracer, inputs: Sequence[TensorValue]) -> None:
        """Gradients of these are asked for: if torch's engine is to give them, it must know how values on the way were made."""
        if any(id(t) not in tr.given or tr.effects.has_new_history(t) for t in inputs):
            self.asks_inside = True

    @property
    def kind(self) -> str:
        """That of a break for the sake of torch's engine."""
        return "inner-gradient" if self.asks_inside else "backward"

    def wanted(
        self, tr: Tracer, outputs: Sequence[TensorValue], inputs: Sequence[TensorValue], tangents: Sequence[Value], keep: bool
    ) -> list[TensorValue | None]:
        """``torch.autograd.grad``: one gradient an input, None for those that the outputs do not depend on. The inputs may be
        values on the way."""
        above = self._passed(tr, outputs, keep, [_asked_of(tr, t).ref.name for t in inputs])
        found = [t for t in inputs if _asked_of(tr, t).ref.name in above]
        grads = iter(self.of(tr, outputs, found, tangents) if found else ())
        return [next(grads) if any(t is f for f in found) else None for t in inputs]

    def of(
        self, tr: Tracer, outputs: Sequence[TensorValue], inputs: Sequence[TensorValue], tangents: Sequence[Value]
    ) -> list[TensorValue]:
        """Record the node."""
        tr.about_to_record()
        fakes = [_asked_of(tr, t) for t in inputs]
        metas = tuple(dense(f.meta) for f in fakes)
        ones = tuple(t.fake if isinstance(t, TensorValue) else None for t in tangents)
        self.asked_for += 1
        made = tr.builder.extern(GRAD, (tuple(t.fake for t in outputs), tuple(fakes), ones), {}, metas)
        return [TensorValue(g, torch.Tensor, False) for g in made]

    def _accumulate(self, tr: Tracer, slot: Slot, grad: TensorValue) -> None:
        have = self.read(tr, slot)
        if not isinstance(have, TensorValue):
            slot.now = grad
            return
        mode, tr.grad_enabled = tr.grad_enabled, False
        try:
            tr.write(have, lambda: TensorValue(dispatcher.call("add", have.fake, grad.fake), torch.Tensor, False))
        finally:
            tr.grad_enabled = mode

    def _passed(self, tr: Tracer, outputs: Sequence[TensorValue], keep: bool, to: Sequence[str] | None = None) -> set[str]:
        """The nodes that require grad and that the outputs depend on. A backward from there passes all of them, or those that
        lead ``to`` some. ``keep``: the graph can be used again."""
        if self.asked is None:
            self.asked = Value()
            tr.births[id(self.asked)] = self.asked, tr.frames[0].count
        live = self._live(tr)
        for out in outputs:
            if not live[out.fake.ref.name]:
                raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        above = _above(tr.builder.nodes, live, [out.fake.ref.name for out in outputs])
        passed = above if to is None else above & _below(tr.builder.nodes, to)
        if passed & self._spent:
            raise RuntimeError(FREED)
        if not keep:
            self._spent |= {name for name in passed if saves(tr.builder.nodes[name], live)}
        return above

    def _live(self, tr: Tracer) -> dict[str, bool]:
        """Which nodes require grad."""
        live = self._flags
        for t, fake in tr.given.values():
            live.setdefault(fake.ref.name, bool(t.obj.requires_grad))
        for name, node in tr.builder.nodes.items():
            if name not in live:
                live[name] = node.kind != "placeholder" and requires_grad(node, live)
        return live

    def _check_leaf(self, tr: Tracer, leaf: TensorValue) -> None:
        """A gradient that goes on outside the graph, or that others see come in, is for torch's engine."""
        obj, source = leaf.obj, leaf.source
        assert source is not None
        if not isinstance(obj, torch.Tensor) or not obj.is_leaf:
            raise GraphBreak("backward", f"a gradient goes on to what made {leaf.describe()}, outside the graph")
        if not unhooked([obj]):
            raise GraphBreak("backward", f"{leaf.describe()} has hooks")
        if isinstance(source, Held):
            self._unhooked.append(obj)
            return
        check = tr.guards.hold(unhooked, "unhooked").name
        tr.guards.check(f"{source.text}.is_leaf and {check}(({source.text},))", f"{source.label} is a leaf without hooks")

    # --- the end ---

    def parts(self) -> Iterator[Value]:
        """Every Value that the replay mentions."""
        return (s.now for s in self.slots.values() if s.changed and s.now is not None)

    def replay(self, rebuilder: Rebuilder) -> list[str]:
        """Statements that bring every ``.grad`` to its end state; guards on what held tensors were like."""
        tr = rebuilder.tr
        for fn, tensors, label in ((ungraded, self._empty, "have no .grad"), (unhooked, self._unhooked, "have no hooks")):
            if tensors:
                check, group = tr.guards.hold(fn, fn.__name__), tr.guards.hold(tuple(tensors), "leaves")
                tr.guards.check(f"{check.name}({group.name})", f"{len(tensors)} leaves {label}")
        changed = [s for s in self.slots.values() if s.changed]
        if any(not isinstance(s.source, Held) for s in changed):
            helper, every = tr.guards.hold(distinct, "distinct"), ", ".join(s.source.text for s in changed)
            tr.guards.check(f"{helper.name}(({every},))", "leaves whose .grad is set are different tensors")
        lines = [f"{rebuilder.reach(s.source)}.grad = {rebuilder.expr(s.now)}" for s in changed if s.now is not NONE]  # type: ignore[arg-type]
        emptied = [rebuilder.reach(s.source) for s in changed if s.now is NONE]
        if emptied:
            lines.append(f"{rebuilder.held(forget, 'forget_grads')}(({', '.join(emptied)},))")
        return lines

    def spent(self, rebuilder: Rebuilder, value: TensorValue) -> str:
        """The statement that gives an output the history of a backward that has been run."""
        tr, name = rebuilder.tr, rebuilder.names[id(value)]
        above = _above(tr.builder.nodes, self._live(tr), [value.fake.ref.name])
        leaves = [t for t, fake in tr.given.values() if fake.ref.name in above and t.source is not None]
        same = [t.obj for t in leaves if isinstance(t.source, Held) and isinstance(t.obj, torch.Tensor)]
        others = "".join(f", {t.source.text}" for t in leaves if t.source is not None and not isinstance(t.source, Held))
        return f"{name} = {rebuilder.held(Spent(same), 'spent')}({name}{others})"

    def is_spent(self, tr: Tracer, value: TensorValue) -> bool:
        """Whether an output's history was freed by a backward. One that still needs its history can't leave this graph, in
        which torch's tape does not run: then the backward is left to torch."""
        if self.asked is None or not value.requires_grad:
            return False
        live = self._live(tr)
        if not live[value.fake.ref.name]:
            return False
        if not _above(tr.builder.nodes, live, [value.fake.ref.name]) & self._spent:
            raise NotRebuildable(self.asked, f"{value.describe()}, which leaves the graph, still has its history", self.kind)
        return True


def _above(nodes: dict[str, Node], live: dict[str, bool], start: Sequence[str]) -> set[str]:
    """These nodes and all that they depend on and that require grad."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in found and live[name]:
            found.add(name)
            waiting.extend(r.name for r in inputs_of(nodes[name]))
    return found


def _below(nodes: dict[str, Node], start: Sequence[str]) -> set[str]:
    """The nodes that depend on these."""
    found = set(start)
    for name, node in nodes.items():
        if any(r.name in found for r in inputs_of(node)):
            found.add(name)
    return found - set(start)


def _asked_of(tr: Tracer, t: TensorValue) -> FakeTensor:
    """What a gradient is taken of: an input as it was given, unless a write gave it another history; another value as it is."""
    return tr.given[id(t)][1] if id(t) in tr.given and not tr.effects.has_new_history(t) else t.fake


def _fits(target: TensorValue, value: Value) -> bool:
    if not isinstance(value, TensorValue) or value.cls is not torch.Tensor or value.requires_grad:
        return False
    a, b = target.meta, value.meta
    return shapes.same_shape(a.shape, b.shape) and (a.dtype, a.device) == (b.dtype, b.device)


# --- at run time ---------------------------------------------------------------------------------------------------------

_hooks = operator.attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
_grad = operator.attrgetter("grad")


def unhooked(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether no hook sees the gradients of these come in."""
    return not any(map(any, map(_hooks, leaves)))


def distinct(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether no two are one object."""
    return len(set(map(id, leaves))) == len(leaves)


def ungraded(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether none of these has a ``.grad``."""
    return {*map(id, map(_grad, leaves))} == {id(None)}


def forget(leaves: Sequence[torch.Tensor]) -> None:
    """``x.grad = None``."""
    for leaf in leaves:
        leaf.grad = None


class SpentBackward(torch.autograd.Function):
    """The history of a result whose backward has been run: it requires grad, and a second backward is torch's error. The leaves
    that it came from are behind it."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
        """The same data in a tensor that is no view."""
        return result.new_empty(0).set_(result)  # type: ignore[call-overload]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Refuse."""
        raise RuntimeError(FREED)


class Spent:
    """Gives results that history. ``leaves``: those that are the same in each call."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self.leaves = leaves
        self._together: torch.Tensor | None = None  # one tensor with all of them behind it

    def __call__(self, result: Any, *leaves: Any) -> Any:
        """The result as it is behind its backward."""
        if isinstance(result, OurTensor):
            return from_torch(self(result.raw()))
        if self._together is None:
            self._together = SpentBackward.apply(torch.zeros((), requires_grad=True), *self.leaves)
        return SpentBackward.apply(result, self._together, *(t for t in leaves if isinstance(t, torch.Tensor)))
