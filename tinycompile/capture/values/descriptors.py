"""How objects hold their attributes: questions that run no code of the program's."""

from __future__ import annotations

from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from tinycompile.capture.trust import trusts
from tinycompile.capture.values.classes import class_lookup, defines, is_heap_type


def own_dict(obj: Any) -> dict[str, Any]:
    """An object's attributes, if it has a place for any, without asking a ``__getattribute__`` of the program's."""
    found: dict[str, Any] = object.__getattribute__(obj, "__dict__") if has_dict(obj) else {}
    return found


def kept_under(holder: Any, name: Any) -> Any:
    """What a dict has under a key, or an object as an attribute: in its ``__dict__``, in a slot, or among a module's buffers.
    None for nothing."""
    kind = type(holder)
    if issubclass(kind, dict):
        return dict.get(holder, name)
    if issubclass(kind, type):
        return type.__dict__["__dict__"].__get__(holder).get(name)
    own = own_dict(holder)
    if name in own:
        return own[name]
    slot = _of_class(kind, name)
    if isinstance(slot, MemberDescriptorType):
        return None if is_unset(slot, holder) else slot.__get__(holder)
    return own["_buffers"].get(name) if issubclass(kind, torch.nn.Module) else None


def has_dict(obj: Any) -> bool:
    """Whether an object can have attributes of its own."""
    return bool(type(obj).__dictoffset__)


def asks_the_program(cls: type, name: str) -> bool:
    """Whether to look for an attribute calls code of the program's where an object lacks it."""
    raw = _of_class(cls, name)
    if raw is None:
        return not trusts(_of_class(cls, "__getattr__") or object)
    return not isinstance(raw, FunctionType) and not isinstance(raw, MemberDescriptorType) and defines(type(raw), "__get__")


def says_own_class(cls: type) -> bool:
    """Whether the class says what ``__class__`` of an object is, for which ``isinstance`` asks."""
    return is_heap_type(cls) and _of_class(cls, "__class__") is not _CLASS


def hides_dict(cls: type) -> bool:
    """Whether the class says what ``__dict__`` of an object is: its attributes can't be told from without."""
    has = is_heap_type(cls) and cls.__dictoffset__
    return bool(has) and not isinstance(_of_class(cls, "__dict__"), (GetSetDescriptorType, MemberDescriptorType))


def has_own_identity(cls: type) -> bool:
    """Whether it is a metaclass that says which classes are equal: then any look for a class in a table asks it."""
    own = cls is not type and issubclass(cls, type)
    return own and (cls.__hash__ is not type.__hash__ or cls.__eq__ is not type.__eq__)  # type: ignore[comparison-overlap]


_CLASS = object.__dict__["__class__"]


def _of_class(cls: type, name: str) -> Any:
    return next((owner.__dict__[name] for owner in cls.__mro__ if name in owner.__dict__), None)


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
