"""Drop nodes whose results nobody uses. What writes, draws random numbers, or is not known to do neither stays."""

from __future__ import annotations

from dataclasses import replace

from tinycompile.ir.builder import inputs_of
from tinycompile.ir.effects import is_pure
from tinycompile.ir.graph import Graph, Node


def drop_dead(graph: Graph) -> Graph:
    """The graph without dead nodes; placeholders always stay."""
    used: set[str] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.kind in ("output", "placeholder") or node.name in used or not is_pure(node):
            kept.append(node)
            used.update(r.name for r in inputs_of(node))
    return graph if len(kept) == len(graph.nodes) else replace(graph, nodes=tuple(reversed(kept)))
