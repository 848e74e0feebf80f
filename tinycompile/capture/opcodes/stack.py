"""Moving things on the operand stack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from tinycompile.capture.bytecode import VERSION
from tinycompile.capture.values.base import Lazy
from tinycompile.capture.values.constant import NONE

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer

NULL: Any = type("Null", (), {"__repr__": lambda self: "NULL"})()  # CPython's null pointer on the stack


class LazyStack(list[Any]):
    """The operand stack of a frame that may be left and entered again: what nobody looks at is not guarded."""

    __slots__ = ("tr",)

    def __init__(self, tr: Tracer, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self.tr = tr

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Take an entry, looked at."""
        value = super().pop(index)
        return self.tr.force(value) if type(value) is Lazy else value

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if type(found) is Lazy:
            found = self.tr.force(found)
        elif isinstance(at, slice):
            found = [self.tr.force(v) if type(v) is Lazy else v for v in found]
        return found


def callable_slots(fn: Any) -> list[Any]:
    """A callable in the two slots below its arguments, in the version's order."""
    return [fn, NULL] if VERSION >= (3, 13) else [NULL, fn]


def callee_at(frame: Frame) -> int | None:
    """Where on the stack the callee of the call that comes next is; None before any other instruction."""
    ins = frame.instructions[frame.at]
    if ins.op not in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return None
    below = {"CALL": ins.arg, "CALL_KW": ins.arg + 1 if ins.op == "CALL_KW" else 0}.get(ins.op, 1 + bool(ins.arg))
    first = len(frame.stack) - below - 2
    return next(i for i in (first, first + 1) if list.__getitem__(frame.stack, i) is not NULL)


def pop_top(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Drop the top."""
    frame.take()


def copy(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push the n-th from the top again."""
    frame.stack.append(list.__getitem__(frame.stack, -ins.arg))


def swap(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Exchange the top with the n-th."""
    stack, raw = frame.stack, list.__getitem__
    stack[-1], stack[-ins.arg] = raw(stack, -ins.arg), raw(stack, -1)


def push_null(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push the null pointer."""
    frame.stack.append(NULL)


def load_const(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push a constant of the code object."""
    frame.stack.append(NONE if ins.arg is None else tr.code_constant(ins.arg))


HANDLERS = {"POP_TOP": pop_top, "COPY": copy, "SWAP": swap, "PUSH_NULL": push_null, "LOAD_CONST": load_const}
