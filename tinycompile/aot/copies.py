"""``with_copies``: what the backward must not read from memory that is written to before it runs, it reads from a copy.

The forward's own last nodes write, and the caller does when the forward has run. (The program may edit an input or a result,
too. Where that was saved as it is, torch notices: a copy would cost every step its memory for an edit that hardly comes.) The
copy is a value like any other: the partitioner decides whether it is saved, or something that is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tinycompile.aot.joint import Joint
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import UniqueNames, with_refs
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Node, Ref


def with_copies(joint: Joint, overwritten: AbstractSet[int] = frozenset()) -> Joint:
    """The joint graph, in which what is computed reads such copies. ``overwritten``: primals that the caller writes to."""
    graph = joint.graph
    placeholders = graph.placeholders
    copied = {r.name for n in graph.nodes for r in written(n)} | {placeholders[i].name for i in overwritten}
    twins: dict[str, Ref] = {}
    names, nodes, waiting = UniqueNames([n.name for n in graph.nodes]), list[Node](), list[Node]()
    for node in graph.nodes:
        if node.kind != "placeholder":
            nodes += waiting  # behind the last of them
            waiting = []
        nodes.append(_reading(node, twins))
        if node.name in copied and isinstance(node.meta, TensorMeta):
            twin = replace(_copy(node), name=names.take(f"{node.name}_before"))
            twins[node.name] = Ref(twin.name)
            (waiting if node.kind == "placeholder" else nodes).append(twin)
    return replace(joint, graph=replace(graph, nodes=tuple(nodes)), passing=frozenset(twins))


def _reading(node: Node, twins: Mapping[str, Ref]) -> Node:
    """The node, with copies in place of what they are of; not where it writes: what it writes to comes first."""
    first = written(node)
    changed = with_refs(node, twins)
    return replace(changed, args=(*node.args[: len(first)], *changed.args[len(first) :])) if first else changed


def _copy(node: Node) -> Node:
    meta = TensorMeta(node.meta.shape, node.meta.strides, node.meta.dtype, node.meta.device)
    return replace(node, kind="call", target="restride", args=(Ref(node.name), meta.strides), kwargs=(), meta=meta)
