"""``GraphModule``: a graph that can be called, printed, edited, compiled, and handed to a backend."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from tinycompile.ir.builder import UniqueNames, identifier
from tinycompile.ir.editor import GraphEditor
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import run_graph

Bind = Callable[[Callable[..., tuple[Any, ...]]], FunctionType]


class GraphModule:
    """A callable view of a :class:`~tinycompile.ir.graph.Graph`: runs it op by op on torch tensors.

    A backend's takes the graph's inputs and returns a tuple of its outputs. One from :func:`tinycompile.trace` is called
    like the function that was traced: ``bind`` puts a way to run the graph into the Python that finds its inputs and rebuilds
    the result.
    """

    def __init__(self, graph: Graph, bind: Bind | None = None) -> None:
        self.graph = graph
        self._bind = bind
        self.function = _plain(graph, self.run) if bind is None else bind(GraphModule(graph).run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """The graph's outputs for its inputs, in the order of its placeholders."""
        return run_graph(self.graph, inputs)

    @property
    def code(self) -> str:
        """The graph as runnable Python."""
        return print_graph(self.graph)

    def edit(self) -> GraphEditor:
        """A list of the graph's nodes, to be changed; see :meth:`with_graph`."""
        return GraphEditor(self.graph)

    def with_graph(self, graph: Graph) -> GraphModule:
        """The same module around another graph. Raises ValueError if a traced function's inputs or outputs would not fit it."""
        if self._bind is not None:
            old, new = self._ends(self.graph), self._ends(graph)
            if old != new:
                raise ValueError(
                    f"{self.graph.name} has {old[0]} inputs and {old[1]} outputs, the new graph {new[0]} and {new[1]}"
                )
        return GraphModule(graph, self._bind)

    @staticmethod
    def _ends(graph: Graph) -> tuple[int, int]:
        return len(graph.placeholders), len(graph.output.args[0])

    def __repr__(self) -> str:
        return self.code

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        return GraphModule(self.graph, self._bind)  # graphs are never changed

    def __reduce__(self) -> Any:
        if self._bind is not None:
            raise TypeError(
                f"a traced module can't be pickled, for it belongs to {self.graph.name}'s own Python; "
                "its graph can: pickle .graph, and GraphModule(graph) runs it on the graph's inputs"
            )
        return GraphModule, (self.graph,)


def _plain(graph: Graph, run: Callable[..., tuple[Any, ...]]) -> FunctionType:
    """A function whose parameters are the graph's inputs."""
    names = [n.name for n in graph.placeholders]
    unique = UniqueNames(names)
    name, call = unique.take(identifier(graph.name)), unique.take("run")
    space: dict[str, Any] = {call: run}
    exec(f"def {name}({', '.join(names)}):\n    return {call}({', '.join(names)})\n", space)
    made: FunctionType = space[name]
    return made
