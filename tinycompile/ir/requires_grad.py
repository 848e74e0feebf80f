"""Which outputs of a graph require grad, as eager would say: the static half of autograd."""

from __future__ import annotations

from collections.abc import Sequence

from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import inputs_of
from tinycompile.ir.graph import Graph, Node, Ref

# Ops whose result never requires grad, whatever their inputs: they read shapes only, or cut the tape.
CUT = frozenset({"detach", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"})


def outputs_require_grad(graph: Graph, inputs: Sequence[bool]) -> tuple[bool, ...]:
    """One flag an output; ``inputs`` says which placeholders require grad (and grad mode is on)."""
    live: dict[str, bool] = {}
    given = iter(inputs)
    for node in graph.nodes:
        if node.kind == "placeholder":
            live[node.name] = next(given)
        elif node.kind != "output":
            live[node.name] = _requires(node, live)
    return tuple(isinstance(o, Ref) and live[o.name] for o in graph.output.args[0])


def _requires(node: Node, live: dict[str, bool]) -> bool:
    if node.kind == "call" and node.target in CUT:
        return False
    reached = any(live[r.name] for r in inputs_of(node))
    return reached and (not isinstance(node.meta, TensorMeta) or has_gradient(node.meta))


def has_gradient(meta: TensorMeta) -> bool:
    """Whether the dtype is one that gradients have."""
    return meta.dtype.is_floating_point or meta.dtype.is_complex
