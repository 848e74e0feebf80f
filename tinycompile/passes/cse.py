"""Compute equal calls once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinycompile.ir.builder import with_refs
from tinycompile.ir.effects import is_pure, written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.passes.aliases import escaping


def merge_equal(graph: Graph) -> Graph:
    """Use the first of several equal pure nodes for all of them, unless that would make two visible tensors one."""
    visible = escaping(graph)
    first: dict[Any, str] = {}
    renamed: dict[str, Ref] = {}
    kept: list[Node] = []
    writes = 0  # equal calls before and after a write are not equal
    for node in graph.nodes:
        if renamed:
            node = with_refs(node, renamed)
        if written(node):
            writes += 1
        if node.kind not in ("call", "item") or not is_pure(node):
            kept.append(node)
            continue
        key = (writes, node.kind, node.target, typed(node.args))
        have = first.setdefault(key, node.name)
        if have == node.name or (have in visible and node.name in visible):
            kept.append(node)
            continue
        renamed[node.name] = Ref(have)
        if node.name in visible:
            visible.add(have)
    return replace(graph, nodes=tuple(kept)) if renamed else graph


def typed(arg: Any) -> Any:
    """An argument as a key under which 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(arg, tuple):
        return tuple(typed(a) for a in arg)
    return (type(arg), repr(arg)) if isinstance(arg, (bool, int, float)) else arg
