"""The symbolic interpreter's loop: one frame, one instruction after the other."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

from tinycompile.base.stack_room import has_room
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import Instruction, decode, guarded_by_try
from tinycompile.capture.endings import Carried
from tinycompile.capture.opcodes.exceptions import unwind
from tinycompile.capture.opcodes.registry import HANDLERS
from tinycompile.capture.values.base import Value
from tinycompile.ir.graph import Location

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Frame:
    """The state of one call: where it is, its variables (``slots``: values, lazies or cells by name) and its stack.

    ``count``: instructions done so far, kept for the outermost frame."""

    __slots__ = ("at", "code", "count", "globals", "instructions", "name", "result", "slots", "stack", "suspended")

    def __init__(self, code: CodeType, globals_: dict[str, Any], slots: dict[str, Any], name: str) -> None:
        self.code, self.globals, self.slots, self.name = code, globals_, slots, name
        self.instructions = decode(code)
        self.stack: list[Any] = []
        self.at = self.count = 0
        self.result: Value | None = None
        self.suspended = False

    @property
    def current(self) -> Instruction:
        """The instruction that is being executed."""
        return self.instructions[self.at - 1]

    @property
    def location(self) -> Location:
        """The user's line."""
        line = self.current.line if self.at else self.code.co_firstlineno
        return Location(self.code.co_filename, line or self.code.co_firstlineno, self.code.co_name)

    @property
    def in_try_block(self) -> bool:
        """Whether an exception here would be caught by the user's code."""
        return bool(self.at) and self.current.handler is not None and guarded_by_try(self.instructions, self.at - 1)

    def pop(self, count: int) -> list[Any]:
        """Take ``count`` values off the stack, the lowest first."""
        if not count:
            return []
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def take(self) -> Any:
        """Take the top as it is, also if nobody has looked at it yet."""
        return list.pop(self.stack)


def run_outermost(tr: Tracer, frame: Frame, stop: int | None) -> bool:
    """Execute until the frame returns, or (False) until so many instructions are done."""
    tr.frames.append(frame)
    instructions, force = frame.instructions, tr.options.force
    carried = Carried(frame) if tr.resumed else None
    entered = tr.resumed  # a break before the very first instruction has been taken already
    try:
        while frame.result is None:
            if frame.count == stop:
                return False
            at = frame.at
            ins = instructions[at]
            frame.at += 1
            if force is not None and stop is None and (frame.count or not entered) and ins.op != "SET_FUNCTION_ATTRIBUTE":
                if force(frame.code, frame.at - 1):  # (half a function can't be carried over)
                    raise GraphBreak("forced", ins.op)
            handler = HANDLERS.get(ins.op)
            if handler is None:
                raise GraphBreak("unsupported-instruction", ins.op)
            try:
                handler(tr, frame, ins)
            except (Exception, GeneratorExit) as error:
                if not unwind(tr, frame, error):
                    raise
            if carried is not None:
                carried.after(tr, frame, at)
            frame.count += 1
            if frame.stack:
                tr.note_birth(list.__getitem__(frame.stack, -1), frame.count - 1)
    except (Exception, GeneratorExit) as error:
        tr.note_failure(error)
        raise
    finally:
        tr.frames.pop()
    return True


def run(tr: Tracer, frame: Frame) -> Value:
    """Execute until the frame returns, or yields (then ``frame.suspended``)."""
    if not has_room():
        raise GraphBreak("recursion", f"{frame.name} is called {len(tr.frames)} calls deep")
    tr.frames.append(frame)
    frame.result, frame.suspended = None, False
    instructions, force = frame.instructions, tr.options.force
    try:
        while frame.result is None:
            ins = instructions[frame.at]
            frame.at += 1
            if force is not None and force(frame.code, frame.at - 1):
                raise GraphBreak("forced", ins.op)
            handler = HANDLERS.get(ins.op)
            if handler is None:
                raise GraphBreak("unsupported-instruction", ins.op)
            try:
                handler(tr, frame, ins)
            except (Exception, GeneratorExit) as error:
                if not unwind(tr, frame, error):
                    raise
    except (Exception, GeneratorExit) as error:
        tr.note_failure(error)
        raise
    finally:
        tr.frames.pop()
    return frame.result
