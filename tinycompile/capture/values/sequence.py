"""Tuples (also ``torch.Size``, namedtuples and torch's result types), lists and slices."""

from __future__ import annotations

import operator
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import HeldItem, Source
from tinycompile.capture.trust import module_of, trusts
from tinycompile.capture.values.base import Kwargs, Lazy, Value, builtin_attribute, no_attribute
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

    @property
    def family(self) -> type:
        """The class among whose instances it is compared and concatenated."""
        return tuple if issubclass(self.cls, tuple) or module_of(self.cls) == "torch.return_types" else self.cls

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
        return tuple.__new__(self.cls, items) if hasattr(self.cls, "_make") else self.cls(items)

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
        if not -len(self.items) <= index < len(self.items):
            raise IndexError(f"{'tuple' if self.family is tuple else self.cls.__name__} index out of range")
        return self.item(tr, index)

    @property
    def is_plain_tuple(self) -> bool:
        """Whether it is a tuple of no class that derives from that: all of it is the same object."""
        return self.cls is tuple and self.holder is None

    def slice(self, tr: Tracer, at: slice) -> Value:
        """A part, as a new sequence; all of a tuple is itself."""
        cls = self.cls if self.cls in (list, torch.Size) else tuple
        if self.is_plain_tuple and at.indices(len(self.items)) == (0, len(self.items), 1):
            return self
        made = (ListValue if cls is list else TupleValue)(natively(operator.getitem, self.values(tr), at))
        made.cls = cls
        return made

    def _index(self, tr: Tracer, args: Sequence[Value]) -> Value:
        limits = [tr.index(a, "index") for a in args[1:]]
        start, stop = [max(at + len(self.items), 0) if at < 0 else at for at in [*limits, *(0, sys.maxsize)[len(limits) :]]]
        for i in range(start, stop):
            if i >= len(self.items):  # it may be changed by what is asked
                break
            value = self.item(tr, i)
            if value is args[0] or tr.equal(value, args[0]):
                return Const(i)
        if not issubclass(self.cls, (list, tuple)):
            raise GraphBreak("user-exception", f"index() of what {self.describe()} has not")
        if self.cls is list:
            raise ValueError(f"{args[0].constant(tr)!r} is not in list")
        raise ValueError("tuple.index(x): x not in tuple")

    def _count(self, tr: Tracer, args: Sequence[Value]) -> Value:
        return Const(sum(v is args[0] or tr.equal(v, args[0]) for v in SequenceValue.iterate(self, tr)))


_FIELD: type = type(namedtuple("Sample", "field").__dict__["field"])


def _found(cls: type, name: str) -> tuple[type | None, Any]:
    """Where a class finds an attribute, and what; no class and None where it has none."""
    owner = next((c for c in cls.__mro__ if name in c.__dict__), None)
    return owner, None if owner is None else owner.__dict__[name]


def _is_the_programs(raw: Any) -> bool:
    """Whether what a class of tuples has is a method written in Python, and not by ``namedtuple``."""
    fn = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    return isinstance(fn, FunctionType) and not trusts(fn)


class TupleValue(SequenceValue):
    """A tuple or an immutable relative of it."""

    __slots__ = ()

    def __init__(self, items: Iterable[Value | Lazy], source: Source | None = None, cls: type = tuple) -> None:
        super().__init__(items, cls, source)

    def rebuild(self, items: list[Any]) -> Any:
        if module_of(self.cls) == "torch.return_types":
            return self.cls(items)
        return super().rebuild(items)

    def leaves(self, tr: Tracer, name: str) -> None:
        """Break where the class of a named tuple has a special method of its own; else guard that it comes to have none."""
        owner, raw = _found(self.cls, name)
        tr.inherited(self.cls, owner or object, name)
        if _is_the_programs(raw):
            raise GraphBreak("unsupported-value", f"{name} of {self.cls.__name__}, a named tuple")

    def key(self, tr: Tracer) -> Any:
        self.leaves(tr, "__hash__")
        self.leaves(tr, "__eq__")
        return tuple(v.key(tr) for v in self.values(tr))

    def truth(self, tr: Tracer) -> bool:
        self.leaves(tr, "__bool__")
        self.leaves(tr, "__len__")
        return super().truth(tr)

    def length(self, tr: Tracer) -> Value:
        self.leaves(tr, "__len__")
        return super().length(tr)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        self.leaves(tr, "__iter__")
        return super().iterate(tr)

    def filling(self, tr: Tracer) -> Iterator[Value]:
        self.leaves(tr, "__len__")
        return self.iterate(tr)

    def get_item(self, tr: Tracer, key: Value) -> Value:
        self.leaves(tr, "__getitem__")
        return super().get_item(tr, key)

    def contains(self, tr: Tracer, item: Value) -> bool:
        self.leaves(tr, "__contains__")
        self.leaves(tr, "__iter__")
        return super().contains(tr, item)

    def fields(self) -> tuple[str, ...]:
        """Names of the items, for namedtuples and torch's result types."""
        if hasattr(self.cls, "_fields"):
            return tuple(self.cls._fields)
        return self.cls.__match_args__ if module_of(self.cls) == "torch.return_types" else ()  # type: ignore[attr-defined]

    def get_attr(self, tr: Tracer, name: str) -> Value:
        fields = self.fields()
        owner, raw = _found(self.cls, name)
        tr.inherited(self.cls, owner or object, name)
        if name in fields and (isinstance(raw, _FIELD) or module_of(self.cls) == "torch.return_types"):
            if owner is not None and not trusts(owner):
                tr.guards.item(HeldItem(tr.class_dict(owner), name, f"{owner.__name__}.{name}"), raw, equal=False)
            return self.item(tr, fields.index(name))
        if name == "_fields" and owner is not None:
            return tr.from_python(fields)
        if owner is None:
            raise no_attribute(self, self.cls, name)
        if isinstance(raw, property):
            tr.class_member(owner, name, raw)
            return tr.from_callable(raw.fget).call(tr, [self], {})
        plain = not callable(raw) and not isinstance(raw, (classmethod, staticmethod)) and owner is not object
        if plain and hasattr(self.cls, "_fields"):
            return tr.from_python(self.cls).get_attr(tr, name)
        return builtin_attribute(tr, self, self.cls, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "numel" and self.cls is torch.Size:
            total: Any = 1
            for v in self.values(tr):
                total = total * v.argument(tr)
            return dim_value(total)
        owner, raw = _found(self.cls, name)
        tr.inherited(self.cls, owner or object, name)
        if _is_the_programs(raw):
            return tr.call_class_method(self, self.cls, name, args, kwargs)
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
            raise GraphBreak("user-exception", f"unexpected field names: {unknown!r}")
        return TupleValue([*{**items, **kwargs}.values()], cls=self.cls)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, TupleValue) and not self.items and not other.items and self.cls is other.cls is tuple


class ListValue(SequenceValue):
    """A list. ``sorting``: whether ``sort`` is at work, and what it asks of the program finds the list empty."""

    __slots__ = ("sorting",)

    def __init__(self, items: Iterable[Value | Lazy] = (), source: Source | None = None) -> None:
        super().__init__(items, list, source)
        self.sorting = False

    def key(self, tr: Tracer) -> Any:
        natively(hash, self.cls())  # Python's own complaint
        raise GraphBreak("unsupported-value", f"the hash of {self.describe()}")

    def changed(self, tr: Tracer) -> None:
        """Called before each mutation."""
        if self.sorting:
            raise GraphBreak("user-exception", f"{self.describe()} is changed while it is sorted")
        tr.effects.touch(self)

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        self.changed(tr)
        if isinstance(key, SliceValue):
            natively(operator.setitem, self.items, key.constant(tr), tr.in_a_row(value))
        else:
            natively(operator.setitem, self.items, tr.index(key, "list"), value)

    def del_item(self, tr: Tracer, key: Value) -> None:
        self.changed(tr)
        if isinstance(key, SliceValue):
            natively(operator.delitem, self.items, key.constant(tr))
        else:
            natively(operator.delitem, self.items, tr.index(key, "list"))

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return builtin_attribute(tr, self, list, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "sort":
            return self._sort(tr, kwargs)
        rule = _LIST_METHODS.get(name)
        if rule is None or kwargs:
            raise GraphBreak("unsupported-value", f"list method {name!r}")
        return rule(self, tr, args)

    def _sort(self, tr: Tracer, kwargs: Kwargs) -> Value:
        """``list.sort``. Where that fails, the list is left as far as it was sorted."""
        self.changed(tr)
        values = self.values(tr)
        self.items, self.sorting = [], True
        try:
            tr.sort(values, kwargs)
        finally:
            self.items, self.sorting = [*values], False
        return NONE

    def extend(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """``list.extend``: what came before an error stays."""
        self.changed(tr)
        for value in self.added(tr, args[0]):
            self.items.append(value)
        return NONE

    def added(self, tr: Tracer, values: Value) -> Iterator[Value]:
        """What is added, one by one as it is made; a sequence (this one, say) is read as it is now."""
        if getattr(values, "base", None) is self:  # the object of a class of the program's whose contents this is
            values = self
        if isinstance(values, TupleValue):
            return values.filling(tr)
        return iter(values.values(tr)) if isinstance(values, SequenceValue) else values.filling(tr)

    def append(self, tr: Tracer, args: Sequence[Value]) -> Value:
        """``list.append``."""
        self.changed(tr)
        self.items.append(args[0])
        return NONE

    def _insert(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        self.items.insert(tr.index(args[0], "insert"), args[1])
        return NONE

    def _pop(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        at = tr.index(args[0], "pop") if args else -1
        if not self.items:
            raise IndexError("pop from empty list")
        if not -len(self.items) <= at < len(self.items):
            raise IndexError("pop index out of range")
        value = self.item(tr, at)
        del self.items[at]
        return value

    def _remove(self, tr: Tracer, args: Sequence[Value]) -> Value:
        for at, value in enumerate(SequenceValue.iterate(self, tr)):
            if value is args[0] or tr.equal(value, args[0]):
                self.changed(tr)
                del self.items[at : at + 1]  # which what was asked may have taken away
                return NONE
        if self.cls is not list:
            raise GraphBreak("user-exception", f"remove() of what {self.describe()} has not")
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

    def _begin(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self._clear(tr, args)
        return self.extend(tr, args) if args else NONE


Method = Callable[[Any, "Tracer", Sequence[Value]], Value]
READING: dict[str, Method] = {
    "index": SequenceValue._index,
    "count": SequenceValue._count,
    "__len__": lambda self, tr, args: self.length(tr),
    "__getitem__": lambda self, tr, args: self.get_item(tr, args[0]),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
}
_TUPLE_METHODS = READING
_LIST_METHODS: dict[str, Method] = {
    **READING,
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
    "__init__": lambda self, tr, args: self._begin(tr, args),
}


def _none(nothing: Any) -> Value:
    """The result of a statement as a method."""
    return NONE


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

    def key(self, tr: Tracer) -> Any:
        natively(hash, slice(None))  # refused before 3.12
        return (slice, *(p.key(tr) for p in self.parts))

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return builtin_attribute(tr, self, slice, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        given = [a.constant(tr) for a in args]
        return tr.from_python(
            natively(getattr(self.constant(tr), name), *given, **{k: v.constant(tr) for k, v in kwargs.items()})
        )


def size_value(shape: Sequence[Any]) -> TupleValue:
    """A ``torch.Size`` of static or symbolic dims."""
    return TupleValue(map(dim_value, shape), cls=torch.Size)


def has_symbols(value: SequenceValue) -> bool:
    """Whether some item is symbolic."""
    return any(isinstance(v, SymInt) for v in value.items)
