"""How objects hold their attributes: questions that run no code of the program's."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

from tinycompile.capture.values.classes import class_lookup, defines


def own_dict(obj: Any) -> dict[str, Any]:
    """An object's attributes, if it has a place for any, without asking a ``__getattribute__`` of the program's."""
    found: dict[str, Any] = object.__getattribute__(obj, "__dict__") if has_dict(obj) else {}
    return found


def has_dict(obj: Any) -> bool:
    """Whether an object can have attributes of its own."""
    return bool(type(obj).__dictoffset__)


def is_unset(slot: MemberDescriptorType, obj: Any) -> bool:
    """Whether a slot holds nothing."""
    try:
        slot.__get__(obj)
    except AttributeError:
        return True
    return False


def is_data_descriptor(raw: Any) -> bool:
    """Whether something in a class comes before an attribute of the object's own."""
    return defines(type(raw), "__set__") or defines(type(raw), "__delete__")


def is_hidden(cls: type, name: str) -> bool:
    """Whether a descriptor of the class comes before an attribute of that name in ``__dict__``."""
    found = class_lookup(cls, name)
    return found is not None and is_data_descriptor(found[1]) and not isinstance(found[1], MemberDescriptorType)
