"""Generators whose frame sleeps inside the capture: next, send, throw and close, as PEP 342 has them."""

from __future__ import annotations

import builtins
from types import GeneratorType
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import passes_handlers
from tinycompile.capture.execute import Frame, run
from tinycompile.capture.opcodes.exceptions import instance_of, raise_error, stopped, unwind
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.iterator import IteratorValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tinycompile.capture.tracer import Tracer


class GeneratorValue(IteratorValue):
    """``frame``: None once it is over. ``started``: whether its body was entered."""

    __slots__ = ("frame", "running", "started", "tr")

    def __init__(self, tr: Tracer, frame: Frame) -> None:
        super().__init__(self._values(), GeneratorType)
        self.tr, self.frame = tr, frame
        self.started = self.running = False

    frame: Frame | None

    def _values(self) -> Iterator[Value]:
        while (value := self.next()) is not None:
            yield value

    def describe(self) -> str:
        return "a generator"

    def next(self) -> Value | None:
        return self.send(NONE)

    def send(self, value: Value) -> Value | None:
        """The next value that it yields; None where it returned, and ``returned`` has the result."""
        frame = self.frame
        if frame is None:
            return None
        if self.started:
            frame.stack.append(value)
        elif value is not NONE and not self.tr.identical(value, NONE):
            raise TypeError("can't send non-None value to a just-started generator")
        return self._run(frame)

    def _run(self, frame: Frame) -> Value | None:
        if self.running:
            raise ValueError("generator already executing")
        self.started = self.running = True
        handled = self.tr.handled
        try:
            value = run(self.tr, frame)
        except StopIteration as stop:
            self.frame = None
            if not is_the_programs(stop):
                raise
            raise_error(self.tr, stopped(self.tr, stop))
        except (Exception, GeneratorExit):
            self.frame = None
            raise
        finally:
            self.running, self.tr.handled = False, handled
        if frame.suspended:
            if self.must_be_closed:
                self.tr.asleep.append(self)
            return value
        self.frame, self.returned = None, value
        return None

    def throw(self, error: ExceptionValue) -> Value | None:
        """Raise an exception where it sleeps; then as ``send``."""
        frame = self.frame
        if frame is None or not self.started:
            self.frame = None
            raise_error(self.tr, error.error)
        delegate = self._delegate(frame)
        if delegate is not None:
            return self._throw_into(frame, delegate, error)
        return self._raise_in(frame, error.error)

    def _raise_in(self, frame: Frame, error: BaseException) -> Value | None:
        self.tr.frames.append(frame)
        try:
            raise_error(self.tr, error)
        except (Exception, GeneratorExit) as caught:
            if not unwind(self.tr, frame, caught):
                self.frame = None
                raise
        finally:
            self.tr.frames.pop()
        return self._run(frame)

    def _delegate(self, frame: Frame) -> IteratorValue | None:
        """The iterator of the ``yield from`` in which it sleeps."""
        asleep_in = frame.instructions[frame.at - 2].op if frame.at >= 2 else ""
        found = frame.stack[-1] if asleep_in == "SEND" and frame.stack else None
        return found if isinstance(found, IteratorValue) else None

    def _throw_into(self, frame: Frame, delegate: IteratorValue, error: ExceptionValue) -> Value | None:
        if isinstance(error.error, GeneratorExit) or not isinstance(delegate, GeneratorValue):
            if isinstance(delegate, GeneratorValue):
                delegate.close()
            return self._raise_in(frame, error.error)
        try:
            value = delegate.throw(error)
        except Exception as caught:
            if is_the_programs(caught) and not isinstance(caught, (GraphBreak, StopIteration)):
                return self._raise_in(frame, caught)
            raise
        if value is not None:
            return value
        frame.stack.append(NONE)  # as if the delegate had returned on being sent a value
        frame.at -= 2  # SEND asks it once more: it is over, and says again what it returned
        return self._run(frame)

    @property
    def must_be_closed(self) -> bool:
        """Whether code of its own runs when Python drops it: it sleeps in a ``with``, or a ``try`` that takes GeneratorExit."""
        frame = self.frame
        if frame is None or frame.current.handler is None:
            return False
        names = {**vars(builtins), **frame.globals}
        return not passes_handlers(frame.instructions, frame.at - 1, GeneratorExit, names)

    def close(self) -> None:
        """End it: GeneratorExit where it sleeps."""
        if self.frame is None or not self.started:
            self.frame = None
            return
        error = self.tr.exception(GeneratorExit())
        try:
            value = self.throw(error)
        except (GeneratorExit, StopIteration) as ended:
            if not is_the_programs(ended):
                raise
            return
        if value is not None:
            raise RuntimeError("generator ignored GeneratorExit")

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "close":
            self.close()
            return NONE
        if name in ("send", "throw") and not kwargs and args:
            value = self.send(args[0]) if name == "send" else self.throw(instance_of(tr, args))
            if value is not None:
                return value
            raise_error(tr, tr.stop_iteration(self).error)
        return super().call_method(tr, name, args, kwargs)
