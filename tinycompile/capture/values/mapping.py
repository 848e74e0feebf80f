"""Dicts and ordered dicts."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Lazy, Value, builtin_attribute
from tinycompile.capture.values.constant import NONE, TRUE, Const, boolean
from tinycompile.capture.values.iterator import IteratorValue, Watching
from tinycompile.capture.values.sequence import SequenceValue, TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer
    from tinycompile.capture.values.container import ContainerObject, NewContainer


def pairs_of_mapping(tr: Tracer, mapping: Value) -> Iterator[tuple[Value, Value]]:
    """Keys and values of a dict, or of anything with ``keys()`` and ``[key]``."""
    if isinstance(mapping, DictValue):
        yield from mapping.pairs(tr)
    else:
        for key in list(mapping.call_method(tr, "keys", [], {}).iterate(tr)):
            yield key, mapping.get_item(tr, key)


class DictStep(NamedTuple):
    """What changed the keys of a dict: a method's name, the key as ``items`` has it, the key, and what else the method took."""

    method: str
    at: Any
    key: Value
    more: tuple[bool, ...] = ()


class DictValue(Value):
    """A dict. ``items`` maps ``key.key()`` to the key and the value, which may be Lazy. ``steps``: how keys were changed."""

    __slots__ = ("cls", "default_factory", "holder", "items", "steps")
    holder: ContainerObject | NewContainer | None

    def __init__(
        self, tr: Tracer, pairs: Iterable[tuple[Value, Value | Lazy]] = (), cls: type = dict, source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.cls, self.holder = cls, None
        self.default_factory: Value | None = None
        self.items: dict[Any, tuple[Value, Value | Lazy]] = {}
        self.steps: list[DictStep] = []
        for key, value in pairs:
            self._put(key.key(tr), key, value)
        self.steps.clear()

    def _put(self, at: Any, key: Value, value: Value | Lazy) -> None:
        """Python keeps the first of equal keys."""
        old = self.items.get(at)
        self.items[at] = (key if old is None else old[0], value)
        if old is None:
            self.steps.append(DictStep("__setitem__", at, key))

    def _take(self, at: Any) -> None:
        """Delete an entry."""
        self.steps.append(DictStep("__delitem__", at, self.items.pop(at)[0]))

    def _value(self, tr: Tracer, at: Any) -> Value:
        key, value = self.items[at]
        if isinstance(value, Lazy):
            value = tr.force(value)
            self.items[at] = key, value
        return value

    def pairs(self, tr: Tracer) -> list[tuple[Value, Value]]:
        """All keys and values."""
        return [(self.items[at][0], self._value(tr, at)) for at in list(self.items)]

    def python_type(self, tr: Tracer) -> type:
        return self.cls

    @property
    def is_constant(self) -> bool:
        return all(k.is_constant and isinstance(v, Value) and v.is_constant for k, v in self.items.values())

    def constant(self, tr: Tracer) -> Any:
        pairs = [(k.constant(tr), v.constant(tr)) for k, v in self.pairs(tr)]
        if self.cls is defaultdict:
            return defaultdict(None if self.default_factory is None else self.default_factory.constant(tr), pairs)
        return self.cls(pairs)

    def key(self, tr: Tracer) -> Any:
        natively(hash, self.cls())  # Python's own complaint
        raise GraphBreak("unsupported-value", f"the hash of {self.describe()}")

    def truth(self, tr: Tracer) -> bool:
        return bool(self.items)

    def length(self, tr: Tracer) -> Value:
        return Const(len(self.items))

    def layout(self) -> Any:
        """What differs once keys were changed."""
        return len(self.steps)

    def each_key(self, backwards: bool = False) -> Iterator[Value]:
        """The keys, as a loop sees them."""
        order = reversed(list(self.items)) if backwards else iter(list(self.items))
        steps = self._steps(order, len(self.items), self.layout())
        return steps if issubclass(self.cls, OrderedDict) else Watching(steps)  # (an OrderedDict's are at an end then)

    def _steps(self, order: Iterator[Any], size: int, layout: Any) -> Iterator[Value]:
        """Which keys come next after some were replaced by others depends on how Python lays the dict out: left to it."""
        for at in order:
            self._check_unchanged(size, layout)
            yield self.items[at][0]
        self._check_unchanged(size, layout)

    def _check_unchanged(self, size: int, layout: Any) -> None:
        if len(self.items) != size:
            what = "OrderedDict mutated" if issubclass(self.cls, OrderedDict) else "dictionary changed size"
            raise RuntimeError(f"{what} during iteration")
        if self.layout() != layout:
            raise GraphBreak("iterator", "keys of a dict are replaced while it is iterated")

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        return self.each_key()

    def contains(self, tr: Tracer, item: Value) -> bool:
        return item.key(tr) in self.items

    def get_item(self, tr: Tracer, key: Value) -> Value:
        at = key.key(tr)
        if at not in self.items:
            missing = None if self.holder is None else self.holder.own_method(tr, "__missing__")
            if missing is not None:
                return missing.call(tr, [key], {})
            if self.default_factory is None:
                tr.lacks_key(key)
            self.set_item(tr, key, self.default_factory.call(tr, [], {}))
        return self._value(tr, at)

    def changed(self, tr: Tracer) -> None:
        """Called before each mutation."""
        tr.effects.touch(self)

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        self.changed(tr)
        self._put(key.key(tr), key, value)

    def del_item(self, tr: Tracer, key: Value) -> None:
        at = key.key(tr)
        if at not in self.items:
            tr.lacks_key(key)
        self.changed(tr)
        self._take(at)

    def update(self, tr: Tracer, other: Value) -> None:
        """``dict.update`` from a mapping or pairs."""
        if isinstance(other, DictValue) or (
            not isinstance(other, (IteratorValue, SequenceValue)) and other.has_attr(tr, "keys")
        ):
            for key, value in pairs_of_mapping(tr, other):
                self.set_item(tr, key, value)
        else:
            for at, pair in enumerate(other.iterate(tr)):
                if isinstance(pair, Const) and not hasattr(type(pair.value), "__iter__"):
                    raise GraphBreak("user-exception", f"{pair.describe()} where a pair is needed")
                parts = list(pair.iterate(tr))
                if len(parts) != 2:
                    raise ValueError(f"dictionary update sequence element #{at} has length {len(parts)}; 2 is required")
                self.set_item(tr, *parts)

    def _is_of_object(self, name: str) -> bool:
        """Whether an attribute would be in a ``__dict__`` of its own: an OrderedDict has one."""
        return self.cls is OrderedDict and (name == "__dict__" or not hasattr(OrderedDict, name))

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if self._is_of_object(name):
            return tr.object_around(self).get_attr(tr, name)
        found = builtin_attribute(tr, self, self.cls, name)
        if name == "default_factory":
            return NONE if self.default_factory is None else self.default_factory
        return found

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        if self._is_of_object(name):
            tr.object_around(self).set_attr(tr, name, value)
        else:
            super().set_attr(tr, name, value)

    def del_attr(self, tr: Tracer, name: str) -> None:
        if self._is_of_object(name):
            tr.object_around(self).del_attr(tr, name)
        else:
            super().del_attr(tr, name)

    def attributes(self, tr: Tracer) -> list[tuple[str, Value]]:
        """Those of an OrderedDict; other kinds have none."""
        own = self.get_attr(tr, "__dict__") if self._is_of_object("__dict__") else None
        return [] if own is None else [(name.constant(tr), value) for name, value in pairs_of_mapping(tr, own)]

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name in ("update", "__init__"):
            for other in args:
                self.update(tr, other)
            for key, value in kwargs.items():
                self.set_item(tr, Const(key), value)
            return NONE
        if issubclass(self.cls, OrderedDict) and name in ("move_to_end", "popitem"):
            last = kwargs.get("last", args[-1] if len(args) > (name == "move_to_end") else TRUE).truth(tr)
            return self._move_to_end(tr, args[0], last) if name == "move_to_end" else self._popitem(tr, [], last)
        rule = _METHODS.get(name)
        if rule is None or kwargs:
            raise GraphBreak("unsupported-value", f"dict method {name!r}")
        return rule(self, tr, args)

    def _move_to_end(self, tr: Tracer, key: Value, last: bool) -> Value:
        at = key.key(tr)
        if at not in self.items:
            tr.lacks_key(key)
        self.changed(tr)
        entry = self.items.pop(at)
        self.steps.append(DictStep("move_to_end", at, entry[0], (last,)))
        rest = [] if last else list(self.items.items())
        if not last:
            self.items.clear()
        self.items[at] = entry
        self.items.update(rest)
        return NONE

    def _get(self, tr: Tracer, args: Sequence[Value]) -> Value:
        at = args[0].key(tr)
        if at in self.items:
            return self._value(tr, at)
        return args[1] if len(args) > 1 else NONE

    def _pop(self, tr: Tracer, args: Sequence[Value]) -> Value:
        at = args[0].key(tr)
        if at not in self.items:
            if len(args) > 1:
                return args[1]
            tr.lacks_key(args[0])
        self.changed(tr)
        value = self._value(tr, at)
        self._take(at)
        return value

    def _popitem(self, tr: Tracer, args: Sequence[Value], last: bool = True) -> Value:
        self.changed(tr)
        if not self.items:
            raise KeyError("dictionary is empty" if issubclass(self.cls, OrderedDict) else "popitem(): dictionary is empty")
        key, value = self.pairs(tr)[-1 if last else 0]
        self._take(key.key(tr))
        return TupleValue([key, value])

    def _setdefault(self, tr: Tracer, args: Sequence[Value]) -> Value:
        if args[0].key(tr) not in self.items:
            self.set_item(tr, args[0], args[1] if len(args) > 1 else NONE)
        return self.get_item(tr, args[0])

    def _clear(self, tr: Tracer, args: Sequence[Value]) -> Value:
        self.changed(tr)
        items = self.items  # first: what was added unlooked at comes before
        self.steps.append(DictStep("clear", None, NONE))
        items.clear()
        return NONE

    def _copy(self, tr: Tracer, args: Sequence[Value]) -> Value:
        made = DictValue(tr, self.pairs(tr), self.cls)
        made.default_factory = self.default_factory
        return made


class DictView(Value):
    """``d.keys()``, ``d.values()`` or ``d.items()``."""

    __slots__ = ("of", "what")

    def __init__(self, of: DictValue, what: str) -> None:
        super().__init__()
        self.of, self.what = of, what

    @property
    def cls(self) -> type:
        """Its class."""
        return type(getattr({}, self.what)())

    def python_type(self, tr: Tracer) -> type:
        return self.cls

    def key(self, tr: Tracer) -> Any:
        natively(hash, getattr({}, self.what)())  # Python's own complaint
        return super().key(tr)

    def iterate(self, tr: Tracer, backwards: bool = False) -> Iterator[Value]:
        keys = self.of.each_key(backwards)
        if self.what == "keys":
            return keys
        if self.what == "values":
            return map(partial(self.of.get_item, tr), keys)  # (which goes on after an error, as a generator would not)
        return map(partial(self._pair, tr), keys)

    def _pair(self, tr: Tracer, key: Value) -> Value:
        return TupleValue([key, self.of.get_item(tr, key)])

    def length(self, tr: Tracer) -> Value:
        return self.of.length(tr)

    def truth(self, tr: Tracer) -> bool:
        return self.of.truth(tr)

    def contains(self, tr: Tracer, item: Value) -> bool:
        return self.of.contains(tr, item) if self.what == "keys" else super().contains(tr, item)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return builtin_attribute(tr, self, self.python_type(tr), name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name in ("__iter__", "__len__", "__contains__", "__reversed__") and not kwargs:
            if name == "__iter__":
                return tr.iterator(self.iterate(tr))
            if name == "__reversed__":
                return tr.iterator(self.iterate(tr, backwards=True))
            return self.length(tr) if name == "__len__" else boolean(self.contains(tr, args[0]))
        raise GraphBreak("unsupported-value", f"method {name!r} of {self.describe()}")


_METHODS: dict[str, Callable[[Any, Tracer, Sequence[Value]], Value]] = {
    "get": DictValue._get,
    "pop": DictValue._pop,
    "popitem": DictValue._popitem,
    "setdefault": DictValue._setdefault,
    "clear": DictValue._clear,
    "copy": DictValue._copy,
    "keys": lambda self, tr, args: DictView(self, "keys"),
    "values": lambda self, tr, args: DictView(self, "values"),
    "items": lambda self, tr, args: DictView(self, "items"),
    "__len__": lambda self, tr, args: self.length(tr),
    "__getitem__": lambda self, tr, args: self.get_item(tr, args[0]),
    "__iter__": lambda self, tr, args: tr.iterator(self.iterate(tr)),
    "__contains__": lambda self, tr, args: boolean(self.contains(tr, args[0])),
    "__setitem__": lambda self, tr, args: _none(self.set_item(tr, args[0], args[1])),
    "__delitem__": lambda self, tr, args: _none(self.del_item(tr, args[0])),
    "__reversed__": lambda self, tr, args: tr.iterator(self.each_key(backwards=True)),
}


def _none(nothing: None) -> Value:
    """The result of a statement as a method."""
    return NONE


DICT_TYPES: tuple[type, ...] = (dict, OrderedDict)
