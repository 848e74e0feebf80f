"""Run a graph op by op on torch tensors: the ``eager`` backend, and what all other ways of running are compared with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Dim, Expr, evaluate
from tinycompile.base.known_tensors import method_of_torchs
from tinycompile.ir.builder import size_sources
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS

Observer = Callable[[Node, Any], None]


class HasGraph(Protocol):
    """A GraphModule, for one."""

    @property
    def graph(self) -> Graph:
        """The graph."""


def graph_of(given: Graph | HasGraph) -> Graph:
    """The graph itself, or that of a module."""
    return given if isinstance(given, Graph) else given.graph


class Interpreter:
    """Runs a graph node by node. There is a method for each kind of node, to be overridden: each gets the node and its inputs
    as values, and returns the node's value.

    ``values`` and ``sizes`` hold what was computed so far, by name of node and of size symbol."""

    def __init__(self, graph: Graph | HasGraph) -> None:
        self.graph = graph_of(graph)
        self.values: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}

    def run(self, *inputs: Any, observe: Observer | None = None) -> tuple[Any, ...]:
        """The graph's outputs for these tensors and numbers, in the order of its placeholders.

        ``observe(node, value)`` sees every value that is computed. Raises TypeError when the number of inputs is wrong."""
        placeholders = self.graph.placeholders
        if len(inputs) != len(placeholders):
            raise TypeError(f"{self.graph.name} takes {len(placeholders)} inputs, got {len(inputs)}")
        self.values = {n.name: self.placeholder(n, x) for n, x in zip(placeholders, inputs, strict=True)}
        self.sizes = self.read_sizes()
        for node in self.graph.nodes[len(placeholders) : -1]:
            value = self.values[node.name] = self.run_node(node)
            if observe is not None:
                observe(node, value)
        output = self.graph.output
        return self.output(output, tuple(self.fill(a) for a in output.args[0]))

    def run_node(self, node: Node) -> Any:
        """The value of a node that is no placeholder and no output."""
        if node.kind == "item":
            return self.item(node, self.values[node.args[0].name], node.args[1])
        args = tuple([self.fill(a) for a in node.args])
        if node.kind == "call":
            return self.call(node, args)
        return self.extern(node, args, {k: self.fill(v) for k, v in node.kwargs})

    # --- one method a kind ---

    def placeholder(self, node: Node, value: Any) -> Any:
        """An input, as it was given."""
        return value

    def call(self, node: Node, args: tuple[Any, ...]) -> Any:
        """An op: the record ``node.target`` on ``args``, which are in its schema's order."""
        return OPS[node.target].eager(*args)

    def extern(self, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function of torch's, by its dotted path ``node.target``."""
        return torch_function(node.target)(*args, **kwargs)

    def item(self, node: Node, results: Any, index: int) -> Any:
        """One result of a call that has several."""
        return results[index]

    def output(self, node: Node, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """What :meth:`run` returns."""
        return values

    # --- arguments ---

    def read_sizes(self) -> dict[str, int]:
        """The value of each size symbol, from the inputs."""
        values = self.values
        return {s: values[at] if d is None else values[at].shape[d] for s, (at, d) in size_sources(self.graph).items()}

    def size(self, dim: Expr) -> Dim:
        """The value of a symbolic dim."""
        return evaluate(dim, self.sizes)

    def fill(self, arg: Any) -> Any:
        """An argument with Refs replaced by values, symbolic dims by integers, our devices by torch's."""
        if isinstance(arg, Ref):
            return self.values[arg.name]
        if isinstance(arg, tuple):
            return tuple([self.fill(a) for a in arg])
        if isinstance(arg, Expr):
            return self.size(arg)
        return arg.torch() if isinstance(arg, Device) else arg


def run_graph(graph: Graph, inputs: Sequence[Any], observe: Observer | None = None) -> tuple[Any, ...]:
    """The graph's outputs for these tensors and numbers: see :meth:`Interpreter.run`."""
    return Interpreter(graph).run(*inputs, observe=observe)


@cache
def torch_function(path: str) -> Callable[..., Any]:
    """The function that an extern node names, ``torch.fft.rfft`` for example; also one of our own modules, loaded already."""
    root, *parts = path.split(".")
    found: Any = importlib.import_module(root) if root == "tinycompile" else torch
    for part in parts:
        found = method_of_torchs(part) if found is torch.Tensor else getattr(found, part)
    return found
