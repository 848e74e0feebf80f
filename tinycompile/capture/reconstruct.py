"""From Values back to Python source: call the graph, then rebuild what is made of its results: the function's result, or
the variables and the operand stack of a frame that is left at a break."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from tinycompile.base.expr import symbols
from tinycompile.base.raised import COMMITTED
from tinycompile.capture import rebuilt_objects as objects
from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.callers import speaks_of_frames
from tinycompile.capture.inheritance import SuperValue
from tinycompile.capture.marks import disable
from tinycompile.capture.rebuilt_constants import Literals, constant
from tinycompile.capture.rebuilt_sets import set_object
from tinycompile.capture.rules.functions_of import FunctionOf
from tinycompile.capture.rules.mapping import MappedFunction
from tinycompile.capture.rules.optimizers import is_step
from tinycompile.capture.sources import Asked, Held, Local, Source
from tinycompile.capture.torch_warnings import Telling
from tinycompile.capture.tracer import Tracer
from tinycompile.capture.trust import trusts
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.autocast import AutocastMode, change_regions
from tinycompile.capture.values.base import Lazy, MethodOf, Value
from tinycompile.capture.values.callable import Getter
from tinycompile.capture.values.classes import ClassValue, PyModuleValue
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.container import NewContainer
from tinycompile.capture.values.context import GradMode, NullContext, UnderGradMode
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, Cell, CodeConstant, FunctionValue
from tinycompile.capture.values.generic import Hint
from tinycompile.capture.values.mapping import DictValue, DictView
from tinycompile.capture.values.module import ModuleCall, ModuleValue, is_called_plainly
from tinycompile.capture.values.namespace import AttributesValue
from tinycompile.capture.values.object import DELETED, NewObject, ObjectValue
from tinycompile.capture.values.partial import KeywordsValue, PartialValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, SliceValue, TupleValue
from tinycompile.capture.values.set_steps import program
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.views import is_data
from tinycompile.eager.autocast import region_state
from tinycompile.eager.recording import GraphOnTape
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.ir.builder import identifier, size_sources
from tinycompile.ir.effects import refuses_some_values
from tinycompile.ir.graph import Graph


class Rebuilder:
    """Collects the graph's outputs and the statements that rebuild one result."""

    def __init__(self, tr: Tracer) -> None:
        self.tr = tr
        self.outputs: list[TensorValue] = []
        self._spent: set[int] = set()  # outputs whose backward is in the graph, by id
        self.statements: list[str] = []
        self.commits: list[str] = []  # statements that change something outside: when one fails, the call can't be redone
        self.following: list[str] = []  # views made again of what torch copies into, which know of its history
        self.calls_graph = False  # whether something of the graph is read, or it may raise an error
        self.remakes = False  # whether tensors with a history are made, or written, behind the graph
        self.symbols: set[str] = set()
        self.names: dict[int, str] = {}
        self._reached: dict[str, str] = {}
        self._unfilled: list[tuple[str, Value | Lazy]] = []  # cells without their contents yet
        self._depth = 0  # of expressions inside expressions
        self._keep: list[Value] = []  # ids stay valid
        self._uses: dict[int, int] = defaultdict(int)
        self.literals = Literals(tr.is_code_constant)
        self.computed: dict[int, str] = {}  # names of numbers and texts that each call has others of, by id

    def result(self, value: Value | Lazy) -> str:
        """An expression for the whole result."""
        self._count_all([value])
        text = self.expr(value)
        self._finish_statements()
        return text

    def state(self, values: Sequence[Value | Lazy], replaced: Mapping[int, str]) -> str:
        """An expression for a tuple of these. ``replaced``: expressions for some, by position."""
        self._count_all([value for at, value in enumerate(values) if at not in replaced])
        items = [replaced[at] if at in replaced else self.expr(value) for at, value in enumerate(values)]
        self._finish_statements()
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def compiled(self, fn: Value, compile_callee: Callable[[FunctionType], Callable[..., Any]]) -> str | None:
        """A callable as a compiled one; None where it is not a Python function of the user's."""
        if isinstance(fn, MethodOf) and isinstance(fn.receiver, ObjectValue):
            fn = fn.receiver.get_attr(self.tr, fn.name)
        if isinstance(fn, ModuleValue):
            return self._compiled_module(fn, compile_callee)
        if isinstance(fn, BoundFunction):
            text = self.compiled(fn.fn, compile_callee)
            return None if text is None else f"{self.held(MethodType, 'MethodType')}({text}, {self.expr(fn.receiver)})"
        if not isinstance(fn, FunctionValue) or fn.fn is None or fn.wrapper is not None:
            return None
        if not is_step(fn.fn) and (trusts(fn.fn) or fn.fn.__dict__ or speaks_of_frames(fn.fn.__code__)):
            return None
        return self.held(compile_callee(fn.fn), f"compiled_{fn.fn.__name__}")

    def uncompiled(self, fn: Value) -> str | None:
        """A callable that is compiled, or a method that is, as one that runs in plain Python; None where it is not."""
        if isinstance(fn, MethodOf) and isinstance(fn.receiver, ObjectValue):
            fn = fn.receiver.get_attr(self.tr, fn.name)
        if isinstance(fn, BoundFunction):
            text = self.uncompiled(fn.fn)
            return None if text is None else f"{self.held(MethodType, 'MethodType')}({text}, {self.expr(fn.receiver)})"
        if not isinstance(fn, FunctionValue) or fn.wrapper is None:
            return None
        return self.held(disable(fn.wrapper), f"plain_{fn.name}")

    def _compiled_module(self, fn: ModuleValue, compile_callee: Callable[[FunctionType], Callable[..., Any]]) -> str | None:
        cls = type(fn.obj)
        if not is_called_plainly(fn.obj) or not isinstance(cls.forward, FunctionType) or trusts(cls.forward):
            return None
        if speaks_of_frames(cls.forward.__code__):
            return None
        return self.held(ModuleCall(fn.obj, compile_callee(cls.forward)), f"compiled_{cls.__name__}")

    def _count_all(self, values: Sequence[Value | Lazy]) -> None:
        for value in values:
            self._count(value)
        for entry in self.tr.effects.parts(self.tr):
            self._count(entry)

    def _finish_statements(self) -> None:
        """What changes outside: objects, and torch's own state. All expressions have been evaluated before."""
        self.tr.effects.check_views(self.outputs)
        self.tr.effects.guard_distinct(self.tr)
        self.commits = self.tr.effects.replay(self)  # (what torch copies into tensors from outside is an output, too)
        self._spent = {id(t) for t in self.outputs if self.tr.effects.gradients.is_spent(self.tr, t)}
        self.statements += self.tr.effects.count_results(self)
        if self.tr.grad_enabled != self.tr.root_grad_enabled:
            self.commits.append(f"{self.held(torch.set_grad_enabled, 'set_grad_enabled')}({self.tr.grad_enabled})")
        if self.tr.changes_regions():
            change, state = self.held(change_regions, "change_regions"), self.held(region_state(), "autocast")
            self.commits.append(f"{change}({state}, {self.tr.autocast_depth})")

    def _count(self, value: Value | Lazy) -> None:
        """How often each object that was made inside occurs: one that occurs twice must be one object."""
        if isinstance(value, Lazy):
            return
        self._uses[id(value)] += 1
        self._keep.append(value)
        if self._uses[id(value)] == 1 and value.source is None and id(value) not in self.names:
            for part in self._parts(value):
                self._count(part)

    def _parts(self, value: Value) -> Sequence[Value | Lazy]:
        if isinstance(value, SequenceValue):
            return value.values(self.tr)
        if isinstance(value, KeywordsValue):
            return [value.owner]
        if isinstance(value, DictValue):
            return [*(v for _, v in value.pairs(self.tr)), *_attributes(value.holder)]
        if isinstance(value, SetValue):
            return program(self.tr, value, exact=True)[1]
        if isinstance(value, Cell):
            return [] if value.content is None else [value.content]
        if isinstance(value, FunctionValue) and value.fn is None:
            return [*value.defaults, *value.kwdefaults.values(), *value.closure, *value.attributes.values()]
        if isinstance(value, (MappedFunction, FunctionOf)):
            return [value.fn]
        if isinstance(value, PartialValue):
            return [value.fn, value.listed, *value.kwargs(self.tr).values()]
        if isinstance(value, BoundFunction):
            return [value.fn, value.receiver]
        if isinstance(value, DictView):
            return [value.of]
        if isinstance(value, UnderGradMode):
            return [value.fn]
        if isinstance(value, Getter):
            return [*value.args, *value.kwargs.values()]
        if isinstance(value, (MethodOf, SuperValue)):
            return [value.receiver]
        if isinstance(value, ExceptionValue):
            more = [] if value.was_raised else [*value.arguments(self.tr), *([value.notes] if value.notes else [])]
            return [*more, *(v for v in value.shadow.values() if v is not DELETED)]
        if isinstance(value, NewContainer):
            contents = self._parts(value.base)
            return contents if isinstance(value.base, DictValue) else [*contents, *_attributes(value)]
        return _attributes(value)

    def expr(self, value: Value | Lazy) -> str:
        """An expression for a value; what occurs more than once gets a name."""
        self._depth += 1
        text = self._expr(value)
        self._depth -= 1
        while not self._depth and self._unfilled:  # objects that may refer to each other all exist by now
            cell, content = self._unfilled.pop()
            self.statements.append(f"{cell}.cell_contents = {self.expr(content)}")
        return text

    def _expr(self, value: Value | Lazy) -> str:
        if isinstance(value, Lazy):
            return self.reach(value.source)
        holder = getattr(value, "holder", None)
        if holder is not None and id(value) not in self.names:
            return self.expr(holder)
        name = self.names.get(id(value))
        if name is not None:
            return name
        if value.source is None and isinstance(value, Cell):
            return self._cell(value)
        try:
            text = self._fresh(value)
        except NotRebuildable as error:
            error.holders.append(value)
            raise
        name = self.names.get(id(value))
        if name is not None:  # it got one on the way
            return name
        shared = isinstance(value, _OBJECTS) or (isinstance(value, TupleValue) and value.items)
        if self._uses[id(value)] > 1 and shared and value.source is None and not text.isidentifier():
            name = self.names[id(value)] = self.tr.guards.names.take("shared")
            self.statements.append(f"{name} = {text}")
            return name
        return text

    def _fresh(self, value: Value) -> str:
        if isinstance(value, TensorValue):
            return self._tensor(value)
        if isinstance(value, Const):
            return constant(self, value)
        if isinstance(value, SymInt):
            self.symbols |= {s.name for s in symbols(value.dim)}
            return str(value.dim)
        if isinstance(value, ScalarValue):
            self.symbols |= value.names
            return value.text
        if value.source is not None:
            return self.reach(value.source)
        origin = self.tr.origin(value) if isinstance(value, TupleValue) else None
        if origin is not None:
            return self.reach(origin[1])
        if isinstance(value, (ClassValue, BuiltinValue, PyModuleValue, Hint)):
            return self.held(value.key(self.tr), "constant")
        for kind, rule in _REBUILD.items():
            if isinstance(value, kind):
                return rule(self, value)
        raise NotRebuildable(value, value.describe())

    def reach(self, source: Source) -> str:
        """How to reach an object; where something is changed, it is reached before."""
        text = source.text
        if not self.tr.effects or isinstance(source, (Local, Held)):
            return text
        name = self._reached.get(text)
        if name is None:
            name = self._reached[text] = self.tr.guards.names.take(identifier(source.label))
            self.statements.append(f"{name} = {text}")
        return name

    # --- containers ---

    def held(self, obj: Any, hint: str) -> str:
        """The name of an object that the rebuilt code keeps."""
        return self.tr.guards.hold(obj, hint + "_").name

    def _tensor(self, value: TensorValue) -> str:
        if value.is_input:
            assert value.source is not None
            return self._made_here(value) if isinstance(value.source, Asked) else self.reach(value.source)
        places, again, follows = self.tr.unknown_places, None, value.knows_history
        if id(value) in places:
            again = objects.taken_again(self, places[id(value)])
        elif self.tr.effects.rewrites(value) or objects.is_torchs_view(value, self._uses, places):
            again = objects.view_again(self, value)
        value.settle()
        name = self.names[id(value)] = self.tr.guards.names.take(self.tr.builder.wish(value.fake.ref))
        if again is None:
            self.outputs.append(value)
            if objects.comes_as_view(self, value):
                self.statements.append(f"{name} = {self.held(objects.as_owner, 'as_owner')}({name})")
        else:
            self.statements.append(f"{name} = {again}")
            self.following += [name] if follows else []
        of_memory = again is None or (value.view is not None and value.view.origin == "data")
        if of_memory and is_data(value) and not (value.requires_grad or follows):
            part = "[...]" if value.view is not None and not value.view.cut else ""  # to torch a view of that
            self.statements.append(f"{name} = {name}.data{part}")
        return name

    def _made_here(self, value: TensorValue) -> str:
        """A tensor on an array from outside: one object, however often it occurs."""
        name = self.names[id(value)] = self.tr.guards.names.take("tensor")
        self.statements.append(f"{name} = {value.source.text}")  # type: ignore[union-attr]
        return name

    def constant(self, obj: Any) -> str:
        """A literal, or the name of an object that the rebuilt code keeps."""
        return self.literals.of(obj) or self.held(obj, "constant")

    def _sequence(self, value: SequenceValue) -> str:
        items = ", ".join(self.expr(v) for v in value.values(self.tr))
        if value.cls is list:
            return f"[{items}]"
        text = f"({items}{',' if len(value.items) == 1 else ''})"
        if value.cls is tuple:  # (Python keeps one of a display of literals alone, but makes another of its items each time)
            return f"(*{text},)" if value.items and all(isinstance(v, Const) for v in value.items) else text
        cls = self.held(value.cls, value.cls.__name__)
        if hasattr(value.cls, "_make"):  # whose own ways of being made were followed, or are not asked
            return f"{self.held(tuple.__new__, 'new_tuple')}({cls}, {text})"
        return f"{cls}({text})"

    def _dict(self, value: DictValue) -> str:
        if isinstance(value, AttributesValue):
            return f"{self.expr(value.owner)}.__dict__"
        if isinstance(value, KeywordsValue):
            return f"{self.expr(value.owner)}.keywords"
        items = ", ".join(f"{self.expr(k)}: {self.expr(v)}" for k, v in value.pairs(self.tr))
        if value.cls is dict:
            return f"{{{items}}}"
        cls = self.held(value.cls, value.cls.__name__)
        if value.cls is defaultdict:
            factory = "None" if value.default_factory is None else self.expr(value.default_factory)
            return f"{cls}({factory}, {{{items}}})"
        return f"{cls}({{{items}}})"

    def _slice(self, value: SliceValue) -> str:
        return f"{self.held(slice, 'slice')}({', '.join(self.expr(p) for p in value.parts)})"

    def _view(self, value: DictView) -> str:
        return f"{self.expr(value.of)}.{value.what}()"

    # --- small parts ---

    def _cell(self, value: Cell) -> str:
        """A cell gets a name first and its content after: a function in it may refer to it."""
        name = self.names[id(value)] = self.tr.guards.names.take("cell")
        self.statements.append(f"{name} = {self.held(CellType, 'CellType')}()")
        if value.content is not None:
            self._unfilled.append((name, value.content))
        return name

    @staticmethod
    def tuple_(items: Sequence[str]) -> str:
        """Source of a tuple."""
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    # --- the whole function ---

    def look_at(self, graph: Graph) -> None:
        """Whether the graph is run: for what it gives or writes, or for what it may refuse."""
        self.calls_graph = bool(self.outputs) or self.tr.effects.writes or any(map(refuses_some_values, graph.nodes))

    def function(self, name: str, signature: str, result: str, graph: Graph) -> tuple[str, str]:
        """The rebuilt function's source, and the name under which it expects the graph."""
        call = self.tr.guards.names.take("graph")
        lines = [f"def {name}({signature}):"]
        if self.calls_graph:
            self.symbols.update(*(i.names for i in self.tr.inputs))
        lines += [f"    {symbol} = {self._size(graph, symbol)}" for symbol in sorted(self.symbols)]
        body = []
        if self.calls_graph:
            names = ", ".join(self.names[id(t)] for t in self.outputs)
            target = f"{names}{',' if len(self.outputs) == 1 else ''} = " if names else ""
            body.append(f"{target}{call}({self.tr.arguments()})")
        body += [self.tr.effects.gradients.spent(self, t) for t in self.outputs if id(t) in self._spent]
        body += self.statements
        told = self.tr.effects.told
        if told:
            lines.append(f"    with {self.held(Telling(told), 'warn')}():")
        lines += textwrap.indent("\n".join(body or ["pass"] * bool(told)), "    " * (1 + bool(told))).splitlines()
        if self.commits:
            lines += [f"    {COMMITTED} = True", *(f"    {s}" for s in self.commits)]
        return "\n".join([*lines, f"    return {result}", ""]), call

    def around(self, graph: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """The graph's function for the inputs as they are and the outputs as they are to be: where some are ours, our tape
        follows the call."""
        ours = tuple(t.cls is OurTensor for t in self.outputs)
        return GraphOnTape(graph, ours) if any(ours) or any(i.ours for i in self.tr.inputs) else graph

    def _size(self, graph: Graph, symbol: str) -> str:
        if symbol in self.tr.scalars:
            return self.tr.scalars[symbol].text
        placeholder, dim = size_sources(graph)[symbol]
        at = next(i for i, n in enumerate(graph.placeholders) if n.name == placeholder)
        source = self.tr.inputs[at].source
        return source.text if dim is None else f"{source.text}.size({dim})"


def _attributes(value: Value | None) -> list[Value]:
    """Those of an object that the program made."""
    return [v for v in value.shadow.values() if v is not DELETED] if isinstance(value, NewObject) else []


# Objects with an identity: where one occurs twice, it is one object.
_OBJECTS = (
    SymInt,
    ScalarValue,
    ListValue,
    DictValue,
    SetValue,
    FunctionValue,
    PartialValue,
    BoundFunction,
    MethodOf,
    GradMode,
    AutocastMode,
    NullContext,
)
_REBUILD: dict[type[Value], Callable[[Rebuilder, Any], str]] = {
    DequeValue: objects.queue,
    SequenceValue: Rebuilder._sequence,
    DictValue: Rebuilder._dict,
    SetValue: set_object,
    SliceValue: Rebuilder._slice,
    DictView: Rebuilder._view,
    Cell: Rebuilder._cell,
    FunctionValue: objects.function,
    PartialValue: objects.partial_object,
    BoundFunction: objects.bound,
    MethodOf: objects.method_of,
    SuperValue: objects.super_object,
    ExceptionValue: objects.exception,
    NewContainer: objects.container,
    NewObject: objects.new_object,
    GradMode: objects.grad_mode,
    AutocastMode: objects.autocast,
    MappedFunction: objects.mapped,
    FunctionOf: objects.function_of,
    ArrayValue: objects.array,
    NullContext: objects.null_context,
    UnderGradMode: objects.under_grad_mode,
    Getter: objects.getter,
    CodeConstant: lambda self, value: self.held(value.code, "code"),
}
