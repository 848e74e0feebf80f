"""Print a Graph as Python that runs against ``tinycompile.ops.calls.ops``. The text is complete: equal text, equal graph."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.dispatch.schema import MISSING
from tinycompile.ir.builder import identifier, size_sources
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS

_HEADER = """from math import inf, nan

import torch

from tinycompile.base.device import Device
from tinycompile.ops.calls import ops

"""


def print_graph(graph: Graph) -> str:
    """The graph as a module with one function. Comments give each value's metadata and the user's lines."""
    lines = [
        _HEADER,
        f"def {identifier(graph.name)}(",
        *(f"    {n.name},  # {_input_note(n)}{', given up' if n.name in graph.donated else ''}" for n in graph.placeholders),
        "):",
    ]
    hints = dict(graph.hints)
    for symbol, (source, dim) in size_sources(graph).items():
        if dim is not None:
            lines.append(f"    {symbol} = {source}.shape[{dim}]  # {hints.get(symbol, '?')} at capture")
    seen: Any = None
    for node in graph.nodes:
        if node.kind == "placeholder":
            continue
        if node.loc is not None and node.loc != seen:
            seen = node.loc
            lines.append(f"    # {seen.file}:{seen.line}" + (f" in {seen.function}" if seen.function else ""))
        lines.append("    " + _statement(node))
    return "\n".join(lines) + "\n"


def _input_note(node: Node) -> str:
    return node.target if node.meta is None else str(node.meta)


def _statement(node: Node) -> str:
    if node.kind == "output":
        return f"return {literal(node.args[0])}"
    if node.kind == "item":
        text = f"{node.args[0]}[{node.args[1]}]"
    elif node.kind == "extern":
        args = [*map(literal, node.args), *(f"{k}={literal(v)}" for k, v in node.kwargs)]
        text = f"{node.target}({', '.join(args)})"
    else:
        text = f"ops.{node.target}({', '.join(_call_args(node))})"
    return f"{node.name} = {text}  # {_meta_note(node.meta)}"


def _call_args(node: Node) -> list[str]:
    """Arguments that differ from their defaults: positional as far as there is no gap, then by name."""
    op = OPS.get(node.target)
    if op is None:
        return [literal(a) for a in node.args]
    parts: list[str] = []
    gap = False
    for arg, value in zip(op.schema.args, node.args, strict=True):
        if arg.default is not MISSING and _same(arg.default, value):
            gap = True
        elif gap or arg.kw_only:
            parts.append(f"{arg.name}={literal(value)}")
        else:
            parts.append(literal(value))
    return parts


def _same(default: Any, value: Any) -> bool:
    return type(default) is type(value) and default == value


def _meta_note(meta: Any) -> str:
    return f"({', '.join(map(_meta_note, meta))})" if isinstance(meta, tuple) else str(meta)


def literal(value: Any) -> str:
    """An argument as Python source."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, (Ref, Expr)):
        return str(value)
    if isinstance(value, Device):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout, TensorMeta)):
        return str(value)
    return repr(value)
