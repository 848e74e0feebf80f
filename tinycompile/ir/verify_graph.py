"""Check a graph against the rules that the rest of the pipeline relies on."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.errors import VerifyError
from tinycompile.base.expr import Expr, symbols
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.ir.builder import dims_in, inputs_of, map_refs, size_sources
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS

_KINDS = frozenset({"placeholder", "call", "extern", "item", "output"})
_ATOMS = (
    Ref, Expr, int, float, bool, complex, str, type(None), torch.dtype, Device, torch.memory_format, torch.layout,
)  # fmt: skip


def verify_graph(graph: Graph, verified: Graph | None = None) -> None:
    """Raise VerifyError, naming the rule and the node, unless the graph is well formed.

    Every shape rule is run again and must give the metadata that the node carries. ``verified`` was found well formed before:
    a node that stands in both, on nodes that do, is not asked again."""
    if graph is verified:
        return
    _check_order(graph)
    known: dict[str, Node] = {}
    sizes = set(size_sources(graph))
    same = _in_both(graph, verified)
    with ShapeEnv(dict(graph.hints)).active():
        for node in graph.nodes:
            _check_name(node, known)
            _check_defined(node, known)
            if node.name not in same or not all(ref.name in same for ref in inputs_of(node)):
                _check_node(node, known, sizes)
            known[node.name] = node


def _in_both(graph: Graph, verified: Graph | None) -> set[str]:
    """Names of nodes that are the very same in both, under the same sizes."""
    if verified is None or graph.hints != verified.hints or size_sources(graph) != size_sources(verified):
        return set()
    old = {node.name: node for node in verified.nodes}
    return {node.name for node in graph.nodes if old.get(node.name) is node}


def _check_node(node: Node, known: Mapping[str, Node], sizes: set[str]) -> None:
    for arg in (*node.args, *(v for _, v in node.kwargs)):
        _check_type(node, arg)
    _check_sizes(node, sizes)
    if node.kind == "call":
        _check_meta(node, known)
    elif node.kind == "item":
        _check_item(node, known)


def _fail(node: Node, rule: str) -> None:
    raise VerifyError(f"{node.kind} node {node.name!r}: {rule}")


def _check_order(graph: Graph) -> None:
    kinds = [n.kind for n in graph.nodes]
    if not kinds or kinds[-1] != "output" or kinds.count("output") != 1:
        raise VerifyError(f"graph {graph.name!r}: exactly one output node, the last")
    inputs = kinds.count("placeholder")
    if kinds[:inputs].count("placeholder") != inputs:
        raise VerifyError(f"graph {graph.name!r}: placeholders come first")


def _check_name(node: Node, known: Mapping[str, Node]) -> None:
    if node.kind not in _KINDS:
        _fail(node, "unknown kind")
    if not node.name.isidentifier() or keyword.iskeyword(node.name):
        _fail(node, "the name is no identifier")
    if node.name in known:
        _fail(node, "the name is taken")


def _check_defined(node: Node, known: Mapping[str, Node]) -> None:
    for ref in inputs_of(node):
        if ref.name not in known:
            _fail(node, f"uses {ref.name!r} before it is defined")


def _check_type(node: Node, arg: Any) -> None:
    if isinstance(arg, tuple):
        for a in arg:
            _check_type(node, a)
    elif not isinstance(arg, _ATOMS):
        _fail(node, f"an argument of type {type(arg).__name__} has no place in a graph")


def _check_sizes(node: Node, sizes: set[str]) -> None:
    for dim in dims_in((node.args, node.kwargs, node.meta)):
        for symbol in symbols(dim):
            if symbol.name not in sizes:
                _fail(node, f"size {symbol.name!r} is no placeholder's")


def _check_meta(node: Node, known: Mapping[str, Node]) -> None:
    op = OPS.get(node.target)
    if op is None:
        _fail(node, f"there is no op {node.target!r}")
        return
    if len(node.args) != len(op.schema.args):
        _fail(node, f"{op.schema} takes {len(op.schema.args)} arguments, defaults filled in; there are {len(node.args)}")
    if node.kwargs:
        _fail(node, "a call has no keyword arguments: they are in schema order")
    again = op.meta(*map_refs(node.args, lambda r: _value_meta(known[r.name])))
    if again != node.meta:
        _fail(node, f"the shape rule gives {_show(again)}, the node says {_show(node.meta)}")


def _value_meta(node: Node) -> Any:
    return Ref(node.name) if node.meta is None else node.meta


def _show(meta: Any) -> str:
    return ", ".join(map(_show, meta)) if isinstance(meta, tuple) else str(meta)


def _check_item(node: Node, known: Mapping[str, Node]) -> None:
    if len(node.args) != 2 or not isinstance(node.args[0], Ref) or not isinstance(node.args[1], int):
        _fail(node, "args must be (Ref, index)")
    metas = known[node.args[0].name].meta
    if not isinstance(metas, tuple) or not 0 <= node.args[1] < len(metas):
        _fail(node, f"{node.args[0]} has no result {node.args[1]}")
    if not isinstance(node.meta, TensorMeta) or metas[node.args[1]] != node.meta:
        _fail(node, f"the meta is {_show(node.meta)}, the call's is {_show(metas[node.args[1]])}")
