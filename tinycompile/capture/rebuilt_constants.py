"""Numbers and strings that live over a graph: each is the object that it is in the program, for ``is`` tells them apart."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from tinycompile.capture.values.constant import SMALL_INTS, Const

if TYPE_CHECKING:
    from tinycompile.capture.reconstruct import Rebuilder

_ONE_OF_EACH = (bool, type(None), type(Ellipsis))


class Literals:
    """Which literals stand for which objects in one rebuilt function. Python makes one object of equal ones."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    def of(self, obj: Any) -> str | None:
        """A literal for an object that is another than all others for which there is one; None where it must be held."""
        kind = type(obj)
        if kind in _ONE_OF_EACH or (kind is int and obj in SMALL_INTS):
            return repr(obj)
        if kind not in (int, str, bytes) and not (kind is float and math.isfinite(obj)):
            return None
        first = sys.intern(obj) if kind is str and _is_kept(obj) else self._objects.setdefault(repr(obj), obj)
        return repr(obj) if first is obj else None


def _is_kept(text: str) -> bool:
    """Whether Python makes one object of all literals of this text in a process: it may be a name."""
    return text.isascii() and text.replace("_", "a").isalnum()


def constant(rebuilder: Rebuilder, value: Const) -> str:
    """An expression for the object itself: where it came from, a literal, or the name of what the rebuilt code keeps."""
    obj = value.value
    if type(obj) in (int, str, bytes, float, complex) and value.source is not None:
        return rebuilder.reach(value.source)
    literal = None if rebuilder.tr.is_code_constant(obj) else rebuilder.literals.of(obj)
    return rebuilder.held(obj, "constant") if literal is None else literal
