"""``collections.deque``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Lazy, Value, builtin_attribute
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.sequence import READING, ListValue, Method

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class DequeValue(ListValue):
    """``collections.deque``."""

    __slots__ = ("maxlen", "state")

    def __init__(self, items: Iterable[Value | Lazy] = (), maxlen: int | None = None, source: Source | None = None) -> None:
        super().__init__(items, source)
        self.cls, self.maxlen = deque, maxlen
        self.state = 0  # another whenever its items moved
        self._trim()

    def _trim(self, left: bool = False) -> None:
        """What is too much falls off the other end."""
        if self.maxlen is not None and len(self.items) > self.maxlen:
            excess = len(self.items) - self.maxlen
            self.items[:] = self.items[: self.maxlen] if left else self.items[excess:]

    def get_attr(self, tr: Tracer, name: str) -> Value:
        found = builtin_attribute(tr, self, deque, name)
        return Const(self.maxlen) if name == "maxlen" else found

    def constant(self, tr: Tracer) -> Any:
        return deque((v.constant(tr) for v in self.values(tr)), self.maxlen)

    def argument(self, tr: Tracer) -> Any:
        raise GraphBreak("unsupported-argument", "a deque, which is no sequence to most of torch")

    def slice(self, tr: Tracer, at: slice) -> Value:
        raise TypeError("sequence index must be integer, not 'slice'")

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name not in _METHODS or kwargs:
            raise GraphBreak("unsupported-value", f"deque method {name!r}")
        if name not in READING and name != "copy":
            self.changed(tr)
            self.state += name not in _IN_PLACE
        return _METHODS[name](self, tr, args)

    def _append(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.items.append(args[0])
        self._trim()
        return NONE

    def _append_left(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.items.insert(0, args[0])
        self._trim(left=True)
        return NONE

    def _extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for value in self.added(tr, args[0]):
            self._append(tr, [value])
        return NONE

    def _extend_left(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for value in self.added(tr, args[0]):
            self._append_left(tr, [value])
        return NONE

    def _take(self, tr: Tracer, at: int) -> Value:
        if not self.items:
            raise IndexError("pop from an empty deque")
        value = self.item(tr, at)
        del self.items[at]
        return value

    def _rotate(self, tr: Tracer, args: Sequence[Value]) -> Value:
        by = tr.index(args[0], "deque") if args else 1
        if self.items:
            by %= len(self.items)
            self.items[:] = self.items[-by:] + self.items[:-by] if by else self.items
        return NONE

    def _copy(self, tr: Tracer, args: Sequence[Value]) -> Value:
        return DequeValue(self.values(tr), self.maxlen)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        len(self.items)  # looks: what was added unlooked at has moved them before
        return _Items(self, tr)

    def added(self, tr: Tracer, values: Value) -> Iterator[Value]:
        return values.iterate(tr) if isinstance(values, ObjectValue) else super().added(tr, values)  # whose length it asks not

    def del_item(self, tr: Tracer, key: Value) -> None:
        super().del_item(tr, key)
        self.state += 1

    def extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        self.state += 1
        return self._extend(tr, args)


class _Items(Iterator[Value]):
    """A loop over a deque, whose items may be replaced, but not moved."""

    def __init__(self, of: DequeValue, tr: Tracer) -> None:
        self.of, self.tr, self.at, self.state = of, tr, 0, of.state

    def __next__(self) -> Value:
        if self.of.state != self.state:
            self.at = len(self.of.items)
            raise RuntimeError("deque mutated during iteration")
        if self.at >= len(self.of.items):
            raise StopIteration
        self.at += 1
        return self.of.item(self.tr, self.at - 1)


_IN_PLACE = ("__setitem__", "reverse")
_METHODS: dict[str, Method] = {
    **READING,
    "append": DequeValue._append,
    "appendleft": DequeValue._append_left,
    "extend": DequeValue._extend,
    "extendleft": DequeValue._extend_left,
    "pop": lambda self, tr, args: self._take(tr, -1),
    "popleft": lambda self, tr, args: self._take(tr, 0),
    "rotate": DequeValue._rotate,
    "clear": ListValue._clear,
    "reverse": ListValue._reverse,
    "remove": ListValue._remove,
    "copy": DequeValue._copy,
    "__init__": lambda self, tr, args: self._begin(tr, args[:1]),
}
