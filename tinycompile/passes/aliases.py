"""Which values can be seen from outside as memory: passes must not let two of them become one."""

from __future__ import annotations

from tinycompile.ir.builder import inputs_of
from tinycompile.ir.effects import may_alias, written
from tinycompile.ir.graph import Graph


def escaping(graph: Graph) -> set[str]:
    """Nodes whose memory an output may show or a write may change: through views, items, and calls that may return views."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.kind == "output" or (node.name in found and may_alias(node)):
            found.update(r.name for r in inputs_of(node))
        if written(node):  # what is written, and what is copied into it, which another write may change
            found.update(r.name for r in inputs_of(node))
    return found
