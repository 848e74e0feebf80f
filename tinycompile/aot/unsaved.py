"""Which results of a function torch would not have saved for its backward: the caller may write to them before it.

Our formulas read what torch's read, but where one makes the call that the forward made (the gradient of a quotient divides
again), the two are merged, and a backward came to need a result that is no business of its.
"""

from __future__ import annotations

from tinycompile.aot.saving import is_cheap
from tinycompile.ir.builder import inputs_of, refs_in
from tinycompile.ir.effects import may_alias
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS


def unsaved(graph: Graph) -> frozenset[int]:
    """Positions of such results of a forward graph, as it was captured. Where nobody knows, torch may have saved it."""
    saved = set[str]()
    for node in reversed(graph.nodes[:-1]):
        if node.kind != "placeholder":
            saved |= _saved_by_torch(node, node.name in saved)
    nodes = {n.name: n for n in graph.nodes}
    outputs = enumerate(graph.output.args[0])
    return frozenset(i for i, r in outputs if isinstance(r, Ref) and r.name not in saved and nodes[r.name].kind == "call")


def _saved_by_torch(node: Node, itself: bool) -> set[str]:
    """What torch may save at a call, for gradients of all its arguments: of its arguments' values, and its own. ``itself``:
    whether the latter is known to be saved."""
    arguments, op = {r.name for r in inputs_of(node)}, OPS.get(node.target) if node.kind == "call" else None
    if op is not None and may_alias(node):
        return arguments if itself else set()
    if op is None or op.vjp is None:
        return {node.name, *arguments}
    read = op.vjp.reads(op.schema, [True] * len(node.args))
    given = zip(op.schema.args, node.args, strict=True)
    found = {r.name for argument, value in given if argument.name in read for r in refs_in(value)}
    return found | {node.name} if any(name.startswith("result") for name in read) else found


def computed_again(graph: Graph, outputs: int, positions: frozenset[int]) -> frozenset[str]:
    """The results at these positions in a joint graph, where it is cheap to compute them again, and no other result is the
    same."""
    results = list(enumerate(graph.output.args[0][:outputs]))
    kept = {r for i, r in results if i not in positions}
    names = {r.name for i, r in results if i in positions and r not in kept}
    return frozenset(n.name for n in graph.nodes if n.name in names and n.kind == "call" and is_cheap(n))
