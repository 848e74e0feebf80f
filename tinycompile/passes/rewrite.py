"""Rewriting nodes, which are frozen: what passes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinycompile.ir.builder import map_refs
from tinycompile.ir.graph import Node, Ref


def with_refs(node: Node, renamed: Mapping[str, Ref]) -> Node:
    """The node with some of its inputs replaced; the node itself when none is."""
    if not renamed:
        return node
    args = map_refs(node.args, lambda r: renamed.get(r.name, r))
    kwargs = tuple((k, map_refs(v, lambda r: renamed.get(r.name, r))) for k, v in node.kwargs)
    if args == node.args and kwargs == node.kwargs:
        return node
    return replace(node, args=args, kwargs=kwargs)
