"""Sets and frozensets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak, KnownBehind
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Value, builtin_attribute
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.iterator import Watching
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import ListValue, Method
from tinycompile.capture.values.set_steps import MAKERS, Operand, Snapshot, Step, program, snapshot

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class SetValue(Value):
    """A set or frozenset of hashable values, in the order of insertion. ``holder``: as of sequences.

    ``real``: a set of Python's to which the same was done, for its order; of one from outside that is not changed, that itself.
    None where not all members are constants, or where the order is not known. ``made_by``: what made it, and of what."""

    __slots__ = ("cls", "holder", "items", "real")
    holder: Value | None

    def __init__(
        self,
        tr: Tracer,
        items: Iterable[Value] = (),
        cls: type = set,
        source: Source | None = None,
        made_by: tuple[str, Sequence[Operand]] | None = None,
    ) -> None:
        super().__init__(source)
        self.cls, self.holder = cls, None
        self.items: dict[Any, Value] = {}
        self.real: Any = None
        items = list(items)
        for item in items:
            self.items.setdefault(item.key(tr), item)
        if source is None:
            method, operands = made_by or (cls.__name__, [Snapshot("list", tuple(items))])
            known = self._noted(tr, method, operands)
            self.real = None if known is None else MAKERS[method](*known)

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
        """In its order; who shows that looks through the members, which guards it."""
        return self.cls(v.constant(tr) for v in self.items.values()) if self.real is None else self.real

    def truth(self, tr: Tracer) -> bool:
        return bool(self.items)

    def length(self, tr: Tracer) -> Value:
        return Const(len(self.items))

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        members = list(self.items.values())
        if len(members) > 1:
            self._guard_order(tr)
            members = [self.items[tr.from_python(member).key(tr)] for member in self.real]
        return Watching(self._each(iter(members), list(self.items)))

    def _guard_order(self, tr: Tracer) -> None:
        """Guard the order where sets from outside have a say in it."""
        if self.real is None:
            raise KnownBehind("unsupported-value", f"the order of {self.describe()}")
        order: Callable[..., Any] = tuple
        given: list[Value] = [self]
        if self.source is None:
            followed, given = program(tr, self)
            order = followed.order
        outside = [value.source.label for value in given if value.source is not None]
        if outside:
            asked, known = tr.guards.hold(order, "order_of").name, tr.guards.hold(tuple(self.real), "order").name
            texts = (tr.guards.hold(v.constant(tr), "member").name if v.source is None else v.source.text for v in given)
            tr.guards.check(f"{asked}({', '.join(texts)}) == {known}", f"the order of {' and '.join(outside)}")

    def in_any_order(self) -> list[Value]:
        """The members, for what comes out the same in any order."""
        return list(self.items.values())

    def _each(self, members: Iterator[Value], before: list[Any]) -> Iterator[Value]:
        for member in members:
            self._check_unchanged(before)
            yield member
        self._check_unchanged(before)

    def _check_unchanged(self, before: list[Any]) -> None:
        if len(self.items) != len(before):
            raise RuntimeError("Set changed size during iteration")
        if list(self.items) != before:
            raise GraphBreak("iterator", "members of a set are replaced while it is iterated")

    def contains(self, tr: Tracer, item: Value) -> bool:
        return _looked_for(tr, item) in self.items

    def add(self, tr: Tracer, item: Value) -> None:
        """``set.add``."""
        at = item.key(tr)
        if at not in self.items:
            self._do(tr, "add", [Snapshot("member", (item,))])
            self.items[at] = item

    def take_over(self, tr: Tracer, other: Value) -> None:
        """Add all members of another iterable. Of a set or a dict Python takes them at once."""
        if not isinstance(other, (SetValue, DictValue)):
            for item in other.iterate(tr):
                self.add(tr, item)
            return
        self.updated(tr, "union", [other])

    def _noted(self, tr: Tracer, method: str, operands: Sequence[Operand]) -> list[Any] | None:
        """A step of its history; gives the operands as Python has them, None where that is not known."""
        tr.set_steps.append(Step(self, method, tuple(operands)))
        return as_python(tr, operands)

    def _do(self, tr: Tracer, method: str, operands: Sequence[Operand]) -> Any:
        """Before its members change: the same to ``real``. One from outside is left alone, and its order not known any more."""
        self.items  # noqa: B018  # (who looks, looks before the change)
        tr.effects.touch(self)
        known = self._noted(tr, method, operands)
        if self.source is not None:
            tr.births.setdefault(id(self), (self, tr.frames[0].count))
        if self.source is not None or known is None or self.real is None:
            self.real = None
            return None
        return getattr(set, method)(self.real, *known)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return builtin_attribute(tr, self, self.cls, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        rule = _METHODS.get(name) if hasattr(self.cls, name) else None
        if rule is None or kwargs:
            raise GraphBreak("unsupported-value", f"set method {name!r}")
        return rule(self, tr, args)

    def keyed(self, tr: Tracer, values: Value) -> dict[Any, Value]:
        """The members of another iterable by key."""
        if isinstance(values, SetValue):
            return values.items
        if isinstance(values, DictValue):
            return {at: key for at, (key, _) in values.items.items()}
        return {v.key(tr): v for v in reversed(list(values.iterate(tr)))}

    def made(self, tr: Tracer, items: Iterable[Value]) -> SetValue:
        """A new set of the same kind."""
        return SetValue(tr, list(items), self.cls)

    def _algebra(self, tr: Tracer, how: str, args: Sequence[Value]) -> SetValue:
        others = self._settled(tr, args)
        return _made_of(tr, how, [self, *others], self._members(tr, how, others), self.cls)

    @staticmethod
    def _settled(tr: Tracer, args: Sequence[Value]) -> list[Value]:
        """Operands that may be looked through twice."""
        return [a if isinstance(a, (SetValue, DictValue)) else ListValue(a.iterate(tr)) for a in args]

    def _members(self, tr: Tracer, how: str, others: Sequence[Value]) -> dict[Any, Value]:
        members = self.items
        for other in others:
            members = _combined(members, how, self.keyed(tr, other))
        return members

    def updated(self, tr: Tracer, how: str, others: Sequence[Value]) -> Value:
        """``update``, ``intersection_update`` and such, of settled operands."""
        members = self._members(tr, how, others)
        self._do(tr, "update" if how == "union" else f"{how}_update", [operand(tr, other) for other in others])
        self.items = dict(members)
        return NONE

    def _discard(self, tr: Tracer, args: Sequence[Value]) -> Value:
        at = _looked_for(tr, args[0])
        if at in self.items:
            self._do(tr, "discard", [Snapshot("member", (self.items[at],))])
            del self.items[at]
        return NONE

    def _remove(self, tr: Tracer, args: Sequence[Value]) -> Value:
        at = _looked_for(tr, args[0])
        if at not in self.items:
            tr.lacks_key(args[0])
        return self._discard(tr, args)

    def _pop(self, tr: Tracer, args: Sequence[Value]) -> Value:
        if not self.items:
            raise KeyError("pop from an empty set")
        if len(self.items) > 1 and (self.source is not None or self.real is None or program(tr, self)[1]):
            raise GraphBreak("unsupported-value", "which member set.pop() takes")
        known = self.real is not None and self.source is None
        taken = self._do(tr, "pop", [])
        return self.items.pop(taken) if known else self.items.popitem()[1]

    def _update(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for other in args:
            self.take_over(tr, other)
        return NONE

    def _begin(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self._clear(tr, ())
        return self._update(tr, args)

    def _clear(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self._do(tr, "clear", [])
        self.items = {}
        return NONE

    def _difference_update(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """What was taken out before an error stays out."""
        for other in args:
            if isinstance(other, SetValue):
                self.updated(tr, "difference", [other])
                continue
            for item in other.iterate(tr):
                self._discard(tr, [item])
            self._do(tr, "difference_update", [Snapshot("list", ())])  # (which makes room, as at the end of the whole)
        return NONE

    def compared(self, tr: Tracer, symbol: str, other: Value) -> bool:
        """``<=`` and such are about inclusion."""
        mine, theirs = self.items.keys(), self.keyed(tr, other).keys()
        return bool(_INCLUSION[symbol](mine, theirs))


def _looked_for(tr: Tracer, item: Value) -> Any:
    """The key of what a set is asked for: a set stands for the frozenset of its members."""
    return frozenset(item.items) if isinstance(item, SetValue) else item.key(tr)


def operand(tr: Tracer, value: Value) -> Operand:
    """What a method of a set is given, as it is now."""
    return value if isinstance(value, SetValue) else snapshot(tr, value)


def as_python(tr: Tracer, operands: Sequence[Operand]) -> list[Any] | None:
    """What Python's own method is given for these; None where that is not known."""
    known: list[Any] = []
    for given in operands:
        if isinstance(given, SetValue) and given.real is not None:
            known.append(given.real)
        elif not isinstance(given, SetValue) and all(p.is_constant for p in given.parts):
            known.append(given.python(lambda part: part.constant(tr)))
        else:
            return None
    return known


def _combined(mine: dict[Any, Value], how: str, theirs: dict[Any, Value]) -> dict[Any, Value]:
    """The members of ``union``, ``intersection``, ``difference`` or ``symmetric_difference``, by key."""
    if how == "union":
        return {**theirs, **mine}
    if how == "intersection":  # (Python takes those of the smaller set)
        smaller, larger = (theirs, mine) if len(theirs) <= len(mine) else (mine, theirs)
        return {at: v for at, v in smaller.items() if at in larger}
    kept = {at: v for at, v in mine.items() if at not in theirs}
    return kept if how == "difference" else {**kept, **{at: v for at, v in theirs.items() if at not in mine}}


def _made_of(tr: Tracer, method: str, operands: Sequence[Value], members: dict[Any, Value], cls: type) -> SetValue:
    given = [operand(tr, o) for o in operands]
    return SetValue(tr, members.values(), cls, made_by=(method, given))


def operated(tr: Tracer, symbol: str, a: Value, b: Value) -> SetValue:
    """``a symbol b``, of sets and views of dicts."""
    left = a if isinstance(a, SetValue) else SetValue(tr, a.iterate(tr))
    members = _combined(left.items, SET_OPERATORS[symbol], left.keyed(tr, b))
    cls = a.cls if isinstance(a, SetValue) and isinstance(b, SetValue) else set
    return _made_of(tr, symbol, [a, b], members, cls)


def converted(tr: Tracer, cls: type, value: Value | None) -> SetValue:
    """``set(value)`` or ``frozenset(value)``."""
    if value is None:
        return SetValue(tr, (), cls)
    if not isinstance(value, (SetValue, DictValue)):
        return SetValue(tr, value.iterate(tr), cls)
    return _made_of(tr, cls.__name__, [value], SetValue(tr).keyed(tr, value), cls)


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
    "isdisjoint": lambda self, tr, args: boolean(not self._members(tr, "intersection", args)),
    "__len__": lambda self, tr, args: self.length(tr),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
}
SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}
