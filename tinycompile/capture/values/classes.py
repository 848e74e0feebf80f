"""Classes and Python modules; questions about classes that run no code of the program's."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import is_trusted
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const, natively
from tinycompile.capture.values.function import BoundFunction

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def class_lookup(cls: type, name: str) -> tuple[type, Any] | None:
    """What a class's method resolution order holds under a name, unbound: (owner, object)."""
    for owner in cls.__mro__:
        if name in owner.__dict__:
            return owner, owner.__dict__[name]
    return None


def is_pythons_own(cls: type, name: str) -> bool:
    """Whether a special method for attributes is the one that Python's own classes have."""
    found = class_lookup(cls, name)
    return found is not None and found[0].__module__ in ("builtins", "collections")


def is_plain_class(cls: type) -> bool:
    """Whether instances can be made and made again: nothing special happens when one is born or dies."""
    return (
        class_lookup(cls, "__new__") == (object, object.__new__)
        and type(cls).__call__ is type.__call__
        and is_heap_type(cls)
        and not hasattr(cls, "__del__")
    )


def is_heap_type(cls: type) -> bool:
    """Whether a class statement made it."""
    return bool(cls.__flags__ & _HEAP_TYPE)


_HEAP_TYPE = 1 << 9  # made by a class statement


def is_of_the_program(obj: Any) -> bool:
    """Whether an object's class was made by a class statement outside the standard library."""
    return is_heap_type(type(obj)) and not is_trusted(type(obj).__module__)


class ClassValue(Value):
    """A class from outside."""

    __slots__ = ("cls",)

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls

    def python_type(self, tr: Tracer) -> type:
        return type(self.cls)

    def describe(self) -> str:
        return f"class {self.cls.__qualname__}"

    def key(self, tr: Tracer) -> Any:
        return self.cls

    def truth(self, tr: Tracer) -> bool:
        return True

    def argument(self, tr: Tracer) -> Any:
        return self.cls if self.cls in (int, float, bool) else super().argument(tr)

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return tr.call_class(self.cls, args, kwargs)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return Const(getattr(self.cls, name))
        if name in ("__mro__", "__bases__", "__base__"):
            return tr.from_python(getattr(self.cls, name))
        if name == "__class__":
            return tr.from_python(type(self.cls))
        found = class_lookup(self.cls, name)
        if found is None:
            return self._of_metaclass(tr, name)
        owner, raw = found
        if isinstance(self.cls, enum.EnumType) and isinstance(raw, (enum.Enum, enum.property)):
            return tr.from_python(natively(getattr, self.cls, name))
        tr.inherited(self.cls, owner, name)
        if isinstance(raw, classmethod):
            return BoundFunction(tr.class_member(owner, name, raw.__func__), self)
        if isinstance(raw, staticmethod):
            return tr.class_member(owner, name, raw.__func__)
        return tr.class_member(owner, name, getattr(self.cls, name))

    def _of_metaclass(self, tr: Tracer, name: str) -> Value:
        meta = type(self.cls)
        found = class_lookup(meta, name)
        if found is None or found[0].__module__ == "builtins":
            natively(getattr, self.cls, name)
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}, which its metaclass defines")
        owner, raw = found
        tr.inherited(meta, owner, name)
        if isinstance(raw, property):
            tr.class_member(owner, name, raw)
            return tr.from_callable(raw.fget).call(tr, [self], {})
        if isinstance(raw, FunctionType):
            return BoundFunction(tr.class_member(owner, name, raw), self)
        if hasattr(type(raw), "__get__"):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}, which its metaclass defines")
        return tr.class_member(owner, name, raw)

    def _special_of_metaclass(self, tr: Tracer, name: str, *args: Value) -> Value:
        found = class_lookup(type(self.cls), name)
        if found is None or not isinstance(found[1], FunctionType):
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
        return BoundFunction(tr.class_member(found[0], name, found[1]), self).call(tr, args, {})

    def get_item(self, tr: Tracer, key: Value) -> Value:
        if isinstance(self.cls, enum.EnumType):
            return tr.from_python(natively(self.cls.__getitem__, key.constant(tr)))
        if hasattr(self.cls, "__class_getitem__"):  # what a type variable stands for makes no difference at run time
            return self
        raise GraphBreak("unsupported-value", f"subscription of {self.describe()}")

    def length(self, tr: Tracer) -> Value:
        if isinstance(self.cls, enum.EnumType):
            return Const(len(self.cls))
        return self._special_of_metaclass(tr, "__len__")

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        if isinstance(self.cls, enum.EnumType):
            return map(tr.from_python, list(self.cls))
        return self._special_of_metaclass(tr, "__iter__").iterate(tr)

    def constant(self, tr: Tracer) -> Any:
        return self.cls

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, ClassValue) and self.cls is other.cls


class PyModuleValue(Value):
    """A Python module."""

    __slots__ = ("module",)

    def __init__(self, module: ModuleType, source: Source | None = None) -> None:
        super().__init__(source)
        self.module = module

    def python_type(self, tr: Tracer) -> type:
        return ModuleType

    def describe(self) -> str:
        return f"module {self.module.__name__}"

    def key(self, tr: Tracer) -> Any:
        return self.module

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return tr.module_attribute(self.module, name)

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        tr.set_global(self.module.__dict__, name, value)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, PyModuleValue) and self.module is other.module
