"""Tuples, lists, dicts, sets and slices from outside: class and length or keys are guarded, items are looked at when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.pins import guard_type, pin
from tinycompile.capture.sources import Attr, Held, HeldItem, Item, Source
from tinycompile.capture.values.base import Lazy, Value
from tinycompile.capture.values.constant import Const, is_constant_object
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import ListValue, SetValue, SliceValue, TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def tuple_(tr: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    if isinstance(source, (Held, HeldItem)):
        source = pin(tr, obj, source)
        return TupleValue(
            [Const(o) if is_constant_object(o) else Lazy(o, Item(source, i)) for i, o in enumerate(obj)], source, type(obj)
        )
    source = guard_type(tr, obj, source, f"_len({{}}) == {len(obj)}", f"{len(obj)} items")
    return TupleValue([Lazy(o, Item(source, i)) for i, o in enumerate(obj)], source, type(obj))


def _check_length(tr: Tracer, obj: Any, source: Source) -> None:
    """A container that had other lengths in several captures grows from call to call: it is not looked into any more."""
    at = f"len({source.text})"
    if tr.options.resume and tr.options.grows(at, len(obj)):
        tr.constants_seen[at] = len(obj)
        raise GraphBreak("side-effect", f"the length of {source.label} differs from call to call")
    tr.constants_seen[at] = len(obj)


def list_(tr: Tracer, obj: list[Any], source: Source) -> Value:
    _check_length(tr, obj, source)
    source = guard_type(tr, obj, source, f"_len({{}}) == {len(obj)}", f"{len(obj)} items")
    return ListValue([Lazy(o, Item(source, i)) for i, o in enumerate(obj)], source)


def dict_(tr: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    _check_length(tr, obj, source)
    for key in obj:
        if not isinstance(key, (str, int, float, bool, bytes, type(None))):
            raise GraphBreak("unsupported-value", f"{source.label} has a key of type {type(key).__name__}")
    keys = tr.guards.hold(tuple(obj), "keys")
    source = guard_type(tr, obj, source, f"_tuple({{}}) == {keys.name}", f"keys {list(obj)!r}")
    return DictValue(tr, [(Const(k), Lazy(o, Item(source, k))) for k, o in obj.items()], type(obj), source)


def set_(tr: Tracer, obj: Any, source: Source) -> Value:
    if not all(is_constant_object(o) for o in obj):
        raise GraphBreak("unsupported-value", f"{source.label} is a set of objects")
    copy = tr.guards.hold(type(obj)(obj), "members")
    source = guard_type(tr, obj, source, f"{{}} == {copy.name}", f"{obj!r}")
    return SetValue(tr, map(Const, obj), type(obj), source)


def slice_(tr: Tracer, obj: slice, source: Source) -> Value:
    source = guard_type(tr, obj, source)
    return SliceValue((tr.wrap(getattr(obj, n), Attr(source, n)) for n in ("start", "stop", "step")), source)
