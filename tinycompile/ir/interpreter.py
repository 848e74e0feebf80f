"""Run a graph op by op on torch tensors: the ``eager`` backend, and what all other ways of running are compared with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr, evaluate
from tinycompile.ir.builder import size_sources
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS


def run_graph(graph: Graph, inputs: Sequence[Any], observe: Callable[[Node, Any], None] | None = None) -> tuple[Any, ...]:
    """The graph's outputs for these tensors and numbers, in the order of its placeholders.

    ``observe(node, value)`` sees every value that is computed. Raises TypeError when the number of inputs is wrong."""
    names = [n.name for n in graph.placeholders]
    if len(inputs) != len(names):
        raise TypeError(f"{graph.name} takes {len(names)} inputs, got {len(inputs)}")
    values: dict[str, Any] = dict(zip(names, inputs, strict=True))
    sizes = {s: values[at] if dim is None else values[at].shape[dim] for s, (at, dim) in size_sources(graph).items()}
    for node in graph.nodes[len(names) : -1]:
        value = _run_node(node, values, sizes)
        values[node.name] = value
        if observe is not None:
            observe(node, value)
    return tuple(fill(a, values, sizes) for a in graph.output.args[0])


def _run_node(node: Node, values: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    if node.kind == "item":
        return values[node.args[0].name][node.args[1]]
    args = [fill(a, values, sizes) for a in node.args]
    if node.kind == "call":
        return OPS[node.target].eager(*args)
    return torch_function(node.target)(*args, **{k: fill(v, values, sizes) for k, v in node.kwargs})


def fill(arg: Any, values: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """An argument with Refs replaced by values, symbolic dims by integers, our devices by torch's."""
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, tuple):
        return tuple(fill(a, values, sizes) for a in arg)
    if isinstance(arg, Expr):
        return evaluate(arg, sizes)
    return arg.torch() if isinstance(arg, Device) else arg


@cache
def torch_function(path: str) -> Callable[..., Any]:
    """The function that an extern node names, ``torch.fft.rfft`` for example; also one of our own modules, loaded already."""
    root, *parts = path.split(".")
    found: Any = importlib.import_module(root) if root == "tinycompile" else torch
    for part in parts:
        found = getattr(found, part)
    return found
