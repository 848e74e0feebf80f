"""``Tracer``: all state of one capture, and the operations that Values and instructions ask of it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tinycompile.base.raised import write
from tinycompile.base.torch_private import any_autocast
from tinycompile.capture import calls, comparisons, indexing, number_tensors, operators, scalars, torch_calls, wrap, writes
from tinycompile.capture.arguments import check_arguments
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.effects import Effects
from tinycompile.capture.guards import GuardSet
from tinycompile.capture.identities import Identities
from tinycompile.capture.inputs import Inputs
from tinycompile.capture.lookups import Lookups
from tinycompile.capture.marks import before_torch_compile, mark_of
from tinycompile.capture.opcodes.exceptions import raise_error
from tinycompile.capture.pins import guard_one_object
from tinycompile.capture.rules import backward, families, iteration, marked, objects, optimizers, registry
from tinycompile.capture.sources import Attr, Source
from tinycompile.capture.trust import original_of, trusts
from tinycompile.capture.values import namespace
from tinycompile.capture.values.base import Kwargs, Lazy, Value
from tinycompile.capture.values.carriers import CARRIERS
from tinycompile.capture.values.classes import class_lookup
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.container import ContainerObject, Contents, NewContainer
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import Cell, FunctionValue
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import NewObject, ObjectValue
from tinycompile.capture.values.sequence import SequenceValue
from tinycompile.capture.values.set_steps import Step
from tinycompile.capture.values.special_results import checked
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.views import UnknownPlace
from tinycompile.capture.wrap_functions import from_callable
from tinycompile.eager.autocast import region_state, set_region_state
from tinycompile.ir.builder import GraphBuilder, UniqueNames
from tinycompile.ir.graph import Location
from tinycompile.ops import table

if TYPE_CHECKING:
    from tinycompile.capture.captured import CaptureOptions
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.generators import GeneratorValue

_TORCH_ROOT = os.path.dirname(torch.__file__) + os.sep
_RULES_LOADED = families.FAMILIES


@dataclass(frozen=True)
class Failure:
    """The error that ended a capture, the user's line, and the code of the calls in which it came up, the outermost first."""

    error: BaseException
    location: Location
    codes: tuple[CodeType, ...]

    @property
    def depth(self) -> int:
        """How many calls deep it came up."""
        return len(self.codes)


class Tracer(Inputs, Lookups, Identities):
    """One capture in progress."""

    def __init__(self, options: CaptureOptions, taken_names: Sequence[str]) -> None:
        Inputs.__init__(self)
        Lookups.__init__(self)
        Identities.__init__(self)
        self.options = options
        self.builder = GraphBuilder()
        self.guards = GuardSet(UniqueNames(taken_names))
        self.effects = Effects()
        self.optimizers: dict[int, optimizers.Stepped] = {}  # by id: those whose step is in the graph
        self.frames: list[Frame] = []
        self.modules_called: dict[int, bool] = {}  # by depth of the frame of ``forward``: whether the module has hooks
        self.pinned: dict[int, Value] = {}  # by id of an object that guards hold
        self.grad_enabled = self.root_grad_enabled = torch.is_grad_enabled()
        self.in_formula = False  # whether the backward of an autograd.Function is followed
        self.on_tape = False  # whether our tape follows the fakes: see rules/functions_of.py
        self.root_regions = region_state() if any_autocast() else None
        self._regions = region_state()
        self.autocast_depth = 0  # regions entered and not left; negative where those from outside were left
        self.failure: Failure | None = None
        self.handled: ExceptionValue | None = None  # the exception whose handler runs
        self.asleep: list[GeneratorValue] = []  # those that went to sleep in a try or with block
        self._exceptions: dict[int, ExceptionValue] = {}
        self.op_in_try = False  # whether a tensor op was recorded inside a try block of the user's
        self.resumed = False  # whether this capture begins behind a break
        self.births: dict[int, tuple[Value, int]] = {}  # by id: iterators, and which instruction of the outermost frame made it
        self.begun: dict[int, Value] = {}  # by id: iterators of the program's own classes that ``iter`` gave in here
        self.hashed: dict[int, Value] = {}  # by id: objects that are keys by a hash of the program's
        self.unknown_places: dict[int, UnknownPlace] = {}  # by id of the value
        self.functions: dict[int, FunctionValue] = {}  # by id of a function that came with the call
        self.contained: list[Contents] = []  # the contents of containers of the program's classes
        self.set_steps: list[Step] = []  # what was done to sets
        self.shown: dict[int, tuple[Frame, DictValue]] = {}  # what locals() gave, by id of the frame
        self._by_source: dict[str, Value] = {}
        self._by_id: dict[int, tuple[Any, Value]] = {}  # objects from outside that may change, kept alive
        self._owners: dict[int, tuple[dict[str, Any], ObjectValue]] = {}  # by id of an object's __dict__, kept alive
        self.cells: dict[int, Cell] = {}  # by id of a closure cell
        self._named: set[str] = set()
        self.scalars: dict[str, Source] = {}  # numbers that change and are no sizes, by the name that guards give them
        self.scalar_inputs: dict[tuple[str, Any], TensorValue] = {}  # by expression and device

    def forget(self) -> None:
        """Let go of the objects of the call, when guards and code are made."""
        for raised in self._exceptions.values():
            if raised.source is None:  # made in here: its traceback holds our frames, and these hold it
                write(raised.error, "__traceback__", None)
        for contents in self.contained:
            contents.holder = None
        self.contained.clear()
        self.inputs.clear()
        self.forget_identities()
        self.asleep.clear()
        self.failure = self.handled = None
        self.guards.odd.clear()
        self.shown.clear()
        self.set_steps.clear()
        for table_ in (
            self._by_source,
            self.begun,
            self._by_id,
            self._owners,
            self._globals,
            self._exceptions,
            self.births,
            self.unknown_places,
        ):
            table_.clear()
        for kept in (
            self.cells,
            self.functions,
            self.given,
            self._by_object,
            self.optimizers,
            self.pinned,
            self.arrays,
            self.hashed,
        ):
            kept.clear()
        self.guards.tensors.clear()
        self.effects = Effects()

    # --- from Python objects ---

    def wrap(self, obj: Any, source: Source) -> Value:
        """The Value of an object from outside; one source has one Value."""
        text = source.text
        found = self._by_source.get(text)
        if found is None:
            found = self._by_source[text] = self._wrap_once(obj, source)
        return found

    def _wrap_once(self, obj: Any, source: Source) -> Value:
        """An object that changes has one Value, however many ways lead to it."""
        if not wrap.has_identity(obj):
            value = wrap.wrap(self, obj, source)
            if not wrap.is_told_apart(obj):
                self.note_met(value, obj, source)
            return value
        if (known := self._by_id.get(id(obj))) is None:
            made = wrap.wrap(self, obj, source) if id(obj) not in self._owners else wrap.of_an_object(self, source)
            self._by_id[id(obj)] = obj, made
            return made
        guard_one_object(self, known[1], source)
        return known[1]

    def force(self, lazy: Lazy | Value) -> Value:
        """The Value of a lazy entry."""
        return self.wrap(lazy.obj, lazy.source) if isinstance(lazy, Lazy) else lazy

    def value_of(self, lazy: Lazy) -> Value | None:
        """The Value of a lazy entry; None where nobody has looked at it."""
        return self._by_source.get(lazy.source.text)

    def from_python(self, obj: Any) -> Value:
        """The Value of an object that needs no guard."""
        return wrap.from_python(self, obj)

    def from_callable(self, obj: Any) -> Value:
        """The Value of a function, class or module that needs no guard."""
        return from_callable(self, obj)

    def make_dict(self, pairs: Sequence[tuple[Value, Value]]) -> Value:
        """A fresh dict."""
        return DictValue(self, pairs)

    def attributes_of(self, owner: ObjectValue) -> Value:
        """``owner.__dict__``: one Value, however many ways lead to it."""
        if isinstance(owner, NewObject):
            return namespace.AttributesValue(owner)
        held = owner.obj.__dict__
        if not self.has_to_itself(owner, held):
            raise GraphBreak("unsupported-value", f"the __dict__ of {owner.describe()} is also reached in another way")
        if id(held) not in self._by_id:
            inner = wrap.wrap(self, held, Attr(owner.where, "__dict__"))
            self._by_id[id(held)] = held, namespace.OutsideAttributes(owner, inner) if isinstance(inner, DictValue) else inner
        return self._by_id[id(held)][1]

    def object_around(self, contents: DictValue) -> ObjectValue:
        """A dict of a built-in kind that has attributes, as the object that has them."""
        if contents.holder is None and contents.source is None:
            NewContainer(self, contents.cls, contents)
        elif contents.holder is None and contents.source is not None:
            ContainerObject(self, self.object_of(contents), contents, contents.source)
        assert isinstance(contents.holder, ObjectValue)
        return contents.holder

    def has_to_itself(self, owner: ObjectValue, attributes: dict[str, Any]) -> bool:
        """Whether an object's ``__dict__`` is known as its alone: no other object's, nor met as a dict before."""
        known = self.known(attributes)
        alone = original_of(self._owners.setdefault(id(attributes), (attributes, owner))[1].obj) is original_of(owner.obj)
        return alone and (known is None or isinstance(known, namespace.OutsideAttributes))

    def globals_value(self, space: dict[str, Any]) -> Value:
        """A module's variables as a dict."""
        return namespace.Globals(space, self.globals_of(space))

    def class_attributes(self, cls: type) -> Value:
        """A class's own attributes as a dict."""
        return namespace.ClassAttributes(self, cls)

    def objects_seen(self) -> Iterator[Value]:
        """Objects from outside that may change, and that were looked at; modules, too."""
        return (value for _, value in (*self._by_id.values(), *self._owners.values()))

    # --- operations ---

    def binary(self, symbol: str, a: Value, b: Value) -> Value:
        """``a symbol b``."""
        return operators.binary(self, symbol, a, b)

    def divided(self, a: Value, b: Value) -> Value:
        """``divmod(a, b)``."""
        return operators.divided(self, a, b)

    def unary(self, symbol: str, a: Value) -> Value:
        """``symbol a``."""
        return operators.unary(self, symbol, a)

    def compare(self, symbol: str, a: Value, b: Value) -> Value:
        """``a < b`` and such."""
        return comparisons.compare(self, symbol, a, b)

    def equal(self, a: Value, b: Value) -> bool:
        """``bool(a == b)``."""
        return comparisons.equal(self, a, b)

    def identical(self, a: Value, b: Value) -> bool:
        """``a is b``."""
        return comparisons.identical(self, a, b)

    def sort(self, values: list[Value], kwargs: Kwargs) -> None:
        """As ``list.sort``."""
        iteration.sort(self, values, kwargs)

    def index(self, value: Value, where: str) -> int:
        """``operator.index(value)``; a symbolic size is specialised."""
        if isinstance(value, ObjectValue):
            method = value.special(self, "__index__")
            value = value if method is None else checked(self, "__index__", method.call(self, [], {}))
        elif isinstance(value, Const):
            value = value if issubclass(value.python_type(self), int) else self.own_answer(value, "__index__") or value
        known = isinstance(value, Const) and isinstance(value.value, int)  # whose own way of being one isn't asked
        plain = int.__index__(value.value) if known else value.constant(self)  # type: ignore[attr-defined]
        if not hasattr(plain, "__index__"):
            if where in ("list", "tuple"):
                raise TypeError(f"{where} indices must be integers or slices, not {type(plain).__name__}")
            raise GraphBreak("user-exception", f"{where}: {type(plain).__name__} where an index is needed")
        if not -sys.maxsize <= int(plain) <= sys.maxsize and where not in ("range", "enumerate"):
            raise GraphBreak("user-exception", f"{where}: {plain} where an index is needed")
        return int(plain)

    def iter(self, value: Value) -> Value:
        """``iter(value)``: an IteratorValue, or an object of the program's with a ``__next__``."""
        if isinstance(value, IteratorValue):
            return value
        made = value.iterator(self) if isinstance(value, ObjectValue) else None
        if isinstance(made, ObjectValue):
            self.begun[id(made)] = made
        if isinstance(made, (IteratorValue, ObjectValue)):
            return made
        return IteratorValue(iter((value if made is None else made).iterate(self)))

    def steps(self, iterator: Value) -> Iterator[Value]:
        """What ``next`` gives of what ``iter`` gave."""
        return iterator.each(self) if isinstance(iterator, ObjectValue) else iterator.iterate(self)

    def in_a_row(self, values: Value) -> list[Value]:
        """All of an iterable, where Python takes any sequence and makes a list of what is none: of an iterator of it."""
        if isinstance(values, SequenceValue) and values.cls in (list, tuple):
            return values.values(self)
        return [*self.iter(values).filling(self)]

    def iterator(self, values: Iterator[Value]) -> Value:
        """An iterator object over Values."""
        return IteratorValue(values)

    def next(self, iterator: IteratorValue) -> Value:
        """``next(iterator)``."""
        value = iterator.next(self)
        if value is None:
            raise_error(self, self.stop_iteration(iterator).error)
        return value

    # --- calls ---

    def call_function(self, fn: FunctionValue, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """A Python function: a rule, a torch function with a record, or its code."""
        if fn.fn is not None:
            handler = registry.RULES.get(fn.fn) or registry.RULES.get(getattr(fn.fn, "__wrapped__", None))
            if handler is not None:
                check_arguments(fn.fn, args, kwargs)
                return handler(self, args, kwargs)
            if self._is_torch_op(fn.fn):
                return torch_calls.call_torch(self, fn.fn, args, kwargs)
            if optimizers.is_step(fn.fn):
                return optimizers.step(self, fn, args, kwargs)
            found = objects.dispatched(self, fn.fn, args, kwargs)
            if found is not None:
                return found
            if (original := before_torch_compile(fn.fn)) is not fn.fn:
                return self.from_callable(original).call(self, args, kwargs)
            mark = mark_of(fn.fn)
            if mark is not None:
                return marked.call(self, fn.fn, mark, args, kwargs)
            if not trusts(fn.fn):
                self.guards.code(self.guards.hold(fn.fn, fn.fn.__name__))
        return calls.inline(self, fn, args, kwargs)

    @staticmethod
    def _is_torch_op(fn: Any) -> bool:
        if table.known(fn):
            return True
        module = fn.__module__ or ""
        return module in ("torch.nn.functional", "torch.functional", "torch._tensor") and fn.__name__ not in torch_calls.INLINED

    def call_builtin(self, fn: Any, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """A function written in C."""
        if isinstance(fn, functools._lru_cache_wrapper):
            return objects.call_cached(self, fn, args, kwargs)
        if isinstance(fn, functools.singledispatchmethod):
            return objects.call_dispatched(self, fn, args, kwargs)
        return registry.call(self, fn, args, kwargs)

    def call_class(self, cls: type, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """``cls(...)``."""
        return registry.call_class(self, cls, args, kwargs)

    def call_class_method(self, receiver: Value, cls: type, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """A method that a subclass of tuple defines in Python, or inherits from one that does."""
        owner, raw = class_lookup(cls, name) or (cls, None)
        fn = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
        if not isinstance(fn, FunctionType):
            raise GraphBreak("unsupported-value", f"method {name!r} of a {cls.__name__}")
        self.inherited(cls, owner, name)
        first = [] if isinstance(raw, staticmethod) else [self.from_python(cls) if isinstance(raw, classmethod) else receiver]
        return self.class_member(owner, name, fn).call(self, [*first, *args], kwargs)

    # --- tensors ---

    def tensor_method(self, t: TensorValue, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """``t.name(...)``, an op."""
        return torch_calls.call_method(self, t, name, args, kwargs)

    def call_with_scalars(self, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
        """A torch call that has a number among its arguments that changes; None for any other."""
        return scalars.call(self, name, args, kwargs)

    def tensor_of_numbers(self, like: TensorValue, args: Sequence[Value], kwargs: Kwargs) -> Value | None:
        """``like.new_tensor(...)`` of numbers that change; None for any other."""
        return number_tensors.called(self, args, kwargs, like)

    def tensor_attribute(self, t: TensorValue, name: str) -> Value:
        """``t.name``, an op."""
        return torch_calls.attribute(self, t, name)

    def write(self, target: TensorValue, compute: Callable[[], Value], operands: Sequence[Value] = ()) -> Value:
        """``target`` takes over the value that ``compute`` records, as an in-place op that reads ``operands`` would."""
        return writes.write(self, target, compute, operands)

    def backward(self, t: TensorValue, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """``t.backward(...)``."""
        return backward.method(self, t, args, kwargs)

    def is_same_place(self, a: TensorValue, b: TensorValue) -> bool:
        """Whether two tensors are the same elements of one memory."""
        return writes.is_same_place(a, b)

    def index_tensor(self, t: TensorValue, key: Value) -> Value:
        """``t[key]``."""
        return indexing.get(self, t, key)

    def write_tensor(self, t: TensorValue, key: Value, value: Value) -> None:
        """``t[key] = value``."""
        indexing.put(self, t, key, value)

    @contextmanager
    def own_regions(self) -> Iterator[None]:
        """Regions of autocast that are entered or left in here hold in here alone."""
        try:
            yield
        finally:
            set_region_state(self._regions)

    def changes_regions(self) -> bool:
        """Whether regions of autocast are left open, or those from outside were left."""
        return self.autocast_depth != 0 or region_state() != self._regions

    def set_grad(self, mode: bool) -> None:
        """Switch gradients on or off from here on."""
        if self.in_formula and not mode:
            raise GraphBreak(
                "backward", "no_grad, or once_differentiable, in a custom backward: its own derivatives are cut off"
            )
        if mode and not self.root_grad_enabled:
            raise GraphBreak("grad-mode", "gradients are switched on inside a call that runs without")
        self.grad_enabled = mode
        if self.on_tape:
            torch.set_grad_enabled(mode)

    def about_to_record(self) -> None:
        """Before each node: where it comes from, and whether it may be there."""
        if any(f.in_try_block for f in self.frames):
            if not self.options.redo:
                raise GraphBreak("try-block", "a tensor op in a try block")
            self.op_in_try = True
        self.builder.location = self.location()

    def name_after(self, value: Value, name: str) -> None:
        """A user's variable holds the value: its node gets that name. The first wins; torch's own code has no say."""
        if isinstance(value, TensorValue) and not value.is_input:
            ref = value.fake.ref
            if ref.name not in self._named:
                self.builder.rename(ref, name)
                if not self.frames or not self.frames[-1].code.co_filename.startswith(_TORCH_ROOT):
                    self._named.add(ref.name)

    # --- where we are ---

    def location(self) -> Location:
        """The user's line: of the innermost frame that is not torch's own."""
        for frame in reversed(self.frames):
            if not frame.code.co_filename.startswith(_TORCH_ROOT):
                return frame.location
        return self.frames[0].location

    @property
    def has_handler(self) -> bool:
        """Whether the program may see an exception that comes up here."""
        return any(f.at and f.current.handler is not None for f in self.frames)

    def note_failure(self, error: BaseException) -> None:
        """Remember where an error came up first."""
        if self.failure is None or self.failure.error is not error:
            self.failure = Failure(error, self.location(), tuple(f.code for f in self.frames))

    def note_birth(self, value: Any, count: int) -> None:
        """The outermost frame's instruction ``count`` left this on top of the stack."""
        if isinstance(value, CARRIERS):
            self.births.setdefault(id(value), (value, count))

    def stop_iteration(self, iterator: IteratorValue) -> ExceptionValue:
        """The end of an iterator: what an own iterator raised inside, or one with what a generator returned."""
        if iterator.stop is not None:
            return self.exception(iterator.stop)
        given = [] if self.identical(iterator.returned, NONE) else [iterator.returned]
        return self.remember(ExceptionValue(StopIteration(), given))

    def returned_by(self, iterator: IteratorValue) -> Value:
        """What an iterator at its end gives to ``yield from``."""
        return iterator.returned if iterator.stop is None else self.stop_iteration(iterator).get_attr(self, "value")

    def lacks_key(self, key: Value) -> NoReturn:
        """Raise what a dict says of a key that it lacks."""
        if isinstance(key, Const):
            raise KeyError(key.value)
        raise_error(self, self.remember(ExceptionValue(KeyError(), [key])).error)

    def is_known(self, error: BaseException) -> bool:
        """Whether the program has the exception object already."""
        return id(error) in self._exceptions

    def remember(self, value: ExceptionValue) -> ExceptionValue:
        """From here on this is the Value of its exception object."""
        self._exceptions[id(value.error)] = value
        return value

    def exception(self, error: BaseException) -> ExceptionValue:
        """The one Value of an exception object."""
        found = self._exceptions.get(id(error))
        if found is None:
            found = self._exceptions[id(error)] = ExceptionValue(error)
        return found
