"""From the function's result back to Python source: call the graph, then rebuild containers around what it returns."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from tinycompile.base.expr import symbols
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.tracer import Tracer
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.function import BuiltinValue, FunctionValue, PartialValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import ClassValue, PyModuleValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, SetValue, SliceValue, TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.eager.tensor import from_torch
from tinycompile.ir.builder import size_sources
from tinycompile.ir.graph import Graph

_LITERALS = (bool, int, str, bytes, type(None), type(Ellipsis))


class Rebuilder:
    """Collects the graph's outputs and the statements that rebuild one result."""

    def __init__(self, tr: Tracer) -> None:
        self.tr = tr
        self.outputs: list[TensorValue] = []
        self.statements: list[str] = []
        self.symbols: set[str] = set()
        self._names: dict[int, str] = {}
        self._keep: list[Value] = []  # ids stay valid
        self._uses: dict[int, int] = defaultdict(int)

    def result(self, value: Value) -> str:
        """An expression for the whole result."""
        self._count(value)
        return self.expr(value)

    def _count(self, value: Value) -> None:
        """How often each mutable container occurs: one that occurs twice must be one object."""
        self._uses[id(value)] += 1
        self._keep.append(value)
        if self._uses[id(value)] == 1 and value.source is None:
            for part in self._parts(value):
                self._count(part)

    def _parts(self, value: Value) -> list[Value]:
        if isinstance(value, SequenceValue):
            return value.values(self.tr)
        if isinstance(value, DictValue):
            return [v for _, v in value.pairs(self.tr)]
        return []

    def expr(self, value: Value) -> str:
        """An expression for a value; what occurs more than once gets a name."""
        name = self._names.get(id(value))
        if name is not None:
            return name
        text = self._fresh(value)
        shared = isinstance(value, (ListValue, DictValue, SetValue)) or (isinstance(value, TupleValue) and value.items)
        if self._uses[id(value)] > 1 and shared and value.source is None:
            name = self._names[id(value)] = self.tr.guards.names.take("shared")
            self.statements.append(f"{name} = {text}")
            return name
        return text

    def _fresh(self, value: Value) -> str:
        if isinstance(value, TensorValue):
            return self._tensor(value)
        if isinstance(value, Const):
            return self._constant(value.value)
        if isinstance(value, SymInt):
            self.symbols |= {s.name for s in symbols(value.dim)}
            return str(value.dim)
        if value.source is not None:
            return value.source.text
        if isinstance(value, SequenceValue):
            return self._sequence(value)
        if isinstance(value, DictValue):
            return self._dict(value)
        if isinstance(value, SetValue):
            items = ", ".join(self.expr(v) for v in value.items.values())
            return (
                f"{self.held(value.cls, value.cls.__name__)}([{items}])"
                if value.cls is frozenset or not items
                else f"{{{items}}}"
            )
        if isinstance(value, SliceValue):
            return f"{self.held(slice, 'slice')}({', '.join(self.expr(p) for p in value.parts)})"
        if isinstance(value, (ClassValue, BuiltinValue, PyModuleValue)) or (
            isinstance(value, FunctionValue) and value.fn is not None
        ):
            return self.held(value.key(self.tr), "constant")
        if isinstance(value, PartialValue):
            raise GraphBreak("reconstruct", "a functools.partial that was made inside")
        raise GraphBreak("reconstruct", value.describe())

    def held(self, obj: Any, hint: str) -> str:
        """The name of an object that the rebuilt code keeps."""
        return self.tr.guards.hold(obj, hint + "_").name

    def _tensor(self, value: TensorValue) -> str:
        if value.is_input:
            assert value.source is not None
            return value.source.text
        name = self._names.get(id(value))
        if name is None:
            hint = self.tr.builder.wish(value.fake.ref)
            name = self._names[id(value)] = self.tr.guards.names.take(hint)
            self.outputs.append(value)
        return name

    def _constant(self, obj: Any) -> str:
        if type(obj) in _LITERALS or (type(obj) is float and math.isfinite(obj)):
            return repr(obj)
        return self.held(obj, "constant")

    def _sequence(self, value: SequenceValue) -> str:
        items = ", ".join(self.expr(v) for v in value.values(self.tr))
        if value.cls is list:
            return f"[{items}]"
        text = f"({items}{',' if len(value.items) == 1 else ''})"
        if value.cls is tuple:
            return text
        cls = self.held(value.cls, value.cls.__name__)
        return f"{cls}._make({text})" if hasattr(value.cls, "_make") else f"{cls}({text})"

    def _dict(self, value: DictValue) -> str:
        items = ", ".join(f"{self.expr(k)}: {self.expr(v)}" for k, v in value.pairs(self.tr))
        if value.cls is dict:
            return f"{{{items}}}"
        cls = self.held(value.cls, value.cls.__name__)
        if value.cls is defaultdict:
            factory = "None" if value.default_factory is None else self.expr(value.default_factory)
            return f"{cls}({factory}, {{{items}}})"
        return f"{cls}({{{items}}})"

    # --- the whole function ---

    def function(self, name: str, signature: str, result: str, graph: Graph) -> tuple[str, str]:
        """The rebuilt function's source, and the name under which it expects the graph."""
        call = self.tr.guards.names.take("graph")
        lines = [f"def {name}({signature}):"]
        lines += [f"    {symbol} = {self._size(graph, symbol)}" for symbol in sorted(self.symbols)]
        if self.outputs:
            names = ", ".join(self._names[id(t)] for t in self.outputs)
            inputs = ", ".join(self._input(i.source, i.ours) for i in self.tr.inputs)
            lines.append(f"    {names}{',' if len(self.outputs) == 1 else ''} = {call}({inputs})")
        for t in self.outputs:
            if t.cls is OurTensor:
                lines.append(f"    {self._names[id(t)]} = {self.held(from_torch, 'from_torch')}({self._names[id(t)]})")
        lines += [f"    {s}" for s in self.statements]
        return "\n".join([*lines, f"    return {result}", ""]), call

    @staticmethod
    def _input(source: Source, ours: bool) -> str:
        return f"{source.text}.torch()" if ours else source.text

    def _size(self, graph: Graph, symbol: str) -> str:
        placeholder, dim = size_sources(graph)[symbol]
        at = next(i for i, n in enumerate(graph.placeholders) if n.name == placeholder)
        source = self.tr.inputs[at].source
        return source.text if dim is None else f"{source.text}.size({dim})"
