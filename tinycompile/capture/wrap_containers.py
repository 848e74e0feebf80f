"""Tuples, lists, dicts, sets and slices from outside: class and length or keys are guarded, items are looked at when used."""

from __future__ import annotations

import functools
import math
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.guards import shown_shortly
from tinycompile.capture.pins import guard_type, is_replaced, pin
from tinycompile.capture.sources import Asked, Attr, Held, HeldItem, Item, KeyAt, KeyItem, Source
from tinycompile.capture.told_apart import is_itself_alone
from tinycompile.capture.trust import module_of
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.classes import FILTERS, class_lookup, is_heap_type
from tinycompile.capture.values.constant import NONE, is_constant_object, may_be_another
from tinycompile.capture.values.container import ContainerObject, base_of
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object_key import ObjectKey
from tinycompile.capture.values.sequence import ListValue, SliceValue, TupleValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.unread import UnreadDeque, UnreadDict, UnreadList, UnreadSet

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def tuple_(tr: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    for name in ("__len__", "__getitem__"):  # which guards ask
        owner, raw = class_lookup(type(obj), name) or (tuple, None)
        if isinstance(raw, FunctionType):
            raise GraphBreak("unsupported-value", f"{source.label} is a named tuple with its own {name}")
        tr.inherited(type(obj), owner, name)
    if type(obj).__dictoffset__:  # what it has of its own comes before its class's methods
        if obj.__dict__:
            raise GraphBreak("unsupported-value", f"{source.label} is a named tuple with attributes of its own")
        tr.guards.check(f"not {source.text}.__dict__", f"{source.label} has no attributes of its own")
    items = tuple.__iter__(obj)
    if isinstance(source, Held) or (isinstance(source, HeldItem) and not is_replaced(tr, obj, source)):
        source = pin(tr, obj, source)
        return TupleValue(
            [tr.kept(o) if is_constant_object(o) else Lazy(o, Item(source, i)) for i, o in enumerate(items)], source, type(obj)
        )
    source = guard_type(tr, obj, source, f"_len({{}}) == {tuple.__len__(obj)}", f"{tuple.__len__(obj)} items")
    return TupleValue([Lazy(o, Item(source, i)) for i, o in enumerate(items)], source, type(obj))


def _check_length(tr: Tracer, obj: Any, source: Source) -> None:
    _check_stable(tr, f"len({source.text})", len(obj), f"the length of {source.label}")


def _check_stable(tr: Tracer, at: str, now: Any, what: str) -> None:
    """A container that had other lengths, or members, in several captures changes from call to call: it is not looked into any
    more."""
    varies, tr.constants_seen[at] = tr.options.resume and tr.options.varies(at, now), now
    if varies:
        raise GraphBreak("side-effect", f"{what} differs from call to call")


def list_(tr: Tracer, obj: list[Any], source: Source) -> Value:
    source = guard_type(tr, obj, source)
    if obj is warnings.filters:
        raise GraphBreak("side-effect", FILTERS)
    return UnreadList(tr, functools.partial(_look_into_list, tr, obj, source), source)


def _look_into_list(tr: Tracer, obj: Any, source: Source) -> list[Any]:
    _check_length(tr, obj, source)
    tr.guards.check(f"_len({source.text}) == {len(obj)}", f"{source.label} is a {type(obj).__name__}, {len(obj)} items")
    return [Lazy(o, Item(source, i)) for i, o in enumerate(obj)]


def dict_(tr: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    source = guard_type(tr, obj, source)
    return UnreadDict(tr, functools.partial(_look_into_dict, tr, obj, source), obj, source)


def _look_into_dict(tr: Tracer, obj: dict[Any, Any], source: Source) -> dict[Any, Any]:
    _check_length(tr, obj, source)
    for key in obj:
        if not _is_plain_key(key) and not _is_object_key(key):
            raise GraphBreak("unsupported-value", f"{source.label} has a key of type {type(key).__name__}")
    if any(map(is_itself_alone, obj)):
        _check_stable(tr, f"keys({source.text})", tuple(map(id, obj)), f"which objects are keys of {source.label}")
    if not all(map(_is_plain_key, obj)):
        _guard_objects(tr, obj, source)
    else:
        tr.guards.check(
            _same_keys(tr, obj, source.text),
            f"{source.label} is a {type(obj).__name__}, keys [{', '.join(map(shown_shortly, obj))}]",
        )
    found: dict[Any, Any] = {}
    items = (OrderedDict if isinstance(obj, OrderedDict) else dict).items(obj)  # (of a subclass's own, maybe)
    for place, (key, item) in enumerate(items):
        value = _key(tr, key)
        _note(tr, value, key, KeyAt(source, place))
        at = value.key(tr)
        if isinstance(at, ObjectKey) and (hash(at) != hash(key) or key not in obj):  # (which does nothing but answer)
            raise GraphBreak("unsupported-value", f"{source.label} has a key that has changed since it was put there")
        found[at] = value, Lazy(item, _item(tr, source, key))
    return found


def _guard_objects(tr: Tracer, obj: dict[Any, Any], source: Source) -> None:
    """Which objects are keys, in their order. Where they are others in each call, guards on them are of no use."""
    _check_stable(tr, f"keys({source.text})", tuple(map(id, obj)), f"which objects are keys of {source.label}")
    keys, same = tr.guards.hold(tuple(obj), "keys").name, tr.guards.hold(is_same_key, "is_same_key").name
    tr.guards.check(
        f"_len({source.text}) == {len(obj)} and _all(_map({same}, {source.text}, {keys}))",
        f"{source.label} is a {type(obj).__name__}, keys {', '.join(map(shown_shortly, obj))}",
    )


def is_same_key(now: Any, known: Any) -> bool:
    """Whether a key is the one that is known: that very object, or what means the same."""
    return now is known or (_is_plain_key(known) and _is_plain_key(now) and now == known and are_alike(now, known))


def _key(tr: Tracer, key: Any) -> Value:
    return tr.from_python(key) if _is_plain_key(key) else tr.wrap(key, tr.guards.hold(key, "key", shown_shortly(key)))


def _note(tr: Tracer, value: Value, key: Any, source: Source) -> None:
    """Where a plain key is found that may be another object in another call, and what is in it if it is a tuple."""
    if type(key) is tuple:
        tr.note_key(value, key, source)
        assert isinstance(value, TupleValue)
        for at, (part, inner) in enumerate(zip(value.values(tr), key, strict=True)):
            _note(tr, part, inner, Item(source, at))
    elif may_be_another(key):
        tr.note_key(value, key, source)


def _same_keys(tr: Tracer, obj: Iterable[Any], text: str) -> str:
    """That a dict has the same keys in their order. They are alike (True equals 1, and -0.0 equals 0.0): that comes first, for
    then nothing asks an object of the program's whether it equals one of them."""
    keys = tuple(obj)
    kinds = tuple(map(type, keys))
    if not keys:
        return f"_len({text}) == 0" if is_heap_type(type(obj)) else f"not {text}"
    known = tr.guards.hold(keys, "keys").name
    if all(kind in _BY_TYPE for kind in kinds):
        alike = f"_map(_is, _map(_type, {text}), {tr.guards.hold(kinds, 'kinds').name})"
    else:
        alike = f"_map({tr.guards.hold(are_alike, 'are_alike').name}, {text}, {known})"
    return f"_len({text}) == {len(keys)} and _all({alike}) and _tuple({text}) == {known}"


_TWINS = (float, complex, range, np.generic)  # which equal others that are not the same
_BY_TYPE = frozenset({int, bool, str, bytes, type(None)})  # which mean the same when they are equal, and of one type


def are_alike(a: Any, b: Any) -> bool:
    """Whether two equal keys mean the same: they are of the same types, and zeros have the same sign."""
    if type(a) is not type(b):
        return False
    return all(map(are_alike, a, b)) if type(a) is tuple else not isinstance(a, _TWINS) or repr(a) == repr(b)


def _is_plain_key(key: Any) -> bool:
    """One whose hash and equality are Python's own: a constant, a class, a function written in C, a tuple of these."""
    if isinstance(key, (type, BuiltinFunctionType)):
        return all(
            (class_lookup(type(key), name) or (None,))[0] in (object, BuiltinFunctionType) for name in ("__hash__", "__eq__")
        )
    return is_constant_object(key) or (type(key) is tuple and all(map(_is_plain_key, key)))


def _is_object_key(key: Any) -> bool:
    """One that is equal to itself alone (an object, a module, a parameter), or whose class says so in Python."""
    if isinstance(key, torch.Tensor):
        return type(key) is torch.nn.Parameter
    if class_lookup(type(key), "__getattribute__") != (object, object.__getattribute__):
        return False
    found = [(class_lookup(type(key), name), plain) for name, plain in _IDENTITY]
    return all(looked == (object, plain) or (looked and isinstance(looked[1], FunctionType)) for looked, plain in found)


_IDENTITY = (("__hash__", object.__hash__), ("__eq__", object.__eq__))


def _item(tr: Tracer, source: Source, key: Any) -> Source:
    """The entry under a key; one that has no literal is held."""
    literal = type(key) in (str, int, bool, bytes, type(None)) or (type(key) is float and key == key and abs(key) != math.inf)
    return Item(source, key) if literal else KeyItem(source, tr.guards.hold(key, "key", shown_shortly(key)))


def defaultdict_(tr: Tracer, obj: defaultdict[Any, Any], source: Source) -> Value:
    made = dict_(tr, obj, source)
    assert isinstance(made, DictValue) and made.source is not None
    factory = tr.wrap(obj.default_factory, Attr(made.source, "default_factory"))
    made.default_factory = None if tr.identical(factory, NONE) else factory
    return made


def deque_(tr: Tracer, obj: deque[Any], source: Source) -> Value:
    source = guard_type(tr, obj, source, f"{{}}.maxlen == {obj.maxlen}", f"at most {obj.maxlen} items")
    return UnreadDeque(tr, functools.partial(_look_into_list, tr, obj, source), obj.maxlen, source)


def subclassed(tr: Tracer, obj: Any, source: Source) -> Value:
    """An instance of a class of the program's that derives from a container. How its contents are read must be Python's own."""
    cls, base = type(obj), base_of(type(obj))
    if base is None or any(
        isinstance((class_lookup(cls, n) or (None, None))[1], FunctionType) for n in ("__getitem__", "__len__", "__iter__")
    ):
        raise GraphBreak("unsupported-value", f"{source.label} is a {module_of(cls)}.{cls.__qualname__}")
    rules: dict[type, Any] = {list: list_, tuple: tuple_, set: set_, frozenset: set_}
    rule = rules.get(base, dict_)
    contents = rule(tr, obj, source)
    assert isinstance(contents, (ListValue, DictValue, SetValue, TupleValue)) and contents.source is not None
    contents.cls = base
    return ContainerObject(tr, obj, contents, contents.source)


def set_(tr: Tracer, obj: Any, source: Source) -> Value:
    source = guard_type(tr, obj, source)
    made = UnreadSet(tr, functools.partial(_look_into_set, tr, obj, source), type(obj), source)
    made.real = obj
    if isinstance(obj, frozenset):
        made.items  # noqa: B018  # nothing can be added to it
    return made


def _look_into_set(tr: Tracer, obj: Any, source: Source) -> dict[Any, Any]:
    if not all(map(_is_plain_key, obj)):
        raise GraphBreak("unsupported-value", f"{source.label} is a set of objects")
    _check_stable(tr, f"set({source.text})", frozenset(obj), f"what is in {source.label}")
    copy = tr.guards.hold({member: member for member in obj}, "members").name
    plain_set = f"{tr.guards.hold(frozenset, 'frozenset_').name}({source.text})" if is_heap_type(type(obj)) else source.text
    same = f"{plain_set} == {copy}.keys()"
    if all(type(member) in _BY_TYPE for member in obj):
        same = f"{tr.guards.hold(_BY_TYPE, 'plain_kinds').name}.issuperset(_map(_type, {source.text})) and {same}"
        same += f" and _list(_map(_type, _map({copy}.get, {source.text}))) == _list(_map(_type, {source.text}))"
    else:
        alike, plain = (tr.guards.hold(ask, ask.__name__).name for ask in (are_alike, _is_plain_key))
        same = f"_all(_map({plain}, {source.text})) and {same}"
        same += f" and _all(_map({alike}, _map({copy}.get, {source.text}), {source.text}))"
    tr.guards.check(same, f"{source.label} is a {type(obj).__name__} of {', '.join(map(shown_shortly, obj))}")
    known = isinstance(source, Held) and type(obj) is frozenset  # the very one, with these very members
    members = (tr.kept(member) if known else _member(tr, member, source) for member in obj)
    return {member.key(tr): member for member in members}


def _member(tr: Tracer, member: Any, source: Source) -> Value:
    value = tr.from_python(member)
    if type(member) is tuple or may_be_another(member):
        _note(tr, value, member, Asked(tr.guards.hold(MemberLike(member), "member"), source))
    return value


@dataclass(frozen=True, eq=False)
class MemberLike:
    """Finds what a set has that means the same as ``known``."""

    known: Any

    def __call__(self, members: set[Any] | frozenset[Any]) -> Any:
        return next(member for member in members if is_same_key(member, self.known))


def slice_(tr: Tracer, obj: slice, source: Source) -> Value:
    source = guard_type(tr, obj, source)
    return SliceValue((tr.wrap(getattr(obj, n), Attr(source, n)) for n in ("start", "stop", "step")), source)
