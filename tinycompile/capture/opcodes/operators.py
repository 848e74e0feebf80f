"""Arithmetic, comparison, logic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinycompile.capture.values.constant import boolean

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


def binary_op(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a + b``, ``a += b``."""
    a, b = frame.pop(2)
    frame.stack.append(tr.binary(ins.arg, a, b))


def compare_op(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a < b``."""
    a, b = frame.pop(2)
    frame.stack.append(tr.compare(ins.arg, a, b))


def is_op(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a is b``, ``a is not b``."""
    a, b = frame.pop(2)
    frame.stack.append(boolean(tr.identical(a, b) != ins.arg))


def contains_op(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a in b``, ``a not in b``."""
    item, container = frame.pop(2)
    frame.stack.append(boolean(container.contains(tr, item) != ins.arg))


def unary_negative(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``-a``."""
    frame.stack.append(tr.unary("-", frame.stack.pop()))


def unary_positive(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``+a``."""
    frame.stack.append(tr.unary("+", frame.stack.pop()))


def unary_invert(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``~a``."""
    frame.stack.append(tr.unary("~", frame.stack.pop()))


def unary_not(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``not a``."""
    frame.stack.append(boolean(not frame.stack.pop().truth(tr)))


def to_bool(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``bool(a)`` before a branch (3.13)."""
    frame.stack.append(boolean(frame.stack.pop().truth(tr)))


HANDLERS = {
    "BINARY_OP": binary_op,
    "COMPARE_OP": compare_op,
    "IS_OP": is_op,
    "CONTAINS_OP": contains_op,
    "UNARY_NEGATIVE": unary_negative,
    "UNARY_POSITIVE": unary_positive,
    "UNARY_INVERT": unary_invert,
    "UNARY_NOT": unary_not,
    "TO_BOOL": to_bool,
}
