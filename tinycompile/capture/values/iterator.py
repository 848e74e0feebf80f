"""Iterators that live inside the frame: over containers, of built-in functions, and of generators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.base import Kwargs, MethodOf, Value, builtin_attribute
from tinycompile.capture.values.constant import NONE

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Watching(Iterator[Value]):
    """Steps over a container that notice when it was changed: from then on each says so again, as Python's do."""

    def __init__(self, steps: Iterator[Value]) -> None:
        self.steps = steps
        self.complaint = ""

    def __next__(self) -> Value:
        if self.complaint:
            raise RuntimeError(self.complaint)
        try:
            return next(self.steps)
        except RuntimeError as error:
            self.complaint = str(error)
            raise


class IteratorValue(Value):
    """A Python iterator of Values, consumed as the program consumes it. ``returned``: what a generator returned at its end.
    ``cls``: its class, where that is known. ``stop``: the program's StopIteration that ended it last, where one did."""

    __slots__ = ("cls", "rest", "returned", "stop")

    def __init__(self, rest: Iterator[Value], cls: type | None = None) -> None:
        super().__init__()
        self.rest, self.cls = rest, cls
        self.returned: Value = NONE
        self.stop: StopIteration | None = None

    def python_type(self, tr: Tracer) -> type:
        return super().python_type(tr) if self.cls is None else self.cls

    def next(self, tr: Tracer) -> Value | None:
        """The next value, or None at the end."""
        try:
            return next(self.rest)
        except StopIteration as stop:
            self.stop = stop if tr.is_known(stop) else None  # kept, it would hold our frames, and these this iterator
            return None

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        return self.rest

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in ("__iter__", "__next__"):  # whatever its class
            return MethodOf(self, name)
        cls = self.python_type(tr)
        found = builtin_attribute(tr, self, cls, name)
        if not callable(getattr(cls, name)):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of an iterator")
        return found

    def send(self, tr: Tracer, value: Value) -> Value | None:
        """The same: only generators take values."""
        return self.next(tr)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "__iter__":
            return self
        if name == "__next__":
            return tr.next(self)
        raise GraphBreak("unsupported-value", f"iterator method {name!r}")
