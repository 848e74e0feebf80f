"""Masks of fused attention, as its kernels take them: none, the triangle, or rows that lie along memory.

What a mask says is proven as in ``patterns_masks.py``. A kernel of ATen's reads a mask whose last dim is contiguous; any other
sends the call to products and a softmax one by one. transformers makes such masks: an expanded comparison with the row alone
(BERT, ViT), a bias with heads innermost (T5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.calls import ops
from tinycompile.passes.patterns_masks import Sides, sides_of
from tinycompile.passes.rewrite import Splicer

CALL = "scaled_dot_product_attention"
MASK, CAUSAL = 3, 5  # positions of its arguments


def plain_masks(graph: Graph) -> Graph:
    """The graph with each fused attention's mask left out, said as ``is_causal``, or made contiguous, where that helps."""
    nodes = {n.name: n for n in graph.nodes}
    if not any(_masked(n, nodes) for n in graph.nodes):
        return graph
    splicer = Splicer(graph)
    return splicer.run(lambda node: _masked(node, nodes) and splicer.splice(node, lambda: _written(node, nodes, splicer)))


def _masked(node: Node, nodes: Mapping[str, Node]) -> bool:
    return (
        node.kind == "call" and node.target == CALL and isinstance(node.args[MASK], Ref)
        and isinstance(nodes[node.args[MASK].name].meta, TensorMeta)
    )  # fmt: skip


def _written(node: Node, nodes: Mapping[str, Node], splicer: Splicer) -> Any:
    """The call with a plainer mask; None where the mask stays."""
    q, k, v, mask = (splicer.fake(a) for a in node.args[:4])
    dropout, causal, scale, grouped = node.args[4:8]
    known = None if causal else sides_of(node.args[MASK], nodes, q.shape[-2], k.shape[-2])
    kept = None if known is None else _kept(known)
    if kept == "all":
        mask = None
    elif kept == "triangle":
        mask, causal = None, True
    elif q.device.type == "cuda" and not shapes.same(mask.meta.strides[-1], 1):
        mask = ops.contiguous(mask)
    else:
        return None
    made = ops.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)
    return made if made.meta == node.meta else ops.restride(made, node.meta.strides)  # kernels lay results out differently


def _kept(known: Sides) -> str:
    """ "all" columns, those of the "triangle" up to the row's own, or neither of both."""
    neutral = torch.ones if known.below.dtype == torch.bool else torch.zeros
    below = bool((known.below == neutral((), dtype=known.below.dtype)).item())
    if known.diagonal is None:
        return "all" if below else ""
    hidden = not known.above.item() if known.above.dtype == torch.bool else known.above.item() == -torch.inf
    return "triangle" if below and hidden and known.diagonal == 0 else ""
