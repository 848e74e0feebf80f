"""Generators whose frame sleeps inside the capture: next, send, throw and close, as PEP 342 has them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import GeneratorType
from typing import TYPE_CHECKING

from tinycompile.base.raised import is_a
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.bytecode import VERSION, passes_handlers
from tinycompile.capture.execute import Frame, run
from tinycompile.capture.opcodes.exceptions import instance_of, raise_error, stopped, unwind
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tinycompile.capture.tracer import Tracer


class _Steps(Iterator[Value]):
    """What a generator yields, asked by its ``next``."""

    def __init__(self, of: GeneratorValue) -> None:
        self.of = of

    def __next__(self) -> Value:
        value = self.of.next(self.of.tr)
        if value is None:
            raise StopIteration
        return value


class GeneratorValue(IteratorValue):
    """``frame``: None once it is over. ``started``: whether its body was entered."""

    __slots__ = ("frame", "running", "started", "tr")

    def __init__(self, tr: Tracer, frame: Frame) -> None:
        super().__init__(iter(()), GeneratorType)
        self.tr, self.frame = tr, frame
        self.started = self.running = False

    frame: Frame | None

    def describe(self) -> str:
        return "a generator"

    def next(self, tr: Tracer) -> Value | None:
        return self.send(tr, NONE)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        return _Steps(self)  # (not held, for it holds this)

    def send(self, tr: Tracer, value: Value) -> Value | None:
        """The next value that it yields; None where it returned, and ``returned`` has the result."""
        frame = self.frame
        if frame is None:
            return None
        self._check_asleep()
        if self.started:
            frame.stack.append(value)
        elif value is not NONE and not self.tr.identical(value, NONE):
            raise TypeError("can't send non-None value to a just-started generator")
        return self._run(frame)

    def _check_asleep(self) -> None:
        if self.running:
            raise ValueError("generator already executing")

    def _run(self, frame: Frame) -> Value | None:
        self._check_asleep()
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

    def throw(self, error: ExceptionValue, given: Sequence[Value]) -> Value | None:
        """Raise an exception where it sleeps; then as ``send``. ``given``: what the program said that it is."""
        frame = self.frame
        self._check_asleep()
        if frame is None or not self.started:
            self.frame = None
            inside = frame is not None and VERSION < (3, 12)  # where its body is entered for it
            raise_error(self.tr, self._leaving(error.error) if inside else error.error)
        delegate = self._delegate(frame)
        if delegate is not None:
            return self._throw_into(frame, delegate, error, given)
        return self._raise_in(frame, error.error)

    def _leaving(self, error: BaseException) -> BaseException:
        """What becomes of an exception that leaves its body."""
        return stopped(self.tr, error) if is_a(error, StopIteration) else error

    def _raise_in(self, frame: Frame, error: BaseException) -> Value | None:
        self.tr.frames.append(frame)
        try:
            raise_error(self.tr, error)
        except (Exception, GeneratorExit) as caught:
            if not unwind(self.tr, frame, caught):
                self.frame = None
                if not is_the_programs(caught) or self._leaving(caught) is caught:
                    raise
                raise_error(self.tr, self._leaving(caught))
        finally:
            self.tr.frames.pop()
        return self._run(frame)

    def _delegate(self, frame: Frame) -> IteratorValue | ObjectValue | None:
        """The iterator of the ``yield from`` in which it sleeps."""
        asleep_in = frame.instructions[frame.at - 2].op if frame.at >= 2 else ""
        found = frame.stack[-1] if asleep_in == "SEND" and frame.stack else None
        return found if isinstance(found, (IteratorValue, ObjectValue)) else None

    def _throw_into(
        self, frame: Frame, delegate: IteratorValue | ObjectValue, error: ExceptionValue, given: Sequence[Value]
    ) -> Value | None:
        self.running = True
        self.tr.frames.append(frame)
        try:
            value, returned = self._thrown(delegate, error, given)
        except (Exception, GeneratorExit) as raised:
            if not is_the_programs(raised) or is_a(raised, GraphBreak):
                raise
            caught: BaseException | None = raised
        else:
            caught = None
        finally:
            self.running = False
            self.tr.frames.pop()
        if caught is not None:
            return self._raise_in(frame, caught)
        if value is not None:
            return value
        self._end_delegate(frame, returned)
        return self._run(frame)

    def _thrown(
        self, delegate: IteratorValue | ObjectValue, error: ExceptionValue, given: Sequence[Value]
    ) -> tuple[Value | None, Value]:
        """What a ``yield from`` does with an exception: its iterator's next value; or None, and what that ended with."""
        if is_a(error.error, GeneratorExit):
            close = _method(self.tr, delegate, "close")
            if close is not None:
                close.call(self.tr, [], {})
            raise_error(self.tr, error.error)
        if isinstance(delegate, GeneratorValue):
            return delegate.throw(error, given), delegate.returned
        throw = _method(self.tr, delegate, "throw")
        if throw is None:
            raise_error(self.tr, error.error)
        try:
            return throw.call(self.tr, given, {}), NONE
        except StopIteration as stop:
            if not is_the_programs(stop):
                raise
            return None, self.tr.exception(stop).get_attr(self.tr, "value")

    def _end_delegate(self, frame: Frame, returned: Value) -> None:
        """Go on behind the ``yield from``, as if its iterator had returned on being sent a value."""
        frame.at -= 2
        send = frame.instructions[frame.at]
        assert send.target is not None
        if VERSION == (3, 11):
            frame.stack.pop()
        frame.stack.append(returned)
        frame.at = send.target

    @property
    def must_be_closed(self) -> bool:
        """Whether code of its own runs when Python drops it: it sleeps in a ``with``, in a ``try`` that
        takes GeneratorExit, or in an iterator that is closed with it."""
        frame = self.frame
        if frame is None:
            return False
        delegate = self._delegate(frame)
        if isinstance(delegate, ObjectValue) and delegate.may_have("close"):
            return True
        if frame.current.handler is None:
            return False
        names = {**vars(builtins), **frame.globals}
        return not passes_handlers(frame.instructions, frame.at - 1, GeneratorExit, names)

    def close(self) -> Value:
        """End it: GeneratorExit where it sleeps. From 3.13 on it gives what the generator then returns."""
        if self.frame is None or not self.started:
            self.frame = None
            return NONE
        error = self.tr.exception(GeneratorExit())
        try:
            value = self.throw(error, [error])
        except (GeneratorExit, StopIteration) as ended:
            if not is_the_programs(ended):
                raise
            return NONE
        if value is not None:
            raise RuntimeError("generator ignored GeneratorExit")
        return self.returned if VERSION >= (3, 13) else NONE

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "close":
            return self.close()
        if name in ("send", "throw") and not kwargs and args:
            value = self.send(tr, args[0]) if name == "send" else self.throw(instance_of(tr, args), args)
            if value is not None:
                return value
            raise_error(tr, tr.stop_iteration(self).error)
        return super().call_method(tr, name, args, kwargs)


def _method(tr: Tracer, value: IteratorValue | ObjectValue, name: str) -> Value | None:
    """A method that an iterator may have: Python's own have none of these, but for generators."""
    if not isinstance(value, (GeneratorValue, ObjectValue)):
        return None
    try:
        return value.get_attr(tr, name)
    except AttributeError as error:
        if not is_the_programs(error):
            raise
        return None
