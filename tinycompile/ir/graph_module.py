"""``GraphModule``: a graph that can be called, printed and handed to a backend."""

from __future__ import annotations

from typing import Any

from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import run_graph


class GraphModule:
    """A callable view of a :class:`~tinycompile.ir.graph.Graph`: runs it op by op on torch tensors; returns a tuple."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return run_graph(self.graph, inputs)

    @property
    def code(self) -> str:
        """The graph as runnable Python."""
        return print_graph(self.graph)

    def __repr__(self) -> str:
        return self.code
