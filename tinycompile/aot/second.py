"""The gradients as one function of inputs and tangents: what is differentiated again for derivatives of higher order."""

from __future__ import annotations

from dataclasses import replace

from tinycompile.aot.joint import Joint
from tinycompile.ir.builder import inputs_of, refs_in, size_sources
from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Graph, Node, Ref


def gradient_graph(joint: Joint) -> tuple[Graph, tuple[Ref, ...], frozenset[int]]:
    """The graph, the random values that it takes from the forward, and the positions of the primals that it reads.

    It takes the primals, the random values, then the tangents, and returns the gradients: it computes the forward again,
    but random numbers are not drawn again."""
    graph = joint.graph
    gradients = graph.output.args[0][joint.outputs :]
    needed = {r.name for r in refs_in(gradients)}
    drawn: dict[str, Node] = {}
    nodes = {n.name: n for n in graph.nodes}
    body: list[Node] = []
    for node in reversed(graph.nodes[:-1]):
        if node.name not in needed or node.kind == "placeholder":
            continue
        if is_random(nodes[node.args[0].name] if node.kind == "item" else node):
            drawn[node.name] = node
            continue
        body.append(node)
        needed.update(r.name for r in inputs_of(node))
    primals, tangents = graph.placeholders[: joint.primals], graph.placeholders[joint.primals :]
    taken = [replace(n, kind="placeholder", target="", args=(), kwargs=()) for n in drawn.values()]
    output = Node("output", "output", "", (gradients,))
    second = Graph(f"{graph.name}_gradients", (*primals, *taken, *tangents, *reversed(body), output), graph.hints)
    sources = {placeholder for placeholder, _ in size_sources(second).values()}
    reread = frozenset(i for i, p in enumerate(primals) if p.name in needed or p.name in sources or p.meta is None)
    return second, tuple(Ref(n) for n in drawn), reread
