"""Containers from outside that the program has not looked into. Their contents are guarded when it first does. What it only
adds is replayed as it was added, so a list that grows from call to call needs no new code.

``items``, through which everything else reads, is what looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.symbolic import SymInt

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

Contents = list[Any] | dict[Any, Any]
Look = Callable[[], Contents]  # guards the contents, and gives them


def check_key(tr: Tracer, key: Value) -> None:
    """Raise what Python raises for what can't be a key. Numbers that change always can."""
    if not isinstance(key, (SymInt, ScalarValue)):
        key.key(tr)


class Unread:
    """What the kinds share. ``pending``: the calls that add something, while nobody has looked; ``before``: what there was
    at the beginning, when somebody has."""

    __slots__ = ()
    _look: Look | None
    _items: Any
    _tr: Tracer
    pending: list[tuple[str, tuple[Value, ...]]]
    before: Any
    adding: frozenset[str] = frozenset()  # methods that need not look

    def start(self, tr: Tracer, look: Look) -> None:
        """Begin, with nothing known."""
        self._look, self._tr, self.pending, self.before = look, tr, [], None  # type: ignore[misc]  # slots of the kinds

    @property
    def is_unread(self) -> bool:
        """Whether nobody has looked."""
        return self._look is not None

    @property
    def items(self) -> Any:
        """The contents, guarded from now on."""
        look = self._look
        if look is not None:
            self._look = None  # type: ignore[misc]
            self._items = look()
            self.before = self._items.copy()
            pending, self.pending = self.pending, []  # type: ignore[misc]
            for name, args in pending:
                self.call_method(self._tr, name, args, {})
        return self._items

    @items.setter
    def items(self, items: Any) -> None:
        self._items = items

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """What adds waits; everything else looks."""
        if self._look is None or kwargs or name not in self.adding:
            return super().call_method(tr, name, args, kwargs)  # type: ignore[misc]  # of the kind of Value
        if name in ("extend", "extendleft"):
            for value in self.added(tr, args[0]):  # type: ignore[attr-defined]  # of lists
                self.call_method(tr, name.replace("extend", "append"), [value], {})  # what makes the values may have looked
        else:
            if name == "insert":
                tr.index(args[0], "insert")
            self._defer(tr, name, tuple(args))
        return NONE

    def _defer(self, tr: Tracer, name: str, args: tuple[Value, ...]) -> None:
        tr.effects.touch(self)  # type: ignore[arg-type]
        self.pending.append((name, args))


class UnreadList(Unread, ListValue):
    """A list."""

    __slots__ = ("_items", "_look", "_tr", "before", "pending")
    adding = frozenset({"append", "extend", "insert"})

    def __init__(self, tr: Tracer, look: Look, source: Source) -> None:
        self._look = None
        ListValue.__init__(self, (), source)
        self.start(tr, look)

    def extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """``list.extend``, and ``+=``."""
        return self.call_method(tr, "extend", args, {})


class UnreadDeque(Unread, DequeValue):
    """A deque."""

    __slots__ = ("_items", "_look", "_tr", "before", "pending")
    adding = frozenset({"append", "appendleft", "extend", "extendleft"})

    def __init__(self, tr: Tracer, look: Look, maxlen: int | None, source: Source) -> None:
        self._look = None
        DequeValue.__init__(self, (), maxlen, source)
        self.start(tr, look)

    def extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """``+=``."""
        return self.call_method(tr, "extend", args, {})


class UnreadDict(Unread, DictValue):
    """A dict or a relative of it."""

    __slots__ = ("_items", "_look", "_tr", "before", "obj", "pending")
    adding = frozenset({"__setitem__"})

    def __init__(self, tr: Tracer, look: Look, obj: dict[Any, Any], source: Source) -> None:
        self._look, self.obj = None, obj
        DictValue.__init__(self, tr, (), type(obj), source)
        self.start(tr, look)

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        if self.is_unread:
            check_key(tr, key)
            if isinstance(key, Const) and self.source is not None:
                tr.check_overwritten(self.obj, self.source, key.value)
            self._defer(tr, "__setitem__", (key, value))
        else:
            DictValue.set_item(self, tr, key, value)


class UnreadSet(Unread, SetValue):
    """A set."""

    __slots__ = ("_items", "_look", "_tr", "before", "pending")
    adding = frozenset({"add"})

    def __init__(self, tr: Tracer, look: Look, cls: type, source: Source) -> None:
        self._look = None
        SetValue.__init__(self, tr, (), cls, source)
        self.start(tr, look)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """As of all kinds."""
        if self.is_unread and name in self.adding and args:
            check_key(tr, args[0])
        return Unread.call_method(self, tr, name, args, kwargs)
