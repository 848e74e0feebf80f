"""Where a capture begins: at a function's start, or at a place behind a break."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from tinycompile.base.internal_frames import internal_frame
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.execute import Frame
from tinycompile.capture.guard_code import signature_text
from tinycompile.capture.guards import OWN_NAMES
from tinycompile.capture.opcodes.stack import NULL, LazyStack
from tinycompile.capture.resume import Place, rest, throw
from tinycompile.capture.sources import Attr, Held, HeldItem, Local
from tinycompile.capture.tracer import Tracer
from tinycompile.capture.values.base import Lazy
from tinycompile.capture.values.function import FunctionValue
from tinycompile.capture.wrap_functions import cell_from
from tinycompile.ir.builder import UniqueNames, identifier


class FunctionStart:
    """A call of ``fn``, a Python function or method. Raises TypeError for anything else."""

    resumed = False

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.function, self.skip = _python_function(fn)
        self.name = identifier(self.function.__name__)
        self.like: FunctionType | None = self.function  # whose defaults the rebuilt function has

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that a call gives."""
        return list(inspect.signature(self.function, follow_wrapped=False).parameters)[self.skip :]

    @property
    def signature(self) -> str:
        """The parameters as source."""
        return signature_text(self.function, self.skip)

    @property
    def taken(self) -> list[str]:
        """Names that nothing else in guards or rebuilt code may bear."""
        code = self.function.__code__
        return [*OWN_NAMES, "guard", self.name, *code.co_varnames, *code.co_freevars]

    def frame(self, tr: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Frame:
        """The frame before its first instruction."""
        clash = set(self.parameters) & set(OWN_NAMES)
        if clash:
            raise GraphBreak("unsupported-value", f"a parameter named {clash.pop()}, which guards use themselves")
        code = self.function.__code__
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise GraphBreak("generator", f"{self.function.__qualname__} is a generator or a coroutine")
        return _frame(tr, self.function, self._arguments(tr, args, kwargs))

    def _arguments(self, tr: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by name, not looked at yet. What doesn't fit is left to Python, whose error it is."""
        try:
            bound = inspect.signature(self.fn, follow_wrapped=False).bind(*args, **kwargs)
        except TypeError as error:
            raise GraphBreak("user-exception", f"{self.function.__qualname__}: {error}") from None
        given = set(bound.arguments)
        bound.apply_defaults()
        slots: dict[str, Any] = {name: Lazy(value, Local(name)) for name, value in bound.arguments.items()}
        if isinstance(self.fn, MethodType):
            receiver = self.function.__code__.co_varnames[0]
            slots[receiver] = Lazy(self.fn.__self__, tr.guards.hold(self.fn.__self__, receiver))
        if set(bound.arguments) - given:
            _guard_defaults(tr, self.function, set(bound.arguments) - given)
        return slots


class ResumeStart:
    """A frame of ``function`` that goes on at ``place``. It is called with the state's entries."""

    resumed = True
    skip = 0

    def __init__(self, function: FunctionType, place: Place) -> None:
        self.function, self.place = function, place
        self.like: FunctionType | None = None
        self.name = f"{identifier(function.__name__)}_at_{place.instruction.line}"

    @cached_property
    def parameters(self) -> list[str]:
        """A parameter for each variable, named like it, and for each value on the operand stack."""
        names = UniqueNames([*OWN_NAMES, *self.function.__code__.co_freevars])
        slots = [names.take(identifier(s.name)) for s in self.place.slots]
        return [*slots, *(names.take("stack_0") for _ in range(sum(self.place.stack)))]

    @property
    def signature(self) -> str:
        """The parameters as source."""
        return ", ".join(self.parameters)

    @property
    def taken(self) -> list[str]:
        """Names that nothing else in guards or rebuilt code may bear."""
        code = self.function.__code__
        return [*OWN_NAMES, "guard", self.name, *self.parameters, *code.co_varnames, *code.co_freevars]

    def frame(self, tr: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Frame:
        """The frame at ``place``."""
        frame = _frame(tr, self.function, {})
        state = [Lazy(obj, Local(name)) for obj, name in zip(args, self.parameters, strict=True)]
        variables, values = state[: len(self.place.slots)], iter(state[len(self.place.slots) :])
        for slot, lazy in zip(self.place.slots, variables, strict=True):
            frame.slots[slot.name] = cell_from(tr, lazy.obj, lazy.source) if slot.cell else lazy
        frame.stack = LazyStack(tr, [next(values) if is_value else NULL for is_value in self.place.stack])
        frame.at = self.place.at
        return frame

    @cached_property
    def eager(self) -> Rest:
        """Runs from ``place`` to the end in plain Python."""
        return Rest(Runner(self.function, rest(self.place)))

    @cached_property
    def thrower(self) -> Runner:
        """Raises the error that stands behind a state, in the frame at ``place``."""
        return Runner(self.function, throw(self.place))


Start = FunctionStart | ResumeStart


class Runner:
    """Runs code made by ``resume`` with the globals and the closure of ``function``."""

    def __init__(self, function: FunctionType, code: CodeType) -> None:
        self.code, self.globals, self.name = code, function.__globals__, function.__name__
        self.closure = function.__closure__ or ()
        self.blank = (None,) * code.co_argcount

    @internal_frame
    def __call__(self, held: CellType) -> Any:
        """Run on the state in a cell."""
        return FunctionType(self.code, self.globals, self.name, None, (*self.closure, held))(*self.blank)


class Rest:
    """Runs a function from some place to its end, with the state as arguments. A caller that is to keep nothing alive calls
    ``run`` on the cell that alone holds the state."""

    def __init__(self, run: Runner) -> None:
        self.run = run

    @internal_frame
    def __call__(self, *state: Any) -> Any:
        return self.run(CellType(state))


def _python_function(fn: Callable[..., Any]) -> tuple[FunctionType, int]:
    """The function, and how many leading parameters are bound already."""
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return fn.__func__, 1
    if not isinstance(fn, FunctionType):
        raise TypeError(f"only Python functions and methods can be captured, not {type(fn).__name__}")
    return fn, 0


def _frame(tr: Tracer, function: FunctionType, slots: dict[str, Any]) -> Frame:
    value = tr.from_callable(function)
    assert isinstance(value, FunctionValue)
    tr.guards.code(tr.guards.hold(function, function.__name__))
    frame = Frame(function.__code__, function.__globals__, slots, function.__qualname__)
    for name, cell in zip(function.__code__.co_freevars, value.closure, strict=True):
        frame.slots[name] = cell
    if tr.options.resume:
        frame.stack = LazyStack(tr)
    return frame


def _guard_defaults(tr: Tracer, function: FunctionType, used: Set[str]) -> None:
    """The guard has the function's defaults as they are now: these must stay."""
    held: Held = tr.guards.hold(function, function.__name__)
    if function.__defaults__:
        defaults = tr.guards.hold(function.__defaults__, "defaults")
        tr.guards.check(f"{Attr(held, '__defaults__').text} is {defaults.name}", "the function's own defaults")
    if function.__kwdefaults__:
        named = tr.guards.hold(function.__kwdefaults__, "kwdefaults")
        tr.guards.check(f"{Attr(held, '__kwdefaults__').text} is {named.name}", "the function's own keyword defaults")
        for name in used & function.__kwdefaults__.keys():
            source = HeldItem(named, name, f"the default of {name}")
            tr.guards.item(source, function.__kwdefaults__[name], equal=False)
