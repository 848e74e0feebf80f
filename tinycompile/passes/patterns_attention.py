"""Attention written by hand becomes ``scaled_dot_product_attention``: ``softmax(q k^T * scale + mask) v``.

The scores then never lie in memory. What is recognised: the two products as ``matmul``, ``bmm`` or ``einsum``; scales before
or after the first one; any chain of ``masked_fill``, ``where`` and additive masks; a float32 softmax of half scores; dropout;
keys and values repeated for groups of queries. ``is_causal`` is used where the mask is proven to be the triangle, else the mask
is handed over. A row that a mask empties is NaN by hand, and is made NaN here.

Left as they are: scores or weights that something else reads, graphs that write to memory in between, and what no fused kernel
takes. See ``docs/stages/passes.md`` for what is exact.
"""

from __future__ import annotations

from dataclasses import replace

from tinycompile.ir.graph import Graph, Node
from tinycompile.passes.attention_call import Writer
from tinycompile.passes.attention_match import Finder
from tinycompile.passes.rewrite import Splicer


def recognise_attention(graph: Graph, training: bool = False) -> Graph:
    """The graph with attention by hand replaced. ``training``: only where a fused kernel's gradients are good enough, too."""
    if not any(n.kind == "call" and n.target == "softmax" for n in graph.nodes):
        return graph
    finder = Finder(graph)
    found = {n.name: a for n in graph.nodes if (a := finder.attention(n)) is not None}
    if not found:
        return graph
    splicer = Splicer(graph)
    gone: set[str] = set()

    def change(node: Node) -> bool:
        match = found.get(node.name)
        if match is None or not splicer.splice(node, lambda: Writer(splicer, finder, match, training).write(node.meta)):
            return False
        gone.update(match.inner)
        return True

    done = splicer.run(change)
    return replace(done, nodes=tuple(n for n in done.nodes if n.name not in gone)) if gone else graph
