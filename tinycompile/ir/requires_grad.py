"""Which outputs of a graph require grad, as eager would say: the static half of autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.backends import is_view
from tinycompile.ir.builder import inputs_of
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.gradients import CUT, compared
from tinycompile.ops.record import OPS

# ``(outputs, inputs, tangents)`` -> one gradient an input: how a captured program asks for a backward within it. A tangent that
# is None is all ones.
GRAD = "torch.autograd.grad"


def outputs_require_grad(graph: Graph, inputs: Sequence[bool]) -> tuple[bool, ...]:
    """One flag an output; ``inputs`` says which placeholders require grad (and grad mode is on)."""
    live = live_nodes(graph, inputs)
    return tuple(isinstance(o, Ref) and live[o.name] for o in graph.output.args[0])


def inputs_with_gradients(graph: Graph, inputs: Sequence[bool]) -> tuple[int, ...]:
    """Positions of the inputs to which gradients of the outputs lead; ``inputs`` as above."""
    live = live_nodes(graph, inputs)
    led = {o.name for o in graph.output.args[0] if isinstance(o, Ref)}
    for node in reversed(graph.nodes[:-1]):
        if node.name in led and live[node.name]:
            led.update(r.name for r in inputs_of(node))
    return tuple(i for i, p in enumerate(graph.placeholders) if p.name in led and live[p.name])


def live_nodes(graph: Graph, inputs: Sequence[bool]) -> dict[str, bool]:
    """Which nodes require grad, by name; ``inputs`` as above."""
    live: dict[str, bool] = {}
    given = iter(inputs)
    for node in graph.nodes:
        if node.kind == "placeholder":
            live[node.name] = next(given)
        elif node.kind != "output":
            live[node.name] = requires_grad(node, live)
    return live


def views_of_inputs(graph: Graph, flags: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """``(output, input)`` positions where an output is a view of an input that torch's tape knows, as such a graph returns it
    that is run op by op: a later write to one changes the other's history, though neither has any yet. ``flags``: which outputs
    require grad; an input that is itself returned is a view where it does."""
    inputs = {p.name: i for i, p in enumerate(graph.placeholders)}
    roots = dict(inputs)
    for node in graph.nodes[:-1]:
        of = node.args[0].name if node.args and isinstance(node.args[0], Ref) else ""
        if of in roots and (
            node.kind == "item" or (node.kind == "call" and node.target not in CUT and is_view(OPS[node.target]))
        ):
            roots[node.name] = roots[of]
    found = zip(graph.output.args[0], flags, strict=False)
    known = ((i, o.name, f) for i, (o, f) in enumerate(found) if isinstance(o, Ref) and o.name in roots)
    return tuple((i, roots[name]) for i, name, f in known if f or name not in inputs)


def requires_grad(node: Node, live: Mapping[str, bool]) -> bool:
    """Whether a node's value does, by which of the values before it do."""
    if node.target in CUT or node.target == GRAD:
        return False
    apart = compared(node.target, node.args)
    reached = any(live[r.name] for r in inputs_of(node) if r is not apart)
    return reached and (not isinstance(node.meta, TensorMeta) or has_gradient(node.meta))


def saves(node: Node, live: Mapping[str, bool]) -> bool:
    """Whether torch keeps values for the backward of a node that requires grad: a second one needs the graph to be retained.
    A call without a formula of ours is taken to keep some. ``live``: which values require grad."""
    if node.kind in ("placeholder", "item"):
        return False
    op = OPS[node.target] if node.kind == "call" else None
    if op is None or op.vjp is None:
        return True
    if op.vjp.kept is not None:
        return bool(op.vjp.kept)
    return bool(op.vjp.reads(op.schema, [needs_of(a, live) for a in node.args]))


def needs_of(arg: Any, live: Mapping[str, bool]) -> Any:
    """Whether an argument of a call needs a gradient; for a list, one flag an item. ``live``: as above."""
    if isinstance(arg, tuple):
        return tuple(needs_of(a, live) for a in arg)
    return isinstance(arg, Ref) and live[arg.name]


def has_gradient(meta: TensorMeta) -> bool:
    """Whether the dtype is one that gradients have."""
    return meta.dtype.is_floating_point or meta.dtype.is_complex


def asks_for_gradients(graph: Graph) -> bool:
    """Whether there is a backward within the graph."""
    return any(n.kind == "extern" and n.target == GRAD for n in graph.nodes)


def dense(meta: TensorMeta) -> TensorMeta:
    """Fresh aligned memory of the same layout; row-major where the strides overlap or leave gaps. So torch lays out a leaf's
    gradient."""
    step: Dim = 1
    for stride, size in sorted(
        zip(meta.strides, meta.shape, strict=True), key=lambda d: (shapes.hint(d[0]), shapes.hint(d[1]))
    ):
        if isinstance(size, int) and size == 1:
            continue
        if stride != step:
            return TensorMeta.contiguous(meta.shape, meta.dtype, meta.device)
        step = step * size
    return TensorMeta(meta.shape, meta.strides, meta.dtype, meta.device)
