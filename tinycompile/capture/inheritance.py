"""``super()``: its arguments, and what it finds."""

from __future__ import annotations

import functools
from types import ClassMethodDescriptorType, FunctionType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.trust import is_of
from tinycompile.capture.values.base import MethodOf, Value
from tinycompile.capture.values.classes import ClassValue, defines, is_compiled, is_descriptor_of_the_program
from tinycompile.capture.values.container import BASES, ContainerObject, NewContainer
from tinycompile.capture.values.descriptors import says_own_class
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import BoundFunction, Cell
from tinycompile.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def super_arguments(tr: Tracer) -> list[Value]:
    """What a bare ``super()`` means in the current frame: the class and the first argument."""
    frame = tr.frames[-1]
    cell = frame.slots.get("__class__")
    first = frame.slots.get(frame.code.co_varnames[0])
    if not isinstance(cell, Cell) or first is None:
        raise GraphBreak("user-exception", "super() outside a method")
    receiver = first.get(tr, "self") if isinstance(first, Cell) else tr.force(first)
    return [cell.get(tr, "__class__"), receiver]


class SuperValue(Value):
    """``super()`` as an object (3.11; later versions have an instruction for an attribute of one)."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: ClassValue, receiver: ObjectValue | ClassValue) -> None:
        super().__init__()
        self.cls, self.receiver = cls, receiver

    def describe(self) -> str:
        return f"super() of {self.receiver.describe()}"

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return super_attribute(tr, self.cls, self.receiver, name)

    def get_item(self, tr: Tracer, key: Value) -> Value:
        raise GraphBreak("user-exception", f"an item of {self.describe()}, which Python looks for in super itself")

    def length(self, tr: Tracer) -> Value:
        raise GraphBreak("user-exception", f"the length of {self.describe()}, which Python looks for in super itself")


def super_object(tr: Tracer, cls: Value, receiver: Value) -> SuperValue:
    """``super(cls, receiver)``."""
    if not isinstance(cls, ClassValue) or not isinstance(receiver, (ObjectValue, ClassValue)):
        raise GraphBreak("unsupported-value", "super() of something that is no object")
    start = _searched(cls.cls, receiver)
    if cls.cls not in start.__mro__:
        if says_own_class(start):
            raise GraphBreak("unsupported-value", f"super() of {receiver.describe()}, which says what class it has")
        natively(super, cls.cls, receiver.cls if isinstance(receiver, ClassValue) else receiver.obj)  # Python's own complaint
    return SuperValue(cls, receiver)


def _searched(cls: type, receiver: ObjectValue | ClassValue) -> type:
    """The class in whose bases ``super(cls, receiver)`` looks: a class itself, or that of an object."""
    if isinstance(receiver, ObjectValue):
        return type(receiver.obj)
    return receiver.cls if cls in receiver.cls.__mro__ else type(receiver.cls)


def super_attribute(tr: Tracer, cls: Value, receiver: Value, name: str) -> Value:
    """The next definition of ``name`` behind ``cls`` in the bases of the receiver's class; no class nearer may gain one."""
    made = super_object(tr, cls, receiver)
    start = _searched(made.cls.cls, made.receiver)
    behind = start.__mro__[start.__mro__.index(made.cls.cls) + 1 :]
    for owner in behind if name != "__class__" else ():
        assigned = tr.effects.assigned(owner, name)
        if assigned is not None or name in owner.__dict__:
            tr.inherited(start, owner, name, made.cls.cls)
            return assigned or _super_member(tr, owner, name, made.receiver, start)
    tr.inherited(start, object, name, made.cls.cls)
    return _own_attribute(tr, made, start, name)


def _own_attribute(tr: Tracer, made: SuperValue, start: type, name: str) -> Value:
    """What the object itself has."""
    if name in ("__self__", "__thisclass__"):
        return made.receiver if name == "__self__" else made.cls
    if name in ("__self_class__", "__class__"):
        return tr.from_python(start if name == "__self_class__" else super)
    if defines(super, name):
        raise GraphBreak("unsupported-value", f"{name} of {made.describe()} itself")
    raise AttributeError(f"'super' object has no attribute '{name}'", name=name)


_METHODS = (FunctionType, MethodDescriptorType, WrapperDescriptorType, functools._lru_cache_wrapper)


def _super_member(tr: Tracer, owner: type, name: str, receiver: ObjectValue | ClassValue, start: type) -> Value:
    """What something in a class gives for the receiver: bound to it, unless that is the very class that was searched."""
    raw = owner.__dict__[name]
    if isinstance(raw, classmethod):
        return BoundFunction(tr.class_member(owner, name, raw.__func__), tr.from_python(start))
    if isinstance(raw, staticmethod):
        return tr.class_member(owner, name, raw.__func__)
    if is_descriptor_of_the_program(raw) or isinstance(raw, _UNBOUND):
        raise GraphBreak("unsupported-value", f"super().{name}, a descriptor")
    if not defines(type(raw), "__get__") or (isinstance(receiver, ClassValue) and receiver.cls is start):
        return tr.class_member(owner, name, raw)
    if isinstance(raw, property):
        tr.class_member(owner, name, raw)
        if raw.fget is None:
            natively(raw.__get__, receiver.obj if isinstance(receiver, ObjectValue) else receiver.cls)  # Python's own complaint
        return tr.from_callable(raw.fget).call(tr, [receiver], {})
    if isinstance(receiver, (ContainerObject, NewContainer)) and owner in BASES:
        return receiver.inherited_method(name)
    if isinstance(receiver, ExceptionValue) and is_of(owner, "builtins"):
        return MethodOf(receiver, name)
    if isinstance(raw, GetSetDescriptorType) and name == "__dict__" and isinstance(receiver, ObjectValue):
        return tr.attributes_of(receiver)
    if isinstance(raw, _METHODS) or is_compiled(raw):
        return BoundFunction(tr.class_member(owner, name, raw), receiver)
    raise GraphBreak("unsupported-value", f"super().{name}, a {type(raw).__name__}")


# What gives neither itself nor a method of a function of its own.
_UNBOUND = (ClassMethodDescriptorType, functools.cached_property, functools.partialmethod, functools.singledispatchmethod)
