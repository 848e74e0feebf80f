"""Numbers and strings that live over a graph: each is the object that it is in the program, for ``is`` tells them apart."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture.values.constant import SMALL_INTS, Const, may_be_another

if TYPE_CHECKING:
    from tinycompile.capture.reconstruct import Rebuilder

_ONE_OF_EACH = (bool, type(None), type(Ellipsis))


class Literals:
    """Which literals stand for which objects in one rebuilt function. Python makes one object of equal ones.
    ``known_elsewhere``: whether the program has this very object in its code, so that a literal of ours is another."""

    def __init__(self, known_elsewhere: Callable[[Any], bool]) -> None:
        self._known_elsewhere = known_elsewhere
        self._objects: dict[str, Any] = {}

    def of(self, obj: Any) -> str | None:
        """A literal for an object that is another than all others for which there is one; None where it must be held."""
        kind = type(obj)
        if kind in _ONE_OF_EACH or (kind is int and obj in SMALL_INTS):
            return repr(obj)
        if kind is str and _is_kept(obj):
            return repr(obj) if sys.intern(obj) is obj else None
        if (kind not in (int, str, bytes) and not (kind is float and math.isfinite(obj))) or self._known_elsewhere(obj):
            return None
        return repr(obj) if self._objects.setdefault(repr(obj), obj) is obj else None


def _is_kept(text: str) -> bool:
    """Whether Python makes one object of all literals of this text in a process: it may be a name."""
    return text.isascii() and text.replace("_", "a").isalnum()


def constant(rebuilder: Rebuilder, value: Const) -> str:
    """An expression for the object itself: where it came from, a literal, or the name of what the rebuilt code keeps."""
    obj = value.value
    if (may_be_another(obj) or type(obj) in (str, bytes)) and value.source is not None:
        return rebuilder.reach(value.source)
    if not may_be_another(obj):
        return rebuilder.constant(obj)
    origin = rebuilder.tr.origin(value)
    if origin is not None:
        return rebuilder.reach(origin[1])
    if rebuilder.tr.is_computed(obj):
        return _computed(rebuilder, obj)
    source = rebuilder.tr.source_of(obj)
    return rebuilder.constant(obj) if source is None else rebuilder.reach(source)


def _computed(rebuilder: Rebuilder, obj: Any) -> str:
    """The name of an object that is another in each call, and one in each."""
    name = rebuilder.computed.get(id(obj))
    if name is None:
        name = rebuilder.computed[id(obj)] = rebuilder.tr.guards.names.take("text" if type(obj) is str else "value")
        rebuilder.statements.append(f"{name} = {rebuilder.held(anew, 'anew')}({rebuilder.constant(obj)})")
    return name


def anew(obj: Any) -> Any:
    """Another object like a number, a text or a range, as Python, torch or numpy makes when it computes one."""
    kind = type(obj)
    if isinstance(obj, np.generic):
        return obj.copy()
    if kind in (torch.finfo, torch.iinfo):
        return kind(getattr(torch, obj.dtype))
    if kind is torch.device:
        return torch.device(obj)
    if kind is int:
        return obj + 0
    if kind is float:
        return obj * 1.0
    if kind is complex:
        return complex(obj.real, obj.imag)
    return range(obj.start, obj.stop, obj.step) if kind is range else obj[:1] + obj[1:]
