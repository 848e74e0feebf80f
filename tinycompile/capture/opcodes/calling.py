"""Calls and the making of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.opcodes.building import check_iterable
from tinycompile.capture.opcodes.stack import NULL
from tinycompile.capture.values.function import FunctionValue
from tinycompile.capture.values.mapping import pairs_of_mapping

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


def _callee(frame: Frame, args: list[Any]) -> tuple[Any, list[Any]]:
    """Take the two slots below the arguments: a NULL and a callable in either order, or a function and its self."""
    first, second = frame.pop(2)
    if first is NULL:
        return second, args
    return first, args if second is NULL else [second, *args]


def call(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``f(a, b)``."""
    fn, args = _callee(frame, frame.pop(ins.arg))
    frame.stack.append(fn.call(tr, args, {}))


def call_kw(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``f(a, k=b)``; the names are on top."""
    names = frame.stack.pop().constant(tr)
    given = frame.pop(ins.arg)
    fn, args = _callee(frame, given[: len(given) - len(names)])
    frame.stack.append(fn.call(tr, args, dict(zip(names, given[len(given) - len(names) :], strict=True))))


def call_function_ex(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``f(*args, **kwargs)``."""
    named = frame.stack.pop() if ins.arg else None
    given = frame.stack.pop()
    check_iterable(given, "*")
    fn, args = _callee(frame, list(given.filling(tr)))
    kwargs: dict[str, Any] = {}
    if named is not None:
        check_iterable(named, "**")
        kwargs = {k.constant(tr): v for k, v in pairs_of_mapping(tr, named)}
        if not all(isinstance(k, str) for k in kwargs):
            raise GraphBreak("user-exception", "keywords must be strings")
    frame.stack.append(fn.call(tr, args, kwargs))


def make_function(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """A function of this frame's own."""
    frame.stack.append(FunctionValue(frame.stack.pop().code, frame.globals))


def set_function_attribute(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Give the function on top what lies below it: defaults, keyword defaults, annotations or cells."""
    value, fn = frame.pop(2)
    if ins.arg == 1:
        fn.defaults = value.values(tr)
    elif ins.arg == 2:
        fn.kwdefaults = {k.constant(tr): v for k, v in value.pairs(tr)}
    elif ins.arg == 4:
        fn.annotations = value
    elif ins.arg == 8:
        fn.closure = tuple(value.values(tr))
    frame.stack.append(fn)


def load_build_class(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """A class statement: plain Python runs it."""
    raise GraphBreak("class-body", "a class statement")


HANDLERS = {
    "CALL": call,
    "CALL_KW": call_kw,
    "CALL_FUNCTION_EX": call_function_ex,
    "LOAD_BUILD_CLASS": load_build_class,
    "MAKE_FUNCTION": make_function,
    "SET_FUNCTION_ATTRIBUTE": set_function_attribute,
}
