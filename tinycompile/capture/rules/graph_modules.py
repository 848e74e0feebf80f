"""Calls of a ``GraphModule``: its nodes are recorded again, for the inputs of this call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinycompile.base.expr import Dim, Expr, substitute
from tinycompile.base.meta import TensorMeta
from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.symbolic import SymInt, dim_value
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.ir.effects import COPY
from tinycompile.ir.graph import Graph, Node
from tinycompile.ir.graph_module import GraphModule
from tinycompile.ir.interpreter import Interpreter, torch_function

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@rule(GraphModule.run)
def run(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``graph_module.run(*inputs)``."""
    module, *inputs = args
    if kwargs or not isinstance(module, ObjectValue):
        raise GraphBreak("unsupported-value", f"a call of {module.describe()}")
    assert isinstance(module.obj, GraphModule)
    results = _Replay(tr, module.obj.graph).run(*inputs)
    return TupleValue([r if isinstance(r, Value) else _value(r) for r in results])


def _value(result: Any) -> Value:
    return dim_value(result) if isinstance(result, Expr) else Const(result)


class _Replay(Interpreter):
    """Runs a graph on Values of capture. Nodes keep their names and the user's lines."""

    def __init__(self, tr: Tracer, graph: Graph) -> None:
        super().__init__(graph)
        self.tr = tr

    def call(self, node: Node, args: tuple[Any, ...]) -> Value:
        return self._noted(node, torch_calls.run_op(self.tr, node.target, self._given(args), self._operands(args)))

    def extern(self, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Value:
        if node.target == COPY:
            return torch_calls.call_method(self.tr, args[0], "copy_", [args[1]], {})
        given, named = self._given(args), {k: self._given((v,))[0] for k, v in kwargs.items()}
        operands = self._operands((*args, *kwargs.values()))
        return self._noted(node, torch_calls.extern(self.tr, node.target, torch_function(node.target), given, named, operands))

    def item(self, node: Node, results: Any, index: int) -> Value:
        return self._noted(node, results.values(self.tr)[index])

    # --- arguments ---

    def read_sizes(self) -> dict[str, Any]:
        """Of a tensor's dims or of a number: an int or a symbolic dim."""
        found: dict[str, Any] = {}
        for node in self.graph.placeholders:
            value = self.values[node.name]
            if isinstance(node.meta, TensorMeta):
                if not isinstance(value, TensorValue):
                    raise GraphBreak("unsupported-value", f"{node.name} is no tensor: {value.describe()}")
                for dim, actual in zip(node.meta.shape, value.meta.shape, strict=True):
                    if isinstance(dim, Expr):
                        found.setdefault(str(dim), actual)
            else:
                found[node.name] = value.dim if isinstance(value, SymInt) else value.constant(self.tr)
        return found

    def size(self, dim: Expr) -> Dim:
        return substitute(dim, self.sizes)

    def _given(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments as the dispatcher takes them."""
        return tuple(
            a.argument(self.tr) if isinstance(a, Value) else self._given(a) if isinstance(a, tuple) else a for a in args
        )

    def _operands(self, args: tuple[Any, ...]) -> list[Value]:
        found: list[Value] = []
        for a in args:
            if isinstance(a, Value):
                found.append(a)
            elif isinstance(a, tuple):
                found += self._operands(a)
        return found

    def _noted(self, node: Node, value: Value) -> Value:
        """A new node gets the name and the line of the old one."""
        values = value.values(self.tr) if isinstance(value, TupleValue) else [value]
        nodes = self.tr.builder.nodes
        for v in values:
            if isinstance(v, TensorValue) and not v.is_input:
                made = nodes[v.fake.ref.name]
                nodes[made.name] = replace(made, loc=node.loc or made.loc)
                if made.kind == "item":
                    call = nodes[made.args[0].name]
                    nodes[call.name] = replace(call, loc=node.loc or call.loc)
        if isinstance(value, TensorValue):
            self.tr.name_after(value, node.name)
        return value
