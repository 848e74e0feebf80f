"""Fold constants: arithmetic on tensors that hold one number throughout becomes such a tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import contiguous_strides
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.ranges import holds
from tinycompile.ops.record import OPS, Pointwise

# Records that fill a tensor with a number -> the number's position.
_FILLS = {"full": 1, "full_like": 1, "scalar_tensor": 0}


def fold_constants(graph: Graph) -> Graph:
    """The graph with such calls replaced by ``full``. A call that torch refuses (1 // 0) stays, and raises when it runs."""
    filled: dict[str, torch.Tensor] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        value = _value(node, filled) if node.kind == "call" else None
        if value is None:
            nodes.append(node)
            continue
        filled[node.name] = value
        nodes.append(node if node.target in _FILLS else _fill(node, value))
    return graph if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)) else replace(graph, nodes=tuple(nodes))


def _value(node: Node, filled: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The number that fills the node's result, as one element of its rank and dtype (both matter in promotion)."""
    meta = node.meta
    if not isinstance(meta, TensorMeta):
        return None
    position = _FILLS.get(node.target)
    if position is not None:
        number = node.args[position]
        unknown = isinstance(number, (Ref, Expr)) or not holds(meta.dtype, number)
        return None if unknown else torch.full((1,) * meta.rank, number, dtype=meta.dtype, device="cpu")
    if not filled or not isinstance(OPS[node.target].lowering, Pointwise) or meta.strides != contiguous_strides(meta.shape):
        return None
    args = [filled.get(a.name) if isinstance(a, Ref) else a for a in node.args]
    known = not any(isinstance(a, Ref) and v is None for a, v in zip(node.args, args, strict=True))
    if not known or not any(isinstance(a, torch.Tensor) for a in args) or any(isinstance(a, Expr) for a in args):
        return None
    try:
        value = OPS[node.target].eager(*args)
    except (RuntimeError, ZeroDivisionError):
        return None
    return value.reshape((1,) * meta.rank) if value.dtype == meta.dtype else None


def _fill(node: Node, value: torch.Tensor) -> Node:
    meta: TensorMeta = node.meta
    args: Any = OPS["full"].schema.bind((meta.shape, value.item()), {"dtype": meta.dtype, "device": meta.device})
    return replace(node, target="full", args=tuple(args), meta=TensorMeta(meta.shape, meta.strides, meta.dtype, meta.device))
