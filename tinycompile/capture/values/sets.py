"""Sets and frozensets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, MethodOf, Value, no_attribute
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.sequence import Method

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class SetValue(Value):
    """A set or frozenset of hashable values, in the order of insertion. ``holder``: as of sequences."""

    __slots__ = ("cls", "holder", "items")
    holder: Value | None

    def __init__(self, tr: Tracer, items: Iterable[Value] = (), cls: type = set, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls, self.holder = cls, None
        self.items: dict[Any, Value] = {}
        for item in items:
            self.items.setdefault(item.key(tr), item)

    def python_type(self, tr: Tracer) -> type:
        return self.cls

    def key(self, tr: Tracer) -> Any:
        if self.cls is not frozenset:
            raise TypeError(f"unhashable type: '{self.cls.__name__}'")
        return frozenset(self.items)

    @property
    def is_constant(self) -> bool:
        return all(v.is_constant for v in self.items.values())

    def constant(self, tr: Tracer) -> Any:
        return self.cls(v.constant(tr) for v in self.items.values())

    def truth(self, tr: Tracer) -> bool:
        return bool(self.items)

    def length(self, tr: Tracer) -> Value:
        return Const(len(self.items))

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        if self.is_constant:  # in the order in which Python itself iterates
            return self._each(map(tr.from_python, self.constant(tr)))
        if len(self.items) > 1:
            raise GraphBreak("unsupported-value", "the order of a set of objects")
        return self._each(iter(list(self.items.values())))

    def _each(self, members: Iterator[Value]) -> Iterator[Value]:
        size = len(self.items)
        for member in members:
            yield member
            if len(self.items) != size:
                raise RuntimeError("Set changed size during iteration")

    def contains(self, tr: Tracer, item: Value) -> bool:
        return item.key(tr) in self.items

    def add(self, tr: Tracer, item: Value) -> None:
        """``set.add``."""
        tr.effects.touch(self)
        self.items.setdefault(item.key(tr), item)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if not hasattr(self.cls, name):
            raise no_attribute(self, self.cls, name)
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        rule = _METHODS.get(name) if hasattr(self.cls, name) else None
        if rule is None or kwargs:
            raise GraphBreak("unsupported-value", f"set method {name!r}")
        return rule(self, tr, args)

    def changed(self, tr: Tracer) -> None:
        """Called before each mutation."""
        tr.effects.touch(self)

    def keyed(self, tr: Tracer, values: Value) -> dict[Any, Value]:
        """The members of another iterable by key."""
        if isinstance(values, SetValue):
            return values.items
        return {v.key(tr): v for v in reversed(list(values.iterate(tr)))}

    def made(self, tr: Tracer, items: Iterable[Value]) -> SetValue:
        """A new set of the same kind."""
        return SetValue(tr, list(items), self.cls)

    def replace(self, tr: Tracer, items: Iterable[Value]) -> Value:
        """Take over other members."""
        members = list(items)
        self.changed(tr)
        self.items.clear()
        for item in members:
            self.items.setdefault(item.key(tr), item)
        return NONE

    def combined(self, tr: Tracer, how: str, other: Value) -> list[Value]:
        """The members of ``union``, ``intersection``, ``difference`` or ``symmetric_difference``."""
        theirs = self.keyed(tr, other)
        if how == "union":
            return [*self.items.values(), *(v for at, v in theirs.items() if at not in self.items)]
        kept = [v for at, v in self.items.items() if (at in theirs) == (how == "intersection")]
        return kept if how != "symmetric_difference" else [*kept, *(v for at, v in theirs.items() if at not in self.items)]

    def _algebra(self, tr: Tracer, how: str, args: Sequence[Value]) -> SetValue:
        result = self.made(tr, self.items.values())
        for other in args:
            result = self.made(tr, result.combined(tr, how, other))
        return result

    def _discard(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        self.items.pop(args[0].key(tr), None)
        return NONE

    def _remove(self, tr: Tracer, args: Sequence[Value]) -> Value:
        at = args[0].key(tr)
        if at not in self.items:
            raise KeyError(args[0].constant(tr))
        return self._discard(tr, args)

    def _pop(self, tr: Tracer, args: Sequence[Value]) -> Value:
        if not self.items:
            raise KeyError("pop from an empty set")
        if len(self.items) > 1:
            raise GraphBreak("unsupported-value", "which member set.pop() takes")
        self.changed(tr)
        return self.items.popitem()[1]

    def _update(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for other in args:
            for item in other.iterate(tr):
                self.add(tr, item)
        return NONE

    def _begin(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.replace(tr, ())
        return self._update(tr, args)

    def _difference_update(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """What was taken out before an error stays out."""
        for other in args:
            for item in [*self.items.values()] if other is self else other.iterate(tr):
                self._discard(tr, [item])
        return NONE

    def compared(self, tr: Tracer, symbol: str, other: Value) -> bool:
        """``<=`` and such are about inclusion."""
        mine, theirs = self.items.keys(), self.keyed(tr, other).keys()
        return bool(_INCLUSION[symbol](mine, theirs))


_INCLUSION: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


def _set_algebra(how: str) -> Method:
    return lambda self, tr, args: self._algebra(tr, how, args)


def _set_update(how: str) -> Method:
    return lambda self, tr, args: self.replace(tr, self._algebra(tr, how, args).items.values())


def _set_question(symbol: str) -> Method:
    return lambda self, tr, args: boolean(self.compared(tr, symbol, args[0]))


def _set_add(self: SetValue, tr: Tracer, args: Sequence[Value]) -> Value:
    self.add(tr, args[0])
    return NONE


_METHODS: dict[str, Method] = {
    **{how: _set_algebra(how) for how in ("union", "intersection", "difference", "symmetric_difference")},
    **{f"{how}_update": _set_update(how) for how in ("intersection", "symmetric_difference")},
    "difference_update": SetValue._difference_update,
    "add": _set_add,
    "update": SetValue._update,
    "discard": SetValue._discard,
    "remove": SetValue._remove,
    "pop": SetValue._pop,
    "clear": lambda self, tr, args: self.replace(tr, ()),
    "copy": lambda self, tr, args: self if self.cls is frozenset else self.made(tr, self.items.values()),
    "issubset": _set_question("<="),
    "issuperset": _set_question(">="),
    "__init__": SetValue._begin,
    "isdisjoint": lambda self, tr, args: boolean(not self.combined(tr, "intersection", args[0])),
    "__len__": lambda self, tr, args: self.length(tr),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
}
SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}
