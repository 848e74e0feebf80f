"""Instances of the program's own subclasses of list, dict, set and tuple: an object whose contents are a built-in container."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.arguments import check_arguments
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.classes import built_in_base, class_lookup, is_heap_type
from tinycompile.capture.values.constant import NONE
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import NewObject, ObjectValue
from tinycompile.capture.values.sequence import ListValue, TupleValue
from tinycompile.capture.values.sets import SetValue, converted
from tinycompile.capture.values.special_results import checked

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

BASES: tuple[type, ...] = (OrderedDict, dict, list, set, frozenset, tuple)
_ITEMS = ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__missing__")
_ASK_NOTHING = (*_ITEMS, "__len__", "__iter__", "__reversed__", "__eq__", "__ne__", "get", "keys", "values", "items")
_STORE = ("__init__", "update", "__ior__", "__or__", "__ror__")
# Which of the program's own methods those of OrderedDict call (Objects/odictobject.c); all that are not named here: any.
_ASKED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_ASK_NOTHING, "move_to_end", "clear"), ()), **dict.fromkeys(_STORE, ("__setitem__",))
}  # fmt: skip
Contents = ListValue | DictValue | SetValue | TupleValue


def base_of(cls: type) -> type | None:
    """The built-in container that a class derives from; None for others, as for a defaultdict, which holds more."""
    return None if issubclass(cls, defaultdict) else next((b for b in BASES if issubclass(cls, b)), None)


def contents_of(value: Value, *specials: str) -> Value:
    """The built-in container inside, where the program's class leaves these special methods alone; else the value itself."""
    if isinstance(value, (ContainerObject, NewContainer)) and not any(map(value.defines, specials)):
        return value.base
    return value


class _Contained(ObjectValue):
    """What both kinds share. Methods of the program's class come first; the rest is the contents' own."""

    __slots__ = ()
    base: Contents

    def defines(self, name: str) -> bool:
        """Whether the program's class has its own version of a method."""
        found = class_lookup(type(self.obj), name)
        return found is not None and is_heap_type(found[0])

    def own_method(self, tr: Tracer, name: str) -> Value | None:
        """The program's version of a special method."""
        return super().special(tr, name) if self.defines(name) else None

    def special(self, tr: Tracer, name: str) -> Value | None:
        return self.own_method(tr, name)

    def _class_member(self, tr: Tracer, name: str, owner: type, raw: Any) -> Value:
        if owner in BASES:
            if isinstance(raw, (classmethod, staticmethod)) or not callable(raw):
                raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
            tr.inherited(type(self.obj), owner, name)
            return self.inherited_method(name)
        return super()._class_member(tr, name, owner, raw)

    def inherited_method(self, name: str) -> Value:
        """``super().name``, which the built-in class defines. OrderedDict's asks for the items as the program does."""
        if base_of(type(self.obj)) is OrderedDict and any(map(self.defines, _ASKED.get(name, _ITEMS))):
            raise GraphBreak("unsupported-value", f"OrderedDict.{name} of {self.describe()}")
        return MethodOf(self.base, name)

    # --- protocols ---

    def argument(self, tr: Tracer) -> Any:
        return self.base.argument(tr)

    def key(self, tr: Tracer) -> Any:
        if self.defines("__hash__") or self.defines("__eq__"):
            raise GraphBreak("unsupported-value", f"the hash of {self.describe()}")
        return self.base.key(tr)

    def truth(self, tr: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            method = self.own_method(tr, name)
            if method is not None:
                return checked(tr, name, method.call(tr, [], {})).truth(tr)
        return self.base.truth(tr)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        made = self.iterator(tr)
        return self.base.iterate(tr) if made is None else tr.steps(made)

    def length(self, tr: Tracer) -> Value:
        method = self.own_method(tr, "__len__")
        return self.base.length(tr) if method is None else checked(tr, "__len__", method.call(tr, [], {}))

    def get_item(self, tr: Tracer, key: Value) -> Value:
        method = self.own_method(tr, "__getitem__")
        if method is not None:
            return method.call(tr, [key], {})
        return self.base.get_item(tr, key)

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        method = self.own_method(tr, "__setitem__")
        if method is None:
            self.base.set_item(tr, key, value)
        else:
            method.call(tr, [key, value], {})

    def del_item(self, tr: Tracer, key: Value) -> None:
        method = self.own_method(tr, "__delitem__")
        if method is None:
            self.base.del_item(tr, key)
        else:
            method.call(tr, [key], {})

    def contains(self, tr: Tracer, item: Value) -> bool:
        method = self.own_method(tr, "__contains__")
        return self.base.contains(tr, item) if method is None else method.call(tr, [item], {}).truth(tr)


class ContainerObject(_Contained):
    """One from outside."""

    __slots__ = ("base",)

    def __init__(self, tr: Tracer, obj: Any, base: Contents, source: Source) -> None:
        super().__init__(obj, source)
        self.base = base
        _hold(tr, self)


class NewContainer(_Contained, NewObject):
    """One that the program made."""

    __slots__ = ("base",)

    def __init__(self, tr: Tracer, cls: Any, base: Contents) -> None:
        Value.__init__(self)
        self.obj = built_in_base(cls).__new__(cls)
        self.shadow = {}
        self.base = base
        _hold(tr, self)


def _hold(tr: Tracer, holder: ContainerObject | NewContainer) -> None:
    """The contents know their object, until the capture is over: each holds the other."""
    holder.base.holder = holder
    tr.contained.append(holder.base)


def empty_contents(tr: Tracer, cls: type, args: Sequence[Value]) -> Contents:
    """What a new instance of a class holds before ``__init__``: only the immutable kinds take their items then."""
    base = base_of(cls)
    if base is list:
        return ListValue()
    if base is tuple:
        return TupleValue(args[0].filling(tr) if args else ())
    if base in (set, frozenset):
        return converted(tr, base, args[0] if args and base is frozenset else None)
    return DictValue(tr, (), base or dict)


def fill(tr: Tracer, base: Contents, args: Sequence[Value], kwargs: Kwargs) -> Value:
    """The built-in ``__init__``."""
    if isinstance(base, (ListValue, SetValue)) and base.cls in (list, set):
        check_arguments(base.cls, args, kwargs)
    if isinstance(base, DictValue):
        base.call_method(tr, "update", args, kwargs)
    elif isinstance(base, ListValue) and args:
        base.extend(tr, args)
    elif isinstance(base, SetValue) and base.cls is set and args:
        base.call_method(tr, "update", args, {})
    return NONE
