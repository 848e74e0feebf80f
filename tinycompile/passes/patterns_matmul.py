"""An activation of a linear layer moves into the library's epilogue, where that is one kernel and its result is needed alone.

cuBLASLt applies bias and activation to the float32 sums before they are rounded and written, which saves writing and reading
the layer's result once. What a backward reads (the argument of gelu) keeps the two apart: then the layer has two users.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import inputs_of
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS

HALVES = (torch.bfloat16, torch.float16)


def activate_products(graph: Graph) -> Graph:
    """The graph with ``relu(linear(x, w, b))`` and ``gelu(linear(x, w, b), "tanh")`` of half types on a GPU as one call."""
    nodes = {n.name: n for n in graph.nodes}
    uses = Counter(r.name for n in graph.nodes for r in inputs_of(n))
    if any(written(n) for n in graph.nodes):
        return graph
    changed: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        activation = _activation(node)
        layer = nodes.get(node.args[0].name) if activation and isinstance(node.args[0], Ref) else None
        if layer is None or activation is None or uses[layer.name] != 1 or not _suits(layer):
            continue
        args = OPS["linear_activation"].schema.bind((*layer.args, activation), {})
        changed[node.name] = replace(node, target="linear_activation", args=tuple(args), kwargs=())
        gone.add(layer.name)
    kept = tuple(changed.get(n.name, n) for n in graph.nodes if n.name not in gone)
    return replace(graph, nodes=kept) if changed else graph


def _activation(node: Node) -> str | None:
    if node.kind != "call":
        return None
    if node.target == "relu":
        return "relu"
    return "gelu" if node.target == "gelu" and node.args[1] == "tanh" else None


def _suits(layer: Node) -> bool:
    """A linear layer with a bias, of half types, on a GPU: float32 sums are products of their own there."""
    meta = layer.meta
    return (
        layer.kind == "call" and layer.target == "linear" and isinstance(layer.args[2], Ref) and isinstance(meta, TensorMeta)
        and meta.device.type == "cuda" and meta.dtype in HALVES and meta.rank >= 2
    )  # fmt: skip
