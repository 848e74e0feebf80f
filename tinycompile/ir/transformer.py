"""``Transformer``: make a new graph from an old one, by running it on fake tensors whose ops are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinycompile.base.expr import Dim, Expr
from tinycompile.base.shapes import ShapeEnv
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor, fake_extern_meta, tracing
from tinycompile.ir.builder import GraphBuilder, inputs_of
from tinycompile.ir.graph import Graph, Node
from tinycompile.ir.interpreter import HasGraph, Interpreter, torch_function
from tinycompile.ir.verify_graph import verify_graph


class Transformer(Interpreter):
    """Runs a graph on fake tensors and records what its methods compute: as it is, it copies the graph.

    Override the method for a kind of node to put something else in its place, written with ``tinycompile.ops.calls.ops`` or
    with torch's functions and operators. Every shape rule runs again, so an edit may change dtypes and shapes downstream."""

    def __init__(self, graph: Graph | HasGraph) -> None:
        super().__init__(graph)
        self.builder = GraphBuilder()
        self._metas = {n.name: n.meta for n in self.graph.nodes}

    def transform(self) -> Graph:
        """The new graph, verified. Raises VerifyError where it breaks a rule, and whatever an op raises for its new inputs."""
        old = self.graph
        with ShapeEnv(dict(old.hints)).active(), tracing(self.builder):
            outputs = self.run(*map(self._input, old.placeholders))
            new = self.builder.finish(old.name, outputs, dict(old.hints))
        verify_graph(new)
        return new

    def _input(self, node: Node) -> Any:
        self.builder.location = node.loc
        return self.builder.placeholder(node.name, node.meta, node.target)

    def run_node(self, node: Node) -> Any:
        self.builder.location = node.loc
        before = len(self.builder.nodes)
        value = super().run_node(node)
        recorded = len(self.builder.nodes) > before or node.kind == "item"
        if recorded and isinstance(value, FakeTensor):
            self.builder.rename(value.ref, node.name)
        return value

    def call(self, node: Node, args: tuple[Any, ...]) -> Any:
        """An op, recorded. Returns a FakeTensor, or a tuple of them."""
        return dispatcher.call_bound(node.target, args)

    def extern(self, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function of torch's, recorded. Its metadata is worked out again where that of its inputs has changed."""
        metas = node.meta
        if self._changed(node):
            metas = fake_extern_meta(torch_function(node.target), args, kwargs)
        return self.builder.extern(node.target, args, kwargs, metas)

    def _changed(self, node: Node) -> bool:
        return any(_meta(self.values[r.name]) != self._metas[r.name] for r in inputs_of(node))

    # --- arguments ---

    def read_sizes(self) -> dict[str, int]:
        """None: symbols stay symbols."""
        return {}

    def size(self, dim: Expr) -> Dim:
        """The dim itself."""
        return dim


def _meta(value: Any) -> Any:
    return tuple(map(_meta, value)) if isinstance(value, tuple) else getattr(value, "meta", None)
