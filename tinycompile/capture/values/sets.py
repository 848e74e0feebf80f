"""Sets and frozensets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, MethodOf, Value, no_attribute
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.mapping import DictValue, DictView
from tinycompile.capture.values.sequence import ListValue, Method

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class SetValue(Value):
    """A set or frozenset of hashable values, in the order of insertion. ``holder``: as of sequences.

    Python's order, and what ``pop`` takes, depend on all that was done to a set: ``real`` is a set of Python's to which the
    same was done. None for one from outside, and where not all members are constants. ``popped``: something was popped."""

    __slots__ = ("cls", "holder", "items", "popped", "real")
    holder: Value | None

    def __init__(
        self, tr: Tracer, items: Iterable[Value] = (), cls: type = set, source: Source | None = None, real: Any = ...
    ) -> None:
        super().__init__(source)
        self.cls, self.holder, self.popped = cls, None, False
        self.items: dict[Any, Value] = {}
        for item in items:
            self.items.setdefault(item.key(tr), item)
        if real is ... and source is None:
            known = [v.constant(tr) for v in self.items.values() if v.is_constant]
            kind = frozenset if issubclass(cls, frozenset) else set
            real = kind(known) if len(known) == len(self.items) else None
        self.real: Any = None if real is ... else real

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
        members = list(self.items.values())
        if self.real is not None:
            members = list(map(tr.from_python, self.real))
        elif len(members) > 1:
            if self.source is None or tr.effects.changes(self):
                raise GraphBreak("unsupported-value", f"the order of {self.describe()}")
            order = tr.guards.hold(tuple(v.constant(tr) for v in members), "order").name
            tr.guards.check(f"_tuple({self.source.text}) == {order}", f"the order of {self.source.label}")
        return self._each(iter(members))

    def in_any_order(self) -> list[Value]:
        """The members, for what comes out the same in any order."""
        return list(self.items.values())

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
        at = item.key(tr)
        tr.effects.touch(self)
        self.items.setdefault(at, item)
        if self.real is not None and item.is_constant and not self.popped:
            self.real.add(item.constant(tr))
        else:  # (behind a pop, what comes next depends on where that stopped)
            self.real = None

    def take_over(self, tr: Tracer, other: Value) -> None:
        """Add all members of another iterable. Of a set or a dict Python takes them at once."""
        if not isinstance(other, (SetValue, DictValue)):
            for item in other.iterate(tr):
                self.add(tr, item)
            return
        tr.effects.touch(self)
        items, known = self.keyed(tr, other), as_python(tr, other)
        for at, item in list(items.items()):
            self.items.setdefault(at, item)
        if self.real is not None and known is not None and not self.popped:
            self.real.update(known)
        else:
            self.real = None

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
        if isinstance(values, DictValue):
            return {at: key for at, (key, _) in values.items.items()}
        return {v.key(tr): v for v in reversed(list(values.iterate(tr)))}

    def made(self, tr: Tracer, items: Iterable[Value], real: Any = ...) -> SetValue:
        """A new set of the same kind."""
        return SetValue(tr, list(items), self.cls, real=real)

    def become(self, tr: Tracer, other: SetValue, real: Any) -> Value:
        """Take over the members of a set that was made for that."""
        if self.items is not other.items:  # (who looks, looks before the change)
            self.changed(tr)
        self.items = other.items
        self.real = None if self.source is not None else real
        return NONE

    def operated(self, tr: Tracer, symbol: str, other: Value) -> SetValue:
        """``self symbol other``, of sets."""
        mine, theirs = self.real, as_python(tr, other)
        real = None if mine is None or theirs is None else _OPERATORS[symbol](mine, theirs)
        return self.made(tr, self.combined(tr, SET_OPERATORS[symbol], other), real)

    def combined(self, tr: Tracer, how: str, other: Value) -> list[Value]:
        """The members of ``union``, ``intersection``, ``difference`` or ``symmetric_difference``."""
        theirs = self.keyed(tr, other)
        if how == "union":
            return [*self.items.values(), *(v for at, v in theirs.items() if at not in self.items)]
        kept = [v for at, v in self.items.items() if (at in theirs) == (how == "intersection")]
        return kept if how != "symmetric_difference" else [*kept, *(v for at, v in theirs.items() if at not in self.items)]

    def _algebra(self, tr: Tracer, how: str, args: Sequence[Value]) -> SetValue:
        others = self._settled(tr, args)
        result = self.made(tr, self._members(tr, how, others), None)
        result.real = self._done_natively(tr, how, others)
        return result

    @staticmethod
    def _settled(tr: Tracer, args: Sequence[Value]) -> list[Value]:
        """Operands that may be looked through twice."""
        return [a if isinstance(a, (SetValue, DictValue)) else ListValue(a.iterate(tr)) for a in args]

    def _members(self, tr: Tracer, how: str, others: Sequence[Value]) -> Iterable[Value]:
        result = self.made(tr, self.items.values(), None)
        for other in others:
            result = self.made(tr, result.combined(tr, how, other), None)
        return result.items.values()

    def _done_natively(self, tr: Tracer, method: str, others: Sequence[Value]) -> Any:
        """What Python's own set gives; None where that is not known."""
        known = [as_python(tr, other) for other in others]
        return None if self.real is None or any(k is None for k in known) else getattr(self.real, method)(*known)

    def updated(self, tr: Tracer, how: str, others: Sequence[Value]) -> Value:
        """``intersection_update`` and ``symmetric_difference_update``."""
        result = self.made(tr, self._members(tr, how, others), None)
        if self._done_natively(tr, f"{how}_update", others) is None and not all(as_python(tr, o) is not None for o in others):
            self.real = None
        return self.become(tr, result, self.real)

    def _discard(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        at = args[0].key(tr)
        if self.items.pop(at, None) is not None and self.real is not None:
            self.real.discard(at)
        return NONE

    def _remove(self, tr: Tracer, args: Sequence[Value]) -> Value:
        at = args[0].key(tr)
        if at not in self.items:
            raise KeyError(args[0].constant(tr))
        return self._discard(tr, args)

    def _pop(self, tr: Tracer, args: Sequence[Value]) -> Value:
        if not self.items:
            raise KeyError("pop from an empty set")
        if len(self.items) > 1 and self.real is None:
            raise GraphBreak("unsupported-value", "which member set.pop() takes")
        self.changed(tr)
        self.popped = True
        return self.items.popitem()[1] if self.real is None else self.items.pop(self.real.pop())

    def _update(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for other in args:
            self.take_over(tr, other)
        return NONE

    def _begin(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self._clear(tr, ())
        return self._update(tr, args)

    def _clear(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.popped = False
        return self.become(tr, self.made(tr, ()), set())

    def _difference_update(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """What was taken out before an error stays out."""
        for other in args:
            for item in other.in_any_order() if isinstance(other, SetValue) else other.iterate(tr):
                self._discard(tr, [item])
            if self.real is not None:
                self.real.difference_update(())  # (which makes room, as at the end of the whole)
        return NONE

    def compared(self, tr: Tracer, symbol: str, other: Value) -> bool:
        """``<=`` and such are about inclusion."""
        mine, theirs = self.items.keys(), self.keyed(tr, other).keys()
        return bool(_INCLUSION[symbol](mine, theirs))


def as_python(tr: Tracer, operand: Value) -> Any:
    """What Python's own set is given for an operand; None where that is not known."""
    if isinstance(operand, SetValue):
        return operand.real
    if isinstance(operand, DictValue):
        keys = [key for key, _ in operand.items.values()]
        return dict.fromkeys(k.constant(tr) for k in keys) if all(k.is_constant for k in keys) else None
    if isinstance(operand, DictView) and operand.what == "keys":
        found = as_python(tr, operand.of)
        return None if found is None else found.keys()
    return operand.constant(tr) if isinstance(operand, ListValue) and operand.is_constant else None


_INCLUSION: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


def _set_algebra(how: str) -> Method:
    return lambda self, tr, args: self._algebra(tr, how, args)


def _set_update(how: str) -> Method:
    return lambda self, tr, args: self.updated(tr, how, self._settled(tr, args))


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
    "clear": SetValue._clear,
    "copy": lambda self, tr, args: self if self.cls is frozenset else self._algebra(tr, "union", ()),
    "issubset": _set_question("<="),
    "issuperset": _set_question(">="),
    "__init__": SetValue._begin,
    "isdisjoint": lambda self, tr, args: boolean(not self.combined(tr, "intersection", args[0])),
    "__len__": lambda self, tr, args: self.length(tr),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
}
_OPERATORS = {"|": operator.or_, "&": operator.and_, "-": operator.sub, "^": operator.xor}
SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}
