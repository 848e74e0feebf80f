"""Raising and handling exceptions. A handler gets the exception object on the stack, and what was handled before below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tinycompile.base.raised import bases_of, is_a, read, write
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import exception_rows
from tinycompile.capture.provenance import is_the_programs, raises_for_the_program
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import ClassValue
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.exception import ExceptionValue, Traceback, chain
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


def unwind(tr: Tracer, frame: Frame, error: BaseException) -> bool:
    """Go on at the handler that the frame has for an error. False: it has none, or the error may not be the program's."""
    ins = frame.current
    if ins.handler is None or is_a(error, GraphBreak) or not is_the_programs(error):
        return False
    if not tr.is_known(error):  # a complaint of ours in Python's words: what it came from in here is not the program's
        for field, blank in (("__cause__", None), ("__context__", None), ("__suppress_context__", False)):
            write(error, field, blank)
        chain(error, None if tr.handled is None else tr.handled.error)
    depth, lasti = exception_rows(frame.code)[ins.offset]
    del frame.stack[depth:]
    if lasti:
        frame.stack.append(Const(ins.offset))
    frame.stack.append(tr.exception(error))
    frame.at = ins.handler
    return True


@raises_for_the_program
def raise_varargs(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``raise``, ``raise error``, ``raise error from cause``."""
    if ins.arg == 0:
        if tr.handled is None:
            raise RuntimeError("No active exception to reraise")
        raise tr.handled.error
    parts = frame.pop(ins.arg)
    error = _instance(tr, parts[0]).error
    if ins.arg == 2:
        write(error, "__cause__", None if parts[1] is NONE else _instance(tr, parts[1]).error)
    raise_error(tr, error)


@raises_for_the_program
def raise_error(tr: Tracer, error: BaseException) -> NoReturn:
    """Raise an exception of the program's. Python's own context is where we are, not where the program is."""
    handled, before = None if tr.handled is None else tr.handled.error, read(error, "__context__")
    try:
        raise error
    finally:
        write(error, "__context__", before)
        chain(error, handled)


def _instance(tr: Tracer, value: Any) -> ExceptionValue:
    if isinstance(value, ClassValue):
        value = value.call(tr, [], {})
    if not isinstance(value, ExceptionValue):
        raise GraphBreak("user-exception", f"{value.describe()} is raised")
    return value


def instance_of(tr: Tracer, args: Sequence[Any]) -> ExceptionValue:
    """The exception of ``throw(error)`` or ``throw(kind, value, traceback)``."""
    if len(args) > 1 and not isinstance(args[1], ExceptionValue):
        raise GraphBreak("unsupported-value", "throw() of a class and a value")
    return _instance(tr, args[1] if len(args) > 1 else args[0])


@raises_for_the_program
def reraise(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The end of a handler that did not handle it."""
    raise frame.stack.pop().error


def push_exc_info(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """A handler begins."""
    error = frame.stack.pop()
    frame.stack += [NONE if tr.handled is None else tr.handled, error]
    tr.handled = error


def pop_except(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """A handler ends."""
    before = frame.stack.pop()
    tr.handled = before if isinstance(before, ExceptionValue) else None


def check_exc_match(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``except kinds``."""
    kinds = _classes(tr, frame.stack.pop())
    frame.stack.append(boolean(_is_caught(frame.stack[-1].error, kinds)))


def _is_caught(error: BaseException, kinds: tuple[type, ...]) -> bool:
    """Whether an exception is of one of these classes, whatever their metaclasses say of instances."""
    return any(cls is kind for cls in bases_of(error) for kind in kinds)


def _classes(tr: Tracer, value: Any) -> tuple[type, ...]:
    if isinstance(value, TupleValue):
        return tuple(_class(v) for v in value.values(tr))
    return (_class(value),)


def _class(value: Value) -> type:
    """One of the classes; a tuple among them is none."""
    if not isinstance(value, (ClassValue, TupleValue)):
        raise GraphBreak("unsupported-value", f"except {value.describe()}")
    if isinstance(value, TupleValue) or BaseException not in value.cls.__mro__:
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return value.cls


def with_except_start(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Tell ``__exit__`` of the exception; its answer says whether it is swallowed."""
    error = frame.stack[-1]
    arguments = [tr.from_python(error.python_type(tr)), error, Traceback()]
    frame.stack.append(frame.stack[-4].call(tr, arguments, {}))


def check_eg_match(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``except* kinds``: splits the group on top into what matches and the rest, None for nothing."""
    kinds = _classes(tr, frame.stack.pop())
    value = frame.stack.pop()
    if any(issubclass(kind, BaseExceptionGroup) for kind in kinds):
        raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
    rest, match = (NONE, NONE) if value is NONE else _split(tr, value, kinds)
    frame.stack += [rest, match]
    if isinstance(match, ExceptionValue):
        tr.handled = match


def _split(tr: Tracer, value: ExceptionValue, kinds: tuple[type, ...]) -> list[Value] | tuple[Value, Value]:
    """What is left of an exception, and the group of what is of these kinds."""
    error = value.error
    if not is_a(error, BaseExceptionGroup):
        caught = _is_caught(error, kinds)
        return (NONE, _group(tr, ExceptionGroup, Const(""), TupleValue([value]))) if caught else (value, NONE)
    message, members = value.arguments(tr)
    parts: tuple[list[Any], list[Any]] = [], []
    for member in members.iterate(tr):
        if not isinstance(member, ExceptionValue) or is_a(member.error, BaseExceptionGroup):
            raise GraphBreak("unsupported-value", "except* over nested groups")
        parts[_is_caught(member.error, kinds)].append(member)
    return [_part(value, _group(tr, type(error), message, ListValue(part))) if part else NONE for part in parts]


def _group(tr: Tracer, cls: type, message: Value, members: SequenceValue) -> ExceptionValue:
    errors = members.rebuild([m.error for m in members.values(tr)])  # type: ignore[attr-defined]
    return tr.remember(ExceptionValue(cls(message.constant(tr), errors), [message, members]))


def _part(whole: ExceptionValue, part: ExceptionValue) -> ExceptionValue:
    """A part of a group has its cause, its context and its notes."""
    for field in ("__cause__", "__context__"):
        write(part.error, field, read(whole.error, field))
    part.notes = None if whole.notes is None else ListValue(whole.notes.items)
    return part


def prep_reraise_star(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The end of ``except*``: what is left to raise, of the exceptions that no handler took and those that handlers raised."""
    original, results = frame.pop(2)
    left = [v for v in results.values(tr) if v is not NONE]
    if not left:
        frame.stack.append(NONE)
    elif len(left) == 1 and (not is_a(original.error, BaseExceptionGroup) or _of_one_origin(left[0], original)):
        frame.stack.append(left[0])
    else:
        raise GraphBreak("unsupported-value", "exceptions of several origins are left after except*")


def _of_one_origin(part: ExceptionValue, whole: ExceptionValue) -> bool:
    """Whether a group is a part of another, and was not raised in a handler."""
    return all(read(part.error, field) is read(whole.error, field) for field in ("__cause__", "__context__"))


def stop_iteration_error(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The guard around a generator's body (3.12 on): StopIteration must not end it."""
    error = frame.stack[-1].error
    if is_a(error, StopIteration):
        frame.stack[-1] = tr.exception(stopped(tr, error))


def stopped(tr: Tracer, stop: StopIteration) -> RuntimeError:
    """What becomes of a StopIteration that leaves a generator's body."""
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = error.__context__ = stop
    return tr.exception(error).error  # type: ignore[return-value]  # known from here on, so its cause is the program's


def cleanup_throw(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """An exception came out of the iterator of a ``yield from``: StopIteration is its result."""
    error = frame.stack[-1]
    if not is_a(error.error, StopIteration):
        raise frame.stack.pop().error
    del frame.stack[-3:]
    frame.stack += [NONE, error.get_attr(tr, "value")]


def load_assertion_error(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """An assertion failed."""
    frame.stack.append(tr.from_python(AssertionError))


HANDLERS = {
    "RAISE_VARARGS": raise_varargs,
    "RERAISE": reraise,
    "PUSH_EXC_INFO": push_exc_info,
    "POP_EXCEPT": pop_except,
    "CHECK_EXC_MATCH": check_exc_match,
    "WITH_EXCEPT_START": with_except_start,
    "LOAD_ASSERTION_ERROR": load_assertion_error,
    "CHECK_EG_MATCH": check_eg_match,
    "PREP_RERAISE_STAR": prep_reraise_star,
    "STOPITERATION_ERROR": stop_iteration_error,
    "CLEANUP_THROW": cleanup_throw,
}
