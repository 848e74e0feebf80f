"""Random numbers inside kernels: calls that draw become functions of seeds, which one call draws for the whole graph.

It runs before differentiation, so that what a backward needs of the noise is the seeds: the noise itself is computed again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.eager.fake import tracing
from tinycompile.ir.builder import map_refs, with_refs
from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.random import FORMS
from tinycompile.ops.record import OPS
from tinycompile.passes.decompose import Expander


def draw_in_kernels(graph: Graph) -> Graph:
    """The graph with every random call that has a form written as a function of seeds; the same graph if there is none."""
    drawing = [n for n in graph.nodes if n.kind == "call" and n.target in FORMS and is_random(n)]
    if not drawing:
        return graph
    expander = _Drawer(graph, drawing)
    env = env_with(graph.hints)
    with env.active(), tracing(expander):
        for node in graph.nodes:
            expander.add(node)
    return replace(graph, nodes=tuple(expander.nodes))


class _Drawer(Expander):
    """Seeds of each device are drawn before its first use; a call takes the next of them."""

    def __init__(self, graph: Graph, drawing: list[Node]) -> None:
        super().__init__(graph)
        self._count = Counter(_first(n.meta).device for n in drawing)
        self._used: Counter[Any] = Counter()
        self._seeds: dict[Any, Ref] = {}

    def add(self, node: Node) -> None:
        """Copy a node, or record what a random call comes to."""
        if node.kind != "call" or node.target not in FORMS or not is_random(node):
            super().add(node)
            return
        node = with_refs(node, self.results)
        device = _first(node.meta).device
        if device not in self._seeds:
            self._seeds[device] = self._draw(node, (self._count[device], device))
        seeds, self._used[device] = self._seeds[device], self._used[device] + 1
        self.start_part(node)
        refs = self.expand_with(
            FORMS[node.target],
            (self.fake(seeds), self._used[device] - 1, *map_refs(node.args, self.fake)),
            node.meta,
        )
        self.end_part(node, refs)

    def _draw(self, node: Node, args: tuple[Any, ...]) -> Ref:
        self.start_part(node)
        ref = self._append("seeds", "call", "random_seeds", args, {}, OPS["random_seeds"].meta(*args))
        self.nodes.extend(self.part.values())
        return ref


def _first(meta: Any) -> TensorMeta:
    return meta[0] if isinstance(meta, tuple) else meta
