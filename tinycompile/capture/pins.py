"""Guards on which object a source gives: its identity, or its class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import torch_private
from tinycompile.capture.sources import Held, HeldItem, Local, Source
from tinycompile.capture.trust import trusts
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import class_lookup

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def pin(tr: Tracer, obj: Any, source: Source, hint: str | None = None) -> Held:
    """Guard that the source still gives this very object, and hold it."""
    if isinstance(source, Held):
        return source
    held = tr.guards.hold(obj, hint or source.label, source.label)
    if isinstance(source, HeldItem):
        tr.guards.item(source, obj, equal=False)
    elif isinstance(source, Local):
        tr.guards.identity(source.name, held)
    else:
        tr.guards.check(f"{source.text} is {held.name}", f"{source.label} is {held.shown}")
    return held


def guard_type(tr: Tracer, obj: Any, source: Source, more: str = "", label: str = "") -> Source:
    """Guard the class (and ``more``, with ``{}`` for the expression). What is held already is known by identity, and so is what
    a held object has, unless the program puts others in its place."""
    if not trusts(type(obj)):
        for name in ("__getattribute__", "__getattr__"):  # guards look at attributes: nobody may come to be asked for them
            class_lookup(type(obj), name)
    if is_known_by_identity(tr, obj, source):
        source = pin(tr, obj, source)
        if more:
            tr.guards.check(more.format(source.text), f"{source.label}: {label}")
        return source
    cls = tr.guards.hold(type(obj), type(obj).__name__ + "_")
    text = f"_type({source.text}) is {cls.name}" + (f" and {more.format(source.text)}" if more else "")
    tr.guards.check(text, f"{source.label} is a {type(obj).__name__}" + (f", {label}" if label else ""))
    return source


def is_known_by_identity(tr: Tracer, obj: Any, source: Source) -> bool:
    """Whether an object, or what holds it, is held: then guards find it without asking it anything."""
    return isinstance(source, Held) or (isinstance(source, HeldItem) and not is_replaced(tr, obj, source))


def is_replaced(tr: Tracer, obj: Any, source: HeldItem) -> bool:
    """Whether there was another object in an earlier capture."""
    at = f"id({source.label})"
    tr.constants_seen[at] = id(obj)
    return tr.options.replaces(at, id(obj))


def guard_one_object(tr: Tracer, found: Value, where: Source) -> None:
    """Two ways lead to one object."""
    if found.source is not None and found.source != where:
        tr.guards.check(f"{where.text} is {found.source.text}", f"{where.label} is {found.source.label}")


def guard_kind(tr: Tracer, obj: Any, source: Source) -> None:
    """Guard the class alone; of a tensor also the keys by which torch dispatches, which tell sparse from dense, and so on."""
    if isinstance(source, Held):
        return
    tr.guards.odd.append((obj, source))
    cls, text = tr.guards.hold(type(obj), f"{type(obj).__name__}_"), source.text
    check = f"_type({text}) is {cls.name}"
    if isinstance(obj, torch.Tensor):
        check += f" and _raw_keys({text}) == {torch_private.raw_keys(obj)}"
    tr.guards.check(check, f"{source.label} is a {type(obj).__name__} of this kind")
