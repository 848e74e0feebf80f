"""Anomaly mode, in which torch names the forward line of a gradient that is NaN, or that can't be had.

A compiled function is one node to torch, with one line: that of the call. So while the mode is on, a graph with gradients
runs op by op on torch's own tape. Each op is called from a frame that bears the line that it was captured from, for torch
keeps the stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch

from tinycompile.ir.effects import COPY
from tinycompile.ir.graph import Graph, Location, Node
from tinycompile.ir.interpreter import Interpreter

Fn = Callable[..., tuple[Any, ...]]


def named_by_line(graph: Graph, call: Fn) -> Fn:
    """``call``, which computes a graph and attaches its backward; in anomaly mode the graph op by op."""

    by_op = by_lines(graph)

    def run(*inputs: Any) -> tuple[Any, ...]:
        return by_op(*inputs) if torch.is_anomaly_enabled() else call(*inputs)

    return run


def by_lines(graph: Graph) -> Fn:
    """A graph op by op, on torch's own tape."""

    def run(*inputs: Any) -> tuple[Any, ...]:
        results: tuple[Any, ...] = _Lines(graph).run(*inputs)
        return results

    return run


class _Lines(Interpreter):
    """Runs each node as if the program's own line did."""

    def run_node(self, node: Node) -> Any:
        run = super().run_node
        return run(node) if node.loc is None else _frame(node.loc)(run, node)

    def extern(self, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if node.target != COPY:
            return super().extern(node, args, kwargs)
        with torch.no_grad():  # what the program wrote has its history elsewhere
            return super().extern(node, args, kwargs)


def _called(run: Callable[[Node], Any], node: Node) -> Any:
    return run(node)


@functools.lru_cache(maxsize=4096)
def _frame(place: Location) -> Callable[[Callable[[Node], Any], Node], Any]:
    """A function that calls another, at a line of the program."""
    name = place.function or _called.__name__
    code = _called.__code__.replace(co_filename=place.file, co_name=name, co_firstlineno=place.line - 1)
    return FunctionType(code, globals())
