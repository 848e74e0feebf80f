"""``with_copies``: what the backward must not read from memory that others may write to before it runs, it reads from a copy.

Others are: the forward's own last nodes, the caller when the forward has run, and a program that edits an input or a result
that torch would not have saved, and so lets it. (What torch does save may be saved as it is: an edit is torch's error.) The
copy is a value like any other: the partitioner decides whether it is saved, or something that is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tinycompile.aot.joint import Joint
from tinycompile.aot.saved import Kept, Place
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import UniqueNames, inputs_of, with_refs
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS, View


def with_copies(joint: Joint, overwritten: AbstractSet[int] = frozenset(), kept: Sequence[Kept] | None = None) -> Joint:
    """The joint graph, in which what is computed reads such copies. ``overwritten``: primals that the caller writes to.
    ``kept``: the inputs and outputs that torch would save; None: all of them."""
    graph = joint.graph
    views = _views(graph)
    placeholders = graph.placeholders
    rewritten = {r.name for n in graph.nodes for r in written(n)} | {placeholders[i].name for i in overwritten}
    shown = _shown(joint, views)
    copied = rewritten if kept is None else rewritten | _editable(joint, shown, views, {k.place: k.behind for k in kept})
    twins: dict[str, Ref] = {}
    names, nodes, waiting = UniqueNames([n.name for n in graph.nodes]), list[Node](), list[Node]()
    for node in graph.nodes:
        if node.kind != "placeholder":
            nodes += waiting  # behind the last of them
            waiting = []
        as_it_is = node.kind == "output" or (node.name in shown and node.name in views)
        nodes.append(_reading(node, {n: r for n, r in twins.items() if n in rewritten} if as_it_is else twins))
        if node.name in copied and isinstance(node.meta, TensorMeta):
            twin = _copy(node)
        elif as_it_is and node.kind != "output" and (other := _reading(node, twins)) != nodes[-1]:
            twin = other
        else:
            continue
        twin = replace(twin, name=names.take(f"{node.name}_before"))
        twins[node.name] = Ref(twin.name)
        (waiting if node.kind == "placeholder" else nodes).append(twin)
    return replace(joint, graph=replace(graph, nodes=tuple(nodes)), passing=frozenset(copied & twins.keys()))


def _reading(node: Node, twins: Mapping[str, Ref]) -> Node:
    """The node, with copies in place of what they are of; not where it writes: what it writes to comes first."""
    first = written(node)
    changed = with_refs(node, twins)
    return replace(changed, args=(*node.args[: len(first)], *changed.args[len(first) :])) if first else changed


def _copy(node: Node) -> Node:
    meta = TensorMeta(node.meta.shape, node.meta.strides, node.meta.dtype, node.meta.device)
    return replace(node, kind="call", target="restride", args=(Ref(node.name), meta.strides), kwargs=(), meta=meta)


# --- whose memory is seen ----------------------------------------------------------------------------------------------------


def _views(graph: Graph) -> set[str]:
    found = set[str]()
    for node in graph.nodes:
        several = node.kind == "item" and node.args[0].name in found  # views made by one call
        if several or (node.kind == "call" and isinstance(OPS[node.target].lowering, View)):
            found.add(node.name)
    return found


def _shown(joint: Joint, views: AbstractSet[str]) -> dict[str, set[int]]:
    """By name: the outputs that lie in a value's memory."""
    shown: dict[str, set[int]] = {}
    for i, r in enumerate(joint.graph.output.args[0][: joint.outputs]):
        if isinstance(r, Ref):
            shown.setdefault(r.name, set()).add(i)
    for node in reversed(joint.graph.nodes):
        if node.name in shown and node.name in views:
            shown.setdefault(node.args[0].name, set()).update(shown[node.name])
    return shown


def _editable(
    joint: Joint, shown: Mapping[str, set[int]], views: AbstractSet[str], kept: Mapping[Place, AbstractSet[int]]
) -> set[str]:
    """The inputs, and the owners of the outputs' memory, that some gradient depends on for which torch would not save them."""
    primals = {p.name: i for i, p in enumerate(joint.graph.placeholders[: joint.primals])}
    found = set[str]()
    for name, outputs in _readers(joint).items():
        places: list[Place] = [("output", i) for i in shown.get(name, ())]
        if name in primals:
            places.append(("input", primals[name]))
        elif name in views:
            continue
        if places and not any(outputs <= kept.get(p, frozenset()) for p in places):
            found.add(name)
    return {n.name for n in joint.graph.nodes if n.name in found and _is_plain(n.meta)}


def _readers(joint: Joint) -> dict[str, set[int]]:
    """By name of what is computed before the tangents are known: the outputs whose gradients it takes part in."""
    behind: dict[str, set[int]] = {}
    readers: dict[str, set[int]] = {}
    tangents = joint.graph.placeholders[joint.primals :]
    for tangent, output in zip(tangents, joint.tangents, strict=True):
        behind[tangent.name] = {output}
    for node in joint.graph.nodes[:-1]:
        outputs = set[int]().union(*(behind.get(r.name, ()) for r in inputs_of(node)))
        if outputs:
            behind[node.name] = outputs
            for ref in inputs_of(node):
                if ref.name not in behind:
                    readers.setdefault(ref.name, set()).update(outputs)
    for node in reversed(joint.graph.nodes[:-1]):
        if node.name in readers and node.name not in behind:
            for ref in inputs_of(node):
                readers.setdefault(ref.name, set()).update(readers[node.name])
    return readers


def _is_plain(meta: object) -> bool:
    """Whether a tensor can be copied with its strides."""
    return isinstance(meta, TensorMeta) and all(d != 0 or n == 1 for n, d in zip(meta.shape, meta.strides, strict=True))
