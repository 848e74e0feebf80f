"""Remove calls that change nothing: conversions to what a tensor already is, identity views, and arithmetic that is exact.

``x + 0`` is not exact (-0.0 + 0 is 0.0), ``x - 0``, ``x * 1`` and ``x / 1`` are, in every dtype. Arithmetic gives fresh memory,
so it is only removed where nobody can tell: no output shows it, no write takes it, and nothing is read after a write.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.expr import sym
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.ir.builder import with_refs
from tinycompile.ir.effects import writes_in_between
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS, View
from tinycompile.passes.aliases import escaping


def _is(value: Any, number: int) -> bool:
    return type(value) in (int, float) and value == number


def _plain_zero(value: Any) -> bool:
    """0 or 0.0: subtracting it is exact; -0.0 is not, for -0.0 - -0.0 is 0.0."""
    return _is(value, 0) and str(value)[0] != "-"


# Record -> whether the call returns an argument's values unchanged, given the arguments: the first's, or that named below. The
# metadata must be equal too.
_NEUTRAL: dict[str, Callable[..., bool]] = {
    "mul": lambda x, other: _is(other, 1),
    "div": lambda x, other: _is(other, 1),
    "sub": lambda x, other, alpha=1: _plain_zero(other) and not isinstance(alpha, float),
    "pow_scalar": lambda x, exponent: _is(exponent, 1),
    "clone": lambda x, memory_format=None: True,
    "positive": lambda x: True,
    "restride": lambda x, stride: True,
    "copy": lambda x, src: True,
    "to": lambda x, dtype, copy=False, memory_format=None: not copy,
}
_POSITION = {"copy": 1}
# Calls that return their first argument itself when its metadata is already what they make.
_HANDS_ON: dict[str, Callable[..., bool]] = {
    "to": lambda x, dtype, copy=False, memory_format=None: not copy and memory_format in (None, torch.preserve_format),
    "to_device": lambda x, device, dtype=None, copy=False, memory_format=None: not copy,
    "contiguous": lambda x, memory_format=None: True,
    "identity": lambda x: True,
}


def fold(graph: Graph, apart: AbstractSet[str] = frozenset()) -> Graph:
    """The graph without calls that hand a value on; their users take the value itself. ``apart``: nodes that stay: what
    they hand on may be written to."""
    visible = {n.name for n in graph.nodes} if writes_in_between(graph) else escaping(graph)
    metas: dict[str, Any] = {}
    renamed: dict[str, Ref] = {}
    kept: list[Node] = []
    env = env_with(graph.hints)
    with env.active():
        for node in graph.nodes:
            node = with_refs(node, renamed)
            source = None if node.name in apart else _handed_on(node, metas, visible)
            if source is None:
                kept.append(node)
                metas[node.name] = node.meta
                continue
            renamed[node.name] = source
            if node.name in visible:
                visible.add(source.name)
    return replace(graph, nodes=tuple(kept)) if renamed else graph


def _handed_on(node: Node, metas: dict[str, Any], visible: set[str]) -> Ref | None:
    """The argument that the node's result equals and may be replaced by."""
    if node.kind != "call" or not node.args or not isinstance(node.meta, TensorMeta):
        return None
    source = node.args[_POSITION.get(node.target, 0)]
    if not isinstance(source, Ref) or metas.get(source.name) != node.meta:
        return None
    same = _HANDS_ON.get(node.target)
    if same is not None and same(*node.args):
        return source
    if node.name in visible:
        return None
    neutral = _NEUTRAL.get(node.target)
    if neutral is not None:
        return source if neutral(*node.args) else None
    lowering = OPS[node.target].lowering
    return source if isinstance(lowering, View) and _is_identity(lowering, node) else None


def _is_identity(lowering: View, node: Node) -> bool:
    """Whether a view maps each coordinate to itself. Views that mean numeric inputs are left alone."""
    if any(isinstance(a, Ref) for a in node.args[1:]):
        return False
    coords = tuple(sym(f"i{d}", 0, size) for d, size in enumerate(node.meta.shape))
    return lowering.index(coords, node.meta, node.meta, *node.args[1:]) == coords
