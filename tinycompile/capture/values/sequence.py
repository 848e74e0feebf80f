"""Tuples (also ``torch.Size``, namedtuples and torch's result types), lists, sets and slices."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Lazy, MethodOf, Value, no_attribute
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.symbolic import SymInt, dim_value

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class SequenceValue(Value):
    """What tuples and lists share. ``items`` may hold Lazy entries: read them with ``item`` or ``values``.

    ``holder``: the object of a class of the program's whose contents this is."""

    __slots__ = ("cls", "holder", "items")
    holder: Value | None

    def __init__(self, items: Iterable[Value | Lazy], cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.items, self.cls, self.holder = list(items), cls, None

    def python_type(self, tr: Tracer) -> type:
        return self.cls

    def item(self, tr: Tracer, at: int) -> Value:
        """One item, wrapped (and guarded) now if it was not yet."""
        found = self.items[at]
        if isinstance(found, Lazy):
            found = self.items[at] = tr.force(found)
        return found

    def values(self, tr: Tracer) -> list[Value]:
        """All items, wrapped."""
        return [self.item(tr, i) for i in range(len(self.items))]

    @property
    def is_constant(self) -> bool:
        return all(isinstance(i, Value) and i.is_constant for i in self.items)

    def constant(self, tr: Tracer) -> Any:
        return self.rebuild([v.constant(tr) for v in self.values(tr)])

    def rebuild(self, items: list[Any]) -> Any:
        """A Python object of this class with these items."""
        return self.cls(*items) if hasattr(self.cls, "_make") else self.cls(items)

    def argument(self, tr: Tracer) -> Any:
        made = [v.argument(tr) for v in self.values(tr)]
        return made if self.cls is list else tuple(made)

    def truth(self, tr: Tracer) -> bool:
        return bool(self.items)

    def length(self, tr: Tracer) -> Value:
        return Const(len(self.items))

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        at = 0
        while at < len(self.items):  # a list may grow while it is iterated
            yield self.item(tr, at)
            at += 1

    def get_item(self, tr: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue):
            return self.slice(tr, key.constant(tr))
        index = tr.index(key, self.cls.__name__)
        try:
            self.items[index]
        except IndexError:
            name = "list" if self.cls is list else "tuple"
            raise IndexError(f"{name} index out of range") from None
        return self.item(tr, index)

    def slice(self, tr: Tracer, at: slice) -> Value:
        """A part, as a new sequence."""
        cls = self.cls if self.cls in (list, torch.Size) else tuple
        made = (ListValue if cls is list else TupleValue)(self.values(tr)[at])
        made.cls = cls
        return made

    def _index(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for i, v in enumerate(self.values(tr)):
            if v is args[0] or tr.equal(v, args[0]):
                return Const(i)
        if self.cls is list:
            raise ValueError(f"{args[0].constant(tr)!r} is not in list")
        raise ValueError("tuple.index(x): x not in tuple")

    def _count(self, tr: Tracer, args: Sequence[Value]) -> Value:
        return Const(sum(v is args[0] or tr.equal(v, args[0]) for v in self.values(tr)))


class TupleValue(SequenceValue):
    """A tuple or an immutable relative of it."""

    __slots__ = ()

    def __init__(self, items: Iterable[Value | Lazy], source: Source | None = None, cls: type = tuple) -> None:
        super().__init__(items, cls, source)

    def rebuild(self, items: list[Any]) -> Any:
        if self.cls.__module__ == "torch.return_types":
            return self.cls(items)
        return super().rebuild(items)

    def key(self, tr: Tracer) -> Any:
        return tuple(v.key(tr) for v in self.values(tr))

    def fields(self) -> tuple[str, ...]:
        """Names of the items, for namedtuples and torch's result types."""
        if hasattr(self.cls, "_fields"):
            return tuple(self.cls._fields)
        return self.cls.__match_args__ if self.cls.__module__ == "torch.return_types" else ()  # type: ignore[attr-defined]

    def get_attr(self, tr: Tracer, name: str) -> Value:
        fields = self.fields()
        if name in fields:
            return self.item(tr, fields.index(name))
        if name == "_fields" and fields:
            return tr.from_python(fields)
        if not hasattr(self.cls, name):
            raise no_attribute(self, self.cls, name)
        raw = next(c.__dict__[name] for c in self.cls.__mro__ if name in c.__dict__)
        if isinstance(raw, property):
            return tr.from_callable(raw.fget).call(tr, [self], {})
        if not callable(raw) and not isinstance(raw, (classmethod, staticmethod)) and hasattr(self.cls, "_fields"):
            return tr.from_python(self.cls).get_attr(tr, name)
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "numel" and self.cls is torch.Size:
            total: Any = 1
            for v in self.values(tr):
                total = total * v.argument(tr)
            return dim_value(total)
        if name == "_replace":
            return self._replace(tr, kwargs)
        if name == "_asdict":
            return tr.make_dict(list(zip(map(Const, self.fields()), self.values(tr), strict=True)))
        rule = _TUPLE_METHODS.get(name)
        if rule is None:
            return tr.call_class_method(self, self.cls, name, args, kwargs)
        return rule(self, tr, args)

    def _replace(self, tr: Tracer, kwargs: Kwargs) -> Value:
        items = dict(zip(self.fields(), self.values(tr), strict=True))
        unknown = [name for name in kwargs if name not in items]
        if unknown:
            raise ValueError(f"Got unexpected field names: {unknown!r}")
        return TupleValue([*{**items, **kwargs}.values()], cls=self.cls)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, TupleValue) and not self.items and not other.items and self.cls is other.cls is tuple


class ListValue(SequenceValue):
    """A list. One that came from outside may be read but not changed."""

    __slots__ = ()

    def __init__(self, items: Iterable[Value | Lazy] = (), source: Source | None = None) -> None:
        super().__init__(items, list, source)

    def key(self, tr: Tracer) -> Any:
        raise TypeError("unhashable type: 'list'")

    def changed(self, tr: Tracer) -> None:
        """Called before each mutation."""
        tr.effects.touch(self)

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        self.changed(tr)
        if isinstance(key, SliceValue):
            self.items[key.constant(tr)] = list(value.iterate(tr))
        else:
            self.items[tr.index(key, "list")] = value

    def del_item(self, tr: Tracer, key: Value) -> None:
        self.changed(tr)
        if isinstance(key, SliceValue):
            del self.items[key.constant(tr)]
        else:
            del self.items[tr.index(key, "list")]

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if not hasattr(list, name):
            raise no_attribute(self, list, name)
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "sort":
            self.changed(tr)
            self.items[:] = tr.sort(self.values(tr), kwargs)
            return NONE
        rule = _LIST_METHODS.get(name)
        if rule is None or kwargs:
            raise GraphBreak("unsupported-value", f"list method {name!r}")
        return rule(self, tr, args)

    def extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """``list.extend``."""
        self.changed(tr)
        self.items.extend(list(args[0].iterate(tr)))
        return NONE

    def append(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """``list.append``."""
        self.changed(tr)
        self.items.append(args[0])
        return NONE

    def _insert(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        self.items.insert(tr.index(args[0], "list"), args[1])
        return NONE

    def _pop(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        at = tr.index(args[0], "list") if args else -1
        if not self.items:
            raise IndexError("pop from empty list")
        value = self.item(tr, at)
        del self.items[at]
        return value

    def _remove(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for at, value in enumerate(self.values(tr)):
            if value is args[0] or tr.equal(value, args[0]):
                self.changed(tr)
                del self.items[at]
                return NONE
        raise ValueError("list.remove(x): x not in list")

    def _reverse(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        self.items.reverse()
        return NONE

    def _clear(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        self.items.clear()
        return NONE

    def _copy(self, tr: Tracer, args: Sequence[Value]) -> Value:
        return ListValue(self.values(tr))


class DequeValue(ListValue):
    """``collections.deque``."""

    __slots__ = ("maxlen",)

    def __init__(self, items: Iterable[Value | Lazy] = (), maxlen: int | None = None, source: Source | None = None) -> None:
        super().__init__(items, source)
        self.cls, self.maxlen = deque, maxlen
        self._trim()

    def _trim(self, left: bool = False) -> None:
        """What is too much falls off the other end."""
        if self.maxlen is not None and len(self.items) > self.maxlen:
            excess = len(self.items) - self.maxlen
            self.items[:] = self.items[: self.maxlen] if left else self.items[excess:]

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if not hasattr(deque, name):
            raise no_attribute(self, deque, name)
        return Const(self.maxlen) if name == "maxlen" else MethodOf(self, name)

    def constant(self, tr: Tracer) -> Any:
        return deque((v.constant(tr) for v in self.values(tr)), self.maxlen)

    def slice(self, tr: Tracer, at: slice) -> Value:
        raise TypeError("sequence index must be integer, not 'slice'")

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name not in _DEQUE_METHODS or kwargs:
            raise GraphBreak("unsupported-value", f"deque method {name!r}")
        if name not in _READING and name != "copy":
            self.changed(tr)
        return _DEQUE_METHODS[name](self, tr, args)

    def _append(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.items.append(args[0])
        self._trim()
        return NONE

    def _append_left(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.items.insert(0, args[0])
        self._trim(left=True)
        return NONE

    def _extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for value in list(args[0].iterate(tr)):
            self._append(tr, [value])
        return NONE

    def _extend_left(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for value in list(args[0].iterate(tr)):
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

    def extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        return self._extend(tr, args)


_Method = Callable[[Any, "Tracer", Sequence[Value]], Value]
_READING: dict[str, _Method] = {
    "index": SequenceValue._index,
    "count": SequenceValue._count,
    "__len__": lambda self, tr, args: self.length(tr),
    "__getitem__": lambda self, tr, args: self.get_item(tr, args[0]),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
}
_TUPLE_METHODS = _READING
_LIST_METHODS: dict[str, _Method] = {
    **_READING,
    "append": ListValue.append,
    "extend": ListValue.extend,
    "insert": ListValue._insert,
    "pop": ListValue._pop,
    "remove": ListValue._remove,
    "reverse": ListValue._reverse,
    "clear": ListValue._clear,
    "copy": ListValue._copy,
    "__setitem__": lambda self, tr, args: _none(self.set_item(tr, args[0], args[1])),
    "__delitem__": lambda self, tr, args: _none(self.del_item(tr, args[0])),
    "__init__": lambda self, tr, args: _none(self.extend(tr, args) if args else None),
}


def _none(nothing: Any) -> Value:
    """The result of a statement as a method."""
    return NONE


_DEQUE_METHODS: dict[str, _Method] = {
    **_READING,
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
    "__init__": lambda self, tr, args: self._extend(tr, args[:1]) if args else NONE,
}


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
            return map(tr.from_python, self.constant(tr))
        if len(self.items) > 1:
            raise GraphBreak("unsupported-value", "the order of a set of objects")
        return iter(self.items.values())

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
        rule = _SET_METHODS.get(name) if hasattr(self.cls, name) else None
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
            for item in list(other.iterate(tr)):
                self.add(tr, item)
        return NONE

    def compared(self, tr: Tracer, symbol: str, other: Value) -> bool:
        """``<=`` and such are about inclusion."""
        mine, theirs = self.items.keys(), self.keyed(tr, other).keys()
        return bool(_INCLUSION[symbol](mine, theirs))


_INCLUSION: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


def _set_algebra(how: str) -> _Method:
    return lambda self, tr, args: self._algebra(tr, how, args)


def _set_update(how: str) -> _Method:
    return lambda self, tr, args: self.replace(tr, self._algebra(tr, how, args).items.values())


def _set_question(symbol: str) -> _Method:
    return lambda self, tr, args: boolean(self.compared(tr, symbol, args[0]))


def _set_add(self: SetValue, tr: Tracer, args: Sequence[Value]) -> Value:
    self.add(tr, args[0])
    return NONE


_SET_METHODS: dict[str, _Method] = {
    **{how: _set_algebra(how) for how in ("union", "intersection", "difference", "symmetric_difference")},
    **{f"{how}_update": _set_update(how) for how in ("intersection", "difference", "symmetric_difference")},
    "add": _set_add,
    "update": SetValue._update,
    "discard": SetValue._discard,
    "remove": SetValue._remove,
    "pop": SetValue._pop,
    "clear": lambda self, tr, args: self.replace(tr, ()),
    "copy": lambda self, tr, args: self if self.cls is frozenset else self.made(tr, self.items.values()),
    "issubset": _set_question("<="),
    "issuperset": _set_question(">="),
    "__init__": lambda self, tr, args: self._update(tr, args),
    "isdisjoint": lambda self, tr, args: boolean(not self.combined(tr, "intersection", args[0])),
    "__len__": lambda self, tr, args: self.length(tr),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
}
SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


class SliceValue(Value):
    """``slice(start, stop, step)``."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Value], source: Source | None = None) -> None:
        super().__init__(source)
        start, stop, step = parts
        self.parts = (start, stop, step)

    def python_type(self, tr: Tracer) -> type:
        return slice

    @property
    def is_constant(self) -> bool:
        return all(p.is_constant for p in self.parts)

    def constant(self, tr: Tracer) -> Any:
        return slice(*(p.constant(tr) for p in self.parts))

    def argument(self, tr: Tracer) -> Any:
        return slice(*(p.argument(tr) for p in self.parts))

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        getattr(slice(None), name)
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return tr.from_python(getattr(self.constant(tr), name)(*(a.constant(tr) for a in args)))


def size_value(shape: Sequence[Any]) -> TupleValue:
    """A ``torch.Size`` of static or symbolic dims."""
    return TupleValue(map(dim_value, shape), cls=torch.Size)


def has_symbols(value: SequenceValue) -> bool:
    """Whether some item is symbolic."""
    return any(isinstance(v, SymInt) for v in value.items)
