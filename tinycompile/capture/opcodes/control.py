"""Jumps, loops, with blocks, generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import VERSION
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import NONE
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


def jump(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Go on at the target."""
    assert ins.target is not None
    frame.at = ins.target


def pop_jump_if_true(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Branch."""
    if frame.stack.pop().truth(tr):
        jump(tr, frame, ins)


def pop_jump_if_false(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Branch."""
    if not frame.stack.pop().truth(tr):
        jump(tr, frame, ins)


def pop_jump_if_none(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Branch."""
    if tr.identical(frame.stack.pop(), NONE):
        jump(tr, frame, ins)


def pop_jump_if_not_none(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Branch."""
    if not tr.identical(frame.stack.pop(), NONE):
        jump(tr, frame, ins)


def jump_if_true_or_pop(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a or b`` (3.11)."""
    if frame.stack[-1].truth(tr):
        jump(tr, frame, ins)
    else:
        frame.stack.pop()


def jump_if_false_or_pop(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a and b`` (3.11)."""
    if frame.stack[-1].truth(tr):
        frame.stack.pop()
    else:
        jump(tr, frame, ins)


# --- iteration ---


def get_iter(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``iter(x)``."""
    frame.stack.append(tr.iter(frame.stack.pop()))


def _step(tr: Tracer, iterator: Value, sent: Value) -> tuple[Value | None, Value]:
    """The next value of an iterator. At its end None, and what a generator returned or StopIteration brought."""
    if isinstance(iterator, ObjectValue) and id(iterator) in tr.begun:
        return iterator.step(tr, sent)
    if not isinstance(iterator, IteratorValue):
        raise GraphBreak("iterator", iterator.describe())
    value = iterator.send(tr, sent)
    return value, tr.returned_by(iterator) if value is None else NONE


def for_iter(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The next value, or out of the loop."""
    value, _ = _step(tr, frame.stack[-1], NONE)
    if value is None:
        frame.stack.pop()
        jump(tr, frame, ins)
    else:
        frame.stack.append(value)


def get_len(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``len`` in a match statement."""
    frame.stack.append(frame.stack[-1].length(tr))


# --- generators ---


def return_generator(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The frame is a generator's already: leave something for the POP_TOP that follows."""
    frame.stack.append(NONE)


def yield_value(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Hand a value out."""
    frame.result, frame.suspended = frame.stack.pop(), True


def send(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """A step of ``yield from``."""
    value, returned = _step(tr, frame.stack[-2], frame.stack.pop())
    if value is not None:
        frame.stack.append(value)
        return
    if VERSION == (3, 11):
        frame.stack.pop()
    frame.stack.append(returned)
    jump(tr, frame, ins)


def end_send(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Drop the exhausted iterator below the result."""
    del frame.stack[-2]


def return_value(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``return``."""
    frame.result = frame.take()


# --- with ---


def before_with(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Enter a context; its ``__exit__`` waits on the stack."""
    manager = frame.stack.pop()
    leave, enter = _manages(tr, manager, "__exit__"), _manages(tr, manager, "__enter__")
    frame.stack.append(leave)
    frame.stack.append(enter.call(tr, [], {}))


def _manages(tr: Tracer, manager: Value, name: str) -> Value:
    """``__enter__`` or ``__exit__``: of an object its class's, whatever its attributes are."""
    try:
        method = manager.special(tr, name) if isinstance(manager, ObjectValue) else manager.get_attr(tr, name)
    except AttributeError as error:
        if not is_the_programs(error):
            raise
        method = None
    if method is None:
        raise GraphBreak("user-exception", f"with {manager.describe()}, which has no {name}")
    return method


HANDLERS = {
    "JUMP": jump,
    "POP_JUMP_IF_TRUE": pop_jump_if_true,
    "POP_JUMP_IF_FALSE": pop_jump_if_false,
    "POP_JUMP_IF_NONE": pop_jump_if_none,
    "POP_JUMP_IF_NOT_NONE": pop_jump_if_not_none,
    "JUMP_IF_TRUE_OR_POP": jump_if_true_or_pop,
    "JUMP_IF_FALSE_OR_POP": jump_if_false_or_pop,
    "GET_ITER": get_iter,
    "GET_YIELD_FROM_ITER": get_iter,
    "FOR_ITER": for_iter,
    "GET_LEN": get_len,
    "RETURN_GENERATOR": return_generator,
    "YIELD_VALUE": yield_value,
    "SEND": send,
    "END_SEND": end_send,
    "RETURN_VALUE": return_value,
    "BEFORE_WITH": before_with,
}
