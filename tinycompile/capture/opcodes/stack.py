"""Moving things on the operand stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinycompile.capture.values.constant import NONE

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer

NULL: Any = type("Null", (), {"__repr__": lambda self: "NULL"})()  # CPython's null pointer on the stack


def pop_top(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Drop the top."""
    frame.stack.pop()


def copy(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push the n-th from the top again."""
    frame.stack.append(frame.stack[-ins.arg])


def swap(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Exchange the top with the n-th."""
    stack = frame.stack
    stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]


def push_null(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push the null pointer."""
    frame.stack.append(NULL)


def load_const(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push a constant of the code object."""
    frame.stack.append(NONE if ins.arg is None else tr.code_constant(ins.arg))


HANDLERS = {"POP_TOP": pop_top, "COPY": copy, "SWAP": swap, "PUSH_NULL": push_null, "LOAD_CONST": load_const}
