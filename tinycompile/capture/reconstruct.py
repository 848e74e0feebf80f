"""From Values back to Python source: call the graph, then rebuild what is made of its results: the function's result, or
the variables and the operand stack of a frame that is left at a break."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from tinycompile.base.expr import symbols
from tinycompile.capture.breaks import NotRebuildable
from tinycompile.capture.rules.mapping import MappedFunction
from tinycompile.capture.rules.optimizers import is_step
from tinycompile.capture.rules.types import SuperValue
from tinycompile.capture.sources import Held, Local, Source
from tinycompile.capture.tracer import Tracer
from tinycompile.capture.trust import is_trusted
from tinycompile.capture.values.autocast import AutocastMode, change_regions, rebuilt_autocast
from tinycompile.capture.values.base import Lazy, MethodOf, Value
from tinycompile.capture.values.callable import Getter
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.container import NewContainer
from tinycompile.capture.values.context import GradMode, NullContext, UnderGradMode, entered_grad_mode
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, Cell, CodeConstant, FunctionValue, PartialValue
from tinycompile.capture.values.mapping import DictValue, DictView
from tinycompile.capture.values.module import ModuleCall, ModuleValue
from tinycompile.capture.values.object import DELETED, AttributesValue, ClassValue, NewObject, ObjectValue, PyModuleValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, SliceValue, TupleValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.eager.autocast import region_state
from tinycompile.eager.tensor import Tensor as OurTensor
from tinycompile.eager.tensor import from_torch
from tinycompile.ir.builder import identifier, size_sources
from tinycompile.ir.graph import Graph

COMMITTED = "_tinycompile_committed"  # an attribute of errors that came up when something outside had been changed already
_LITERALS = (bool, int, str, bytes, type(None), type(Ellipsis))


class Rebuilder:
    """Collects the graph's outputs and the statements that rebuild one result."""

    def __init__(self, tr: Tracer) -> None:
        self.tr = tr
        self.outputs: list[TensorValue] = []
        self.statements: list[str] = []
        self.commits: list[str] = []  # statements that change something outside: when one fails, the call can't be redone
        self.symbols: set[str] = set()
        self._names: dict[int, str] = {}
        self._reached: dict[str, str] = {}
        self._unfilled: list[tuple[str, Value | Lazy]] = []  # cells without their contents yet
        self._depth = 0  # of expressions inside expressions
        self._keep: list[Value] = []  # ids stay valid
        self._uses: dict[int, int] = defaultdict(int)

    def result(self, value: Value | Lazy) -> str:
        """An expression for the whole result."""
        self._count_all([value])
        text = self.expr(value)
        self._finish_statements()
        return text

    def state(self, values: Sequence[Value | Lazy], replaced: Mapping[int, str]) -> str:
        """An expression for a tuple of these. ``replaced``: expressions for some, by id."""
        self._names.update(replaced)
        self._count_all(values)
        items = [self.expr(value) for value in values]
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
        if not isinstance(fn, FunctionValue) or fn.fn is None:
            return None
        if not is_step(fn.fn) and (is_trusted(fn.fn.__module__) or fn.fn.__dict__):
            return None
        return self.held(compile_callee(fn.fn), f"compiled_{fn.fn.__name__}")

    def _compiled_module(self, fn: ModuleValue, compile_callee: Callable[[FunctionType], Callable[..., Any]]) -> str | None:
        cls = type(fn.obj)
        plain = cls.__call__ is torch.nn.Module.__call__ and "forward" not in fn.obj.__dict__
        if not plain or not isinstance(cls.forward, FunctionType) or is_trusted(cls.forward.__module__):
            return None
        return self.held(ModuleCall(fn.obj, compile_callee(cls.forward)), f"compiled_{cls.__name__}")

    def _count_all(self, values: Sequence[Value | Lazy]) -> None:
        for value in values:
            self._count(value)
        for entry in self.tr.effects.parts():
            self._count(entry)

    def _finish_statements(self) -> None:
        """What changes outside: objects, and torch's own state. All expressions have been evaluated before."""
        self.tr.effects.check_views(self.outputs)
        self.tr.effects.guard_distinct(self.tr)
        self.commits = self.tr.effects.replay(self)
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
        if self._uses[id(value)] == 1 and value.source is None and id(value) not in self._names:
            for part in self._parts(value):
                self._count(part)

    def _parts(self, value: Value) -> Sequence[Value | Lazy]:
        if isinstance(value, SequenceValue):
            return value.values(self.tr)
        if isinstance(value, DictValue):
            return [v for _, v in value.pairs(self.tr)]
        if isinstance(value, SetValue):
            return [*value.items.values()]
        if isinstance(value, Cell):
            return [] if value.content is None else [value.content]
        if isinstance(value, FunctionValue) and value.fn is None:
            return [*value.defaults, *value.kwdefaults.values(), *value.closure, *value.attributes.values()]
        if isinstance(value, MappedFunction):
            return [value.fn]
        if isinstance(value, PartialValue):
            return [value.fn, *value.args, *value.kwargs.values()]
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
            return [*contents, *(v for v in value.shadow.values() if v is not DELETED)]
        if isinstance(value, NewObject):
            return [v for v in value.shadow.values() if v is not DELETED]
        return []

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
            return self._from_outside(value.source)
        holder = getattr(value, "holder", None)
        if holder is not None and id(value) not in self._names:
            return self.expr(holder)
        name = self._names.get(id(value))
        if name is not None:
            return name
        if value.source is None and isinstance(value, Cell):
            return self._cell(value)
        try:
            text = self._fresh(value)
        except NotRebuildable as error:
            error.holders.append(value)
            raise
        name = self._names.get(id(value))
        if name is not None:  # it got one on the way
            return name
        shared = isinstance(value, _OBJECTS) or (isinstance(value, TupleValue) and value.items)
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
        if isinstance(value, ScalarValue):
            self.symbols |= value.names
            return value.text
        if value.source is not None:
            return self._from_outside(value.source)
        if isinstance(value, (ClassValue, BuiltinValue, PyModuleValue)):
            return self.held(value.key(self.tr), "constant")
        for kind, rule in _REBUILD.items():
            if isinstance(value, kind):
                return rule(self, value)
        raise NotRebuildable(value, value.describe())

    def _from_outside(self, source: Source) -> str:
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
            return self._from_outside(value.source)
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

    def _container(self, value: NewContainer) -> str:
        """The object first, then its contents: they may refer to it. Immutable ones are made with them."""
        cls, base = type(value.obj), value.base
        kind, made = self.held(base.cls, base.cls.__name__), self.held(cls, cls.__name__)
        name = self.tr.guards.names.take(identifier(cls.__name__.lower()))
        if not isinstance(base, DictValue) and base.cls in (tuple, frozenset):
            items = list(base.items.values()) if isinstance(base, SetValue) else base.values(self.tr)
            self.statements.append(f"{name} = {kind}.__new__({made}, {self._tuple([self.expr(v) for v in items])})")
            self._names[id(value)] = name
        else:
            self._names[id(value)] = name
            self.statements.append(f"{name} = {kind}.__new__({made})")
            if isinstance(base, DictValue):
                for k, v in base.pairs(self.tr):
                    self.statements.append(f"{kind}.__setitem__({name}, {self.expr(k)}, {self.expr(v)})")
            else:
                items = list(base.items.values()) if isinstance(base, SetValue) else base.values(self.tr)
                method = "update" if isinstance(base, SetValue) else "extend"
                self.statements.append(f"{kind}.{method}({name}, {self._tuple([self.expr(v) for v in items])})")
        for at, v in value.shadow.items():
            if v is not DELETED:
                self.statements.append(f"{self.held(object, 'object')}.__setattr__({name}, {at!r}, {self.expr(v)})")
        return name

    def _deque(self, value: DequeValue) -> str:
        return f"{self.held(deque, 'deque')}({self._tuple([self.expr(v) for v in value.values(self.tr)])}, {value.maxlen})"

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
        if isinstance(value, AttributesValue):
            raise NotRebuildable(value, f"the __dict__ of {value.owner.describe()}")
        items = ", ".join(f"{self.expr(k)}: {self.expr(v)}" for k, v in value.pairs(self.tr))
        if value.cls is dict:
            return f"{{{items}}}"
        cls = self.held(value.cls, value.cls.__name__)
        if value.cls is defaultdict:
            factory = "None" if value.default_factory is None else self.expr(value.default_factory)
            return f"{cls}({factory}, {{{items}}})"
        return f"{cls}({{{items}}})"

    def _set(self, value: SetValue) -> str:
        items = ", ".join(self.expr(v) for v in value.items.values())
        if value.cls is frozenset or not items:
            return f"{self.held(value.cls, value.cls.__name__)}([{items}])"
        return f"{{{items}}}"

    def _slice(self, value: SliceValue) -> str:
        return f"{self.held(slice, 'slice')}({', '.join(self.expr(p) for p in value.parts)})"

    def _view(self, value: DictView) -> str:
        return f"{self.expr(value.of)}.{value.what}()"

    # --- functions ---

    def _cell(self, value: Cell) -> str:
        """A cell gets a name first and its content after: a function in it may refer to it."""
        name = self._names[id(value)] = self.tr.guards.names.take("cell")
        self.statements.append(f"{name} = {self.held(CellType, 'CellType')}()")
        if value.content is not None:
            self._unfilled.append((name, value.content))
        return name

    def _function(self, value: FunctionValue) -> str:
        if value.fn is not None:
            return self.held(value.fn, "constant")
        name = self._names[id(value)] = self.tr.guards.names.take(identifier(value.code.co_name))
        closure = self._tuple([self.expr(c) for c in value.closure]) if value.closure else "None"
        defaults = self._tuple([self.expr(d) for d in value.defaults]) if value.defaults else "None"
        code, space = self.held(value.code, "code"), self.held(value.globals, "globals")
        made = f"{self.held(FunctionType, 'FunctionType')}({code}, {space}, {value.code.co_name!r}, {defaults}, {closure})"
        self.statements.append(f"{name} = {made}")
        if value.kwdefaults:
            pairs = ", ".join(f"{k!r}: {self.expr(v)}" for k, v in value.kwdefaults.items())
            self.statements.append(f"{name}.__kwdefaults__ = {{{pairs}}}")
        for at, v in value.attributes.items():
            self.statements.append(f"{name}.{at} = {self.expr(v)}")
        if value.annotations is not None:
            self.statements.append(f"{name}.__annotations__ = {self._annotations(value.annotations)}")
        return name

    def _annotations(self, value: Value) -> str:
        """A dict, or (as code makes it) a tuple of names and values in turn."""
        if not isinstance(value, TupleValue):
            return self.expr(value)
        flat = [self.expr(v) for v in value.values(self.tr)]
        return f"{{{', '.join(f'{k}: {v}' for k, v in zip(flat[::2], flat[1::2], strict=True))}}}"

    def _new_object(self, value: NewObject) -> str:
        cls = type(value.obj)
        name = self._names[id(value)] = self.tr.guards.names.take(identifier(cls.__name__.lower()))
        self.statements.append(f"{name} = {self.held(object, 'object')}.__new__({self.held(cls, cls.__name__)})")
        for at, v in value.shadow.items():
            if v is not DELETED:
                self.statements.append(f"{self.held(object, 'object')}.__setattr__({name}, {at!r}, {self.expr(v)})")
        return name

    def _exception(self, value: ExceptionValue) -> str:
        """One that was never raised; its class's own ``__init__`` has been followed already."""
        if value.was_raised:
            raise NotRebuildable(value, value.describe())
        cls, error = type(value.error), value.error
        name = self._names[id(value)] = self.tr.guards.names.take("error")
        args = self._tuple([self.expr(a) for a in value.arguments(self.tr)])
        self.statements.append(f"{name} = {self.held(cls, cls.__name__)}.__new__({self.held(cls, cls.__name__)}, *{args})")
        if not isinstance(error, BaseExceptionGroup):
            self.statements.append(f"{name}.args = {args}")
        for at, v in value.shadow.items():
            if v is not DELETED:
                self.statements.append(f"{self.held(object, 'object')}.__setattr__({name}, {at!r}, {self.expr(v)})")
        if value.notes is not None:
            self.statements.append(f"{name}.__notes__ = {self.expr(value.notes)}")
        return name

    def _partial(self, value: PartialValue) -> str:
        args = [self.expr(a) for a in (value.fn, *value.args)] + [f"{k}={self.expr(v)}" for k, v in value.kwargs.items()]
        return f"{self.held(functools.partial, 'partial')}({', '.join(args)})"

    def _bound(self, value: BoundFunction) -> str:
        return f"{self.held(MethodType, 'MethodType')}({self.expr(value.fn)}, {self.expr(value.receiver)})"

    def _method(self, value: MethodOf) -> str:
        return f"({self.expr(value.receiver)}).{value.name}"

    def _super(self, value: SuperValue) -> str:
        return f"{self.held(super, 'super')}({self.expr(value.cls)}, {self.expr(value.receiver)})"

    def _grad_mode(self, value: GradMode) -> str:
        return f"{self.held(entered_grad_mode, 'entered_grad_mode')}({value.mode}, {value.now}, {value.before})"

    def _mapped(self, value: MappedFunction) -> str:
        in_dims, out_dims, randomness = (self._constant(o) for o in value.options)
        return f"{self.held(value.made_by, 'vmap')}({self.expr(value.fn)}, {in_dims}, {out_dims}, {randomness})"

    def _autocast(self, value: AutocastMode) -> str:
        settings, before = self.held(value.settings, "settings"), self.held(value.before, "before")
        return f"{self.held(rebuilt_autocast, 'rebuilt_autocast')}({settings}, {before})"

    def _under_grad_mode(self, value: UnderGradMode) -> str:
        mode = torch.enable_grad if value.mode.mode else torch.no_grad
        return f"{self.held(mode, mode.__name__)}()({self.expr(value.fn)})"

    def _getter(self, value: Getter) -> str:
        args = [self.expr(a) for a in value.args] + [f"{k}={self.expr(v)}" for k, v in value.kwargs.items()]
        return f"{self.held(value.cls, value.cls.__name__)}({', '.join(args)})"

    def _null_context(self, value: NullContext) -> str:
        return f"{self.held(contextlib.nullcontext, 'nullcontext')}({self.expr(value.value)})"

    @staticmethod
    def _tuple(items: Sequence[str]) -> str:
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    # --- the whole function ---

    def function(self, name: str, signature: str, result: str, graph: Graph) -> tuple[str, str]:
        """The rebuilt function's source, and the name under which it expects the graph."""
        call = self.tr.guards.names.take("graph")
        lines = [f"def {name}({signature}):"]
        if self.outputs:
            self.symbols.update(*(i.names for i in self.tr.inputs))
        lines += [f"    {symbol} = {self._size(graph, symbol)}" for symbol in sorted(self.symbols)]
        if self.outputs or self.tr.effects.writes:
            names = ", ".join(self._names[id(t)] for t in self.outputs)
            inputs = ", ".join(self._input(i.source, i.ours) for i in self.tr.inputs)
            target = f"{names}{',' if len(self.outputs) == 1 else ''} = " if names else ""
            lines.append(f"    {target}{call}({inputs})")
        for t in self.outputs:
            if t.cls is OurTensor:
                lines.append(f"    {self._names[id(t)]} = {self.held(from_torch, 'from_torch')}({self._names[id(t)]})")
        lines += [f"    {s}" for s in self.statements]
        if self.commits:
            error = self.tr.guards.names.take("error")
            lines += ["    try:", *(f"        {s}" for s in self.commits)]
            lines += [f"    except Exception as {error}:", f"        {error}.{COMMITTED} = True", "        raise"]
        return "\n".join([*lines, f"    return {result}", ""]), call

    @staticmethod
    def _input(source: Source, ours: bool) -> str:
        return f"{source.text}.torch()" if ours else source.text

    def _size(self, graph: Graph, symbol: str) -> str:
        if symbol in self.tr.scalars:
            return self.tr.scalars[symbol].text
        placeholder, dim = size_sources(graph)[symbol]
        at = next(i for i, n in enumerate(graph.placeholders) if n.name == placeholder)
        source = self.tr.inputs[at].source
        return source.text if dim is None else f"{source.text}.size({dim})"


# Objects with an identity: where one occurs twice, it is one object.
_OBJECTS = (
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
    DequeValue: Rebuilder._deque,
    SequenceValue: Rebuilder._sequence,
    DictValue: Rebuilder._dict,
    SetValue: Rebuilder._set,
    SliceValue: Rebuilder._slice,
    DictView: Rebuilder._view,
    Cell: Rebuilder._cell,
    FunctionValue: Rebuilder._function,
    PartialValue: Rebuilder._partial,
    BoundFunction: Rebuilder._bound,
    MethodOf: Rebuilder._method,
    SuperValue: Rebuilder._super,
    ExceptionValue: Rebuilder._exception,
    NewContainer: Rebuilder._container,
    NewObject: Rebuilder._new_object,
    GradMode: Rebuilder._grad_mode,
    AutocastMode: Rebuilder._autocast,
    MappedFunction: Rebuilder._mapped,
    NullContext: Rebuilder._null_context,
    UnderGradMode: Rebuilder._under_grad_mode,
    Getter: Rebuilder._getter,
    CodeConstant: lambda self, value: self.held(value.code, "code"),
}
