"""``written_out``: a graph that asks for gradients of its own values becomes one that computes them.

A captured training step holds the forward, a call of ``torch.autograd.grad``, and what is done with the gradients. The graph is
recorded again on a tape; where it asks for gradients, the tape is walked in reverse, as for a joint graph. So the result is one
graph of plain ops, and nothing is left for torch's autograd to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinycompile.aot.joint import Forward, Reverse, check_treatable, name_gradient
from tinycompile.aot.tape import Tape
from tinycompile.base.shapes import env_with
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ir.effects import may_alias
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.requires_grad import GRAD, dense
from tinycompile.ops.calls import ops


@dataclass(frozen=True, slots=True)
class Whole:
    """``backwards``: the names of the nodes of each, in their order."""

    graph: Graph
    backwards: tuple[frozenset[str], ...]


def written_out(graph: Graph) -> Whole:
    """The graph with every backward in it written out. Raises UntreatableError."""
    check_treatable(graph)
    tape = Tape()
    with env_with(graph.hints).active(), tracing(tape):
        program = _Program(tape, graph)
        for node in graph.nodes:
            program.add(node)
        program.write()
        made = tape.finish(graph.name, program.outputs, dict(graph.hints))
    names = tape.final_names
    return Whole(made, tuple(frozenset(names[n] for n in group if n in names) for group in program.backwards))


class _Program(Forward):
    """Records a graph's nodes, and reverses the tape where gradients are asked for. Only what leads to these requires grad."""

    def __init__(self, tape: Tape, graph: Graph) -> None:
        self.leaves: set[str] = {r.name for n in graph.nodes if n.target == GRAD for r in n.args[1]}
        super().__init__(tape, [p.name in self.leaves for p in graph.placeholders])
        self.backwards: list[list[str]] = []

    def call(self, node: Node) -> None:
        if node.target == GRAD:
            self.values[node.name] = self._pulled_back(node)
            return
        super().call(node)
        value = self.values[node.name]
        if node.name in self.leaves:  # a parameter as an optimizer left it
            self.tape.live.add(value.ref.name)

    def _pulled_back(self, node: Node) -> tuple[FakeTensor, ...]:
        outputs, inputs, tangents = self.given(node.args)
        self.tape.close()
        mark, reverse = self.tape.count, Reverse(self.tape, {leaf.ref.name for leaf in inputs})
        for out, tangent in zip(outputs, tangents, strict=True):
            reverse.add(out, ops.full_like(out, 1.0) if tangent is None else tangent, "an output")
        reverse.walk()
        found: dict[str, FakeTensor] = {}
        for leaf in inputs:
            self.tape.location = node.loc
            grad = self._own(leaf, reverse.grads.get(leaf.ref.name), mark, found)
            name_gradient(self.tape, grad, f"grad_{self.tape.wish(leaf.ref)}")
            found[grad.ref.name] = grad
        self.tape.reopen()
        self.backwards.append([name for name in self.tape.nodes if self.tape.is_newer(Ref(name), mark)])
        return tuple(found.values())

    def _own(self, leaf: FakeTensor, grad: FakeTensor | None, mark: int, others: dict[str, FakeTensor]) -> FakeTensor:
        """A gradient in memory of its own, laid out as torch lays out a leaf's; zeros where no formula gave any."""
        meta = dense(leaf.meta)
        if grad is None:
            grad = ops.full_like(leaf, 0.0)
        if grad.meta.strides != meta.strides:
            return ops.restride(grad, meta.strides)
        fresh = self.tape.is_newer(grad.ref, mark) and grad.ref.name not in others and not self._may_share(grad.ref)
        return grad if fresh else ops.clone(grad)

    def _may_share(self, ref: Ref) -> bool:
        node: Any = self.tape.nodes[ref.name]
        made = self.tape.nodes[node.args[0].name] if node.kind == "item" else node
        return may_alias(made) if made.kind == "call" else True
