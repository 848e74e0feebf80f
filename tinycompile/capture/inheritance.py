"""``super()``: its arguments, and what it finds."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.trust import is_of
from tinycompile.capture.values.base import MethodOf, Value
from tinycompile.capture.values.classes import ClassValue, is_descriptor_of_the_program
from tinycompile.capture.values.container import BASES, ContainerObject, NewContainer
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


def super_attribute(tr: Tracer, cls: Value, receiver: Value, name: str) -> Value:
    """The next definition of ``name`` after ``cls`` in the receiver's class."""
    if not isinstance(cls, ClassValue) or not isinstance(receiver, (ObjectValue, ClassValue)):
        raise GraphBreak("unsupported-value", f"super().{name} here")
    start = receiver.cls if isinstance(receiver, ClassValue) else type(receiver.obj)
    if isinstance(receiver, ClassValue) and not issubclass(start, cls.cls):
        return _super_of_metaclass(tr, cls.cls, receiver, name)
    mro = start.__mro__
    for owner in mro[mro.index(cls.cls) + 1 :]:
        assigned = tr.effects.assigned(owner, name)
        if assigned is not None:
            return assigned
        if name in owner.__dict__:
            return _super_member(tr, owner, name, receiver)
    if isinstance(receiver, ObjectValue) and isinstance(receiver.obj, torch.nn.Module) and name not in ("forward", "__call__"):
        return receiver.missing(tr, name)
    raise AttributeError(f"'super' object has no attribute '{name}'")


def _super_of_metaclass(tr: Tracer, cls: type, receiver: ClassValue, name: str) -> Value:
    """In a method of a metaclass: the class is the receiver."""
    mro = inspect.getmro(type(receiver.cls))
    for owner in mro[mro.index(cls) + 1 :]:
        raw = owner.__dict__.get(name)
        if raw is not None:
            if isinstance(raw, (classmethod, staticmethod, property)) or is_descriptor_of_the_program(raw):
                raise GraphBreak("unsupported-value", f"super().{name} in a metaclass")
            if not hasattr(type(raw), "__get__"):
                return tr.class_member(owner, name, raw)
            return BoundFunction(tr.class_member(owner, name, raw), receiver)
    raise AttributeError(f"'super' object has no attribute '{name}'")


def _super_member(tr: Tracer, owner: type, name: str, receiver: ObjectValue | ClassValue) -> Value:
    raw = owner.__dict__[name]
    if isinstance(raw, classmethod):
        of = receiver if isinstance(receiver, ClassValue) else tr.from_python(type(receiver.obj))
        return BoundFunction(tr.class_member(owner, name, raw.__func__), of)
    if isinstance(raw, staticmethod) or name == "__new__":
        return tr.class_member(owner, name, raw.__func__ if isinstance(raw, staticmethod) else raw)
    if isinstance(receiver, ClassValue) or not hasattr(type(raw), "__get__"):
        return tr.class_member(owner, name, raw)
    if is_descriptor_of_the_program(raw) or isinstance(raw, (functools.cached_property, functools.partialmethod)):
        raise GraphBreak("unsupported-value", f"super().{name}, a descriptor")
    if isinstance(raw, property):
        tr.class_member(owner, name, raw)
        return tr.from_callable(raw.fget).call(tr, [receiver], {})
    if isinstance(receiver, (ContainerObject, NewContainer)) and owner in BASES:
        return receiver.inherited_method(name)
    if isinstance(receiver, ExceptionValue) and is_of(owner, "builtins"):
        return MethodOf(receiver, name)
    return BoundFunction(tr.class_member(owner, name, raw), receiver)
