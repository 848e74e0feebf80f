"""``with_copies``: what the backward must not read from memory that is written to before it runs, it reads from a copy.

The forward's own last nodes write, and the caller does when the forward has run. (The program may edit an input or a result,
too. Where that was saved as it is, torch notices: a copy would cost every step its memory for an edit that hardly comes.) The
copy is a value like any other: the partitioner decides whether it is saved, or something that is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from tinycompile.aot.joint import Joint
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.ir.builder import UniqueNames, inputs_of, map_refs, with_refs
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Node, Ref
from tinycompile.ops.record import OPS


def with_copies(joint: Joint, overwritten: AbstractSet[int] = frozenset()) -> Joint:
    """The joint graph, in which what is computed reads such copies. ``overwritten``: primals that the caller writes to."""
    graph = joint.graph
    placeholders = graph.placeholders
    copied = {r.name for n in graph.nodes for r in written(n)} | {placeholders[i].name for i in overwritten}
    twins: dict[str, Ref] = {}
    metas: dict[str, Any] = {}
    moved = set[str]()  # copies, and views of them: where these begin is another place
    names, nodes, waiting = UniqueNames([n.name for n in graph.nodes]), list[Node](), list[Node]()
    with env_with(graph.hints).active():
        for node in graph.nodes:
            if node.kind != "placeholder":
                nodes += waiting  # behind the last of them
                waiting = []
            made = _reading(node, twins)
            if moved and any(r.name in moved for r in inputs_of(made)):
                made = replace(made, meta=meta_again(made, metas))
            nodes.append(made)
            metas[made.name] = made.meta
            if made.meta != node.meta:
                moved.add(made.name)
            if node.name in copied and isinstance(node.meta, TensorMeta):
                twin = replace(_copy(made), name=names.take(f"{node.name}_before"))
                twins[node.name], metas[twin.name] = Ref(twin.name), twin.meta
                if twin.meta != made.meta:
                    moved.add(twin.name)
                (waiting if node.kind == "placeholder" else nodes).append(twin)
    return replace(joint, graph=replace(graph, nodes=tuple(nodes)), passing=joint.passing | twins.keys())


def meta_again(node: Node, metas: Mapping[str, Any]) -> Any:
    """By the shape rule; that of a call without one stays, as its result is torch's to lay out."""
    if node.kind == "item":
        return metas[node.args[0].name][node.args[1]]
    if node.kind != "call":
        return node.meta
    return OPS[node.target].meta(*map_refs(node.args, lambda r: r if metas[r.name] is None else metas[r.name]))


def _reading(node: Node, twins: Mapping[str, Ref]) -> Node:
    """The node, with copies in place of what they are of; not where it writes: what it writes to comes first."""
    first = written(node)
    changed = with_refs(node, twins)
    return replace(changed, args=(*node.args[: len(first)], *changed.args[len(first) :])) if first else changed


def _copy(node: Node) -> Node:
    meta = TensorMeta(node.meta.shape, node.meta.strides, node.meta.dtype, node.meta.device)
    return replace(node, kind="call", target="restride", args=(Ref(node.name), meta.strides), kwargs=(), meta=meta)
