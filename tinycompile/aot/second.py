"""The gradients as one function of inputs and tangents: what is differentiated again for derivatives of higher order."""

from __future__ import annotations

from dataclasses import replace

from tinycompile.aot.joint import Joint
from tinycompile.ir.builder import inputs_of, refs_in, size_sources
from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.gradients import CUT
from tinycompile.ops.record import OPS


def gradient_graph(joint: Joint) -> tuple[Graph, tuple[Ref, ...], frozenset[int]]:
    """The graph, the random values that it takes from the forward, and the positions of the primals that it reads.

    It takes the primals, the random values, then the tangents, and returns the gradients: it computes the forward again,
    but random numbers are not drawn again."""
    graph = _without_dropout(joint.graph)
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


def draws_differentiably(joint: Joint) -> bool:
    """Whether a random call, whose numbers must not be drawn again, also passes a gradient on in a way unknown here."""
    return any(is_random(n) and n.target not in (*CUT, "native_dropout") and bool(inputs_of(n)) for n in joint.graph.nodes)


def _without_dropout(graph: Graph) -> Graph:
    """Dropout's result as a product with its mask, which alone is random."""
    masks = {n.args[0].name: n.name for n in graph.nodes if n.kind == "item" and n.args[1] == 1}
    calls = {n.name: n for n in graph.nodes if n.target == "native_dropout" and n.name in masks}
    if not calls:
        return graph
    nodes: list[Node] = []
    delayed: dict[str, list[Node]] = {}  # products, until their mask is there
    for node in graph.nodes:
        call = calls.get(node.args[0].name) if node.kind == "item" else None
        if call is None or call.args[2] is False:
            nodes.append(node)
        elif node.args[1] == 0:
            delayed[masks[call.name]] = _product(node, call, masks[call.name])
        else:
            nodes += [node, *delayed.pop(node.name, ())]
    return replace(graph, nodes=tuple(nodes))


def _product(result: Node, call: Node, mask: str) -> list[Node]:
    x, p, _ = call.args
    kept = OPS["mul"].meta(result.meta, replace(result.meta, dtype=call.meta[1].dtype))
    scale = 0.0 if p == 1 else 1 / (1 - p)
    first = replace(result, name=f"{result.name}_kept", kind="call", target="mul", args=(x, Ref(mask)), meta=kept)
    return [first, replace(first, name=result.name, args=(Ref(first.name), scale), meta=result.meta)]
