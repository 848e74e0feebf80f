"""Classes and Python modules; questions about classes that run no code of the program's."""

from __future__ import annotations

import enum
import operator
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import HEAP_TYPE, is_of, module_of, trusts
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.function import BoundFunction
from tinycompile.capture.values.generic import subscripted

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


# Which special names the capture in progress looked for in which classes, and what it found where (in ``object`` nothing). What
# a class gains later would come first, and what was found may go, so each look is guarded when the capture ends.
looks: ContextVar[dict[tuple[type, str], tuple[type, Any]] | None] = ContextVar("looks", default=None)


def class_lookup(cls: type, name: str) -> tuple[type, Any] | None:
    """What a class's method resolution order holds under a name, unbound: (owner, object)."""
    found = next(((owner, owner.__dict__[name]) for owner in cls.__mro__ if name in owner.__dict__), None)
    seen = looks.get()
    if seen is not None and name.startswith("__"):
        seen.setdefault((cls, name), found or (object, None))
    return found


def is_pythons_own(cls: type, name: str) -> bool:
    """Whether a special method for attributes is the one that Python's own classes have."""
    found = class_lookup(cls, name)
    return found is not None and is_of(found[0], "builtins", "collections", "types")


def built_in_base(cls: type) -> Any:
    """The class that makes instances: the first that no class statement made."""
    return next(c for c in cls.__mro__ if not is_heap_type(c))


def defines(cls: type, name: str) -> bool:
    """Whether a class or one that it derives from has an attribute. (``hasattr`` would ask its metaclass, too.)"""
    return class_lookup(cls, name) is not None


def of_metaclass(cls: type, name: str) -> tuple[type, FunctionType] | None:
    """A special method that the program's metaclass of a class defines: (owner, function)."""
    found = class_lookup(type(cls), name)
    if found is None or trusts(found[0]) or not isinstance(found[1], FunctionType):
        return None
    return found


def asks_for_subclasses(cls: type) -> bool:
    """Whether an abstract class, or one below it, which it asks in turn, asks the program which classes count as its own."""
    if (class_lookup(type(cls), "__subclasscheck__") or (type,))[0] is type:
        return False
    defines(cls, "__subclasshook__")  # which it may come to have
    kinds = [cls]
    for kind in kinds:  # which grows
        hook = next(owner for owner in kind.__mro__ if "__subclasshook__" in owner.__dict__)
        if not trusts(hook) or of_metaclass(kind, "__subclasscheck__") is not None:
            return True
        kinds += type.__subclasses__(kind)
    return False


def is_pythons_metaclass(meta: type) -> bool:
    """Whether a class of classes makes instances as ``type`` does, or in Python code that was followed up to there."""
    owner, raw = class_lookup(meta, "__call__") or (type, type.__call__)
    return owner is type or (isinstance(raw, FunctionType) and not trusts(owner))


def is_plain_class(cls: type) -> bool:
    """Whether instances can be made and made again: nothing special happens when one is born or dies."""
    return class_lookup(cls, "__new__") == (object, object.__new__) and is_heap_type(cls) and not defines(cls, "__del__")


def is_heap_type(cls: type) -> bool:
    """Whether a class statement made it."""
    return bool(cls.__flags__ & HEAP_TYPE)


def is_descriptor_class(cls: type) -> bool:
    """Whether what a class has of this kind is asked when it is read or written."""
    return any(defines(cls, name) for name in ("__get__", "__set__", "__delete__"))


def takes_data(cls: type, name: str) -> bool:
    """Whether an attribute of a class of the program's can be set to plain data, and read as such: no metaclass has a say, and
    neither it nor what derives from it has a descriptor there."""
    if built_in_base(cls) is not object or trusts(cls) or (name.startswith("__") and name.endswith("__")):
        return False
    kinds = [cls]
    for kind in kinds:  # which grows
        raw, meta = class_lookup(kind, name), type(kind)
        own = any((class_lookup(meta, way) or (type,))[0] is not type for way in ("__setattr__", "__delattr__"))
        if own or defines(meta, name) or (raw is not None and is_descriptor_class(type(raw[1]))):
            return False
        kinds += type.__subclasses__(kind)
    return True


_PYTHONS_LOOKS = ((type, type.__getattribute__), (object, object.__getattribute__))


def is_of_the_program(obj: Any) -> bool:
    """Whether an object's class was made by a class statement outside the standard library."""
    return is_heap_type(type(obj)) and not trusts(type(obj))


def is_descriptor_of_the_program(raw: Any) -> bool:
    """Whether reading an attribute of a class runs code of the program's. (A compiled function gives itself or a method.)"""
    return is_of_the_program(raw) and defines(type(raw), "__get__") and not is_compiled(raw)


def is_compiled(raw: Any) -> bool:
    """Whether what a class has is a function that was compiled, which acts as its original does."""
    return module_of(type(raw)) == "tinycompile.api"


def _rules(owner: type, raw: Any) -> bool:
    """Whether what a metaclass has under a name comes before what the class has."""
    return defines(type(raw), "__set__") and not trusts(owner)


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
        for name in ("__bool__", "__len__"):
            method = self.meta_method(tr, name)
            if method is not None:
                return method.call(tr, [], {}).truth(tr)
        return True

    def argument(self, tr: Tracer) -> Any:
        return self.cls if self.cls in (int, float, bool) else super().argument(tr)

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        method = self.meta_method(tr, "__call__")
        return tr.call_class(self.cls, args, kwargs) if method is None else method.call(tr, args, kwargs)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tr.text_of(self.cls, name)
        if name in ("__mro__", "__bases__", "__base__"):
            tr.guard_bases(self.cls)
            return tr.kept(getattr(self.cls, name))
        if name == "__class__":
            return tr.from_python(type(self.cls))
        found, above = class_lookup(self.cls, name), class_lookup(type(self.cls), name)
        assigned = tr.class_attribute(self.cls, name)
        if assigned is not None:
            return assigned
        if class_lookup(type(self.cls), "__getattribute__") not in _PYTHONS_LOOKS:
            raise GraphBreak("unsupported-value", f"{self.describe()} has its own way of reading attributes")
        tr.inherited(type(self.cls), object if above is None else above[0], name)
        if name == "__dict__" and above is not None and above[0] is type:
            return tr.class_attributes(self.cls)
        if found is None or (above is not None and _rules(*above)):
            return self._of_metaclass(tr, name)
        owner, raw = found
        if isinstance(self.cls, enum.EnumType) and isinstance(raw, (enum.Enum, enum.property)):
            return tr.from_python(natively(getattr, self.cls, name))
        tr.inherited(self.cls, owner, name)
        if isinstance(raw, classmethod):
            return BoundFunction(tr.class_member(owner, name, raw.__func__), self)
        if isinstance(raw, staticmethod):
            return tr.class_member(owner, name, raw.__func__)
        if is_descriptor_of_the_program(raw):
            return self._described(tr, owner, name, raw)
        return tr.class_member(owner, name, getattr(self.cls, name))

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        if not takes_data(self.cls, name) or is_descriptor_class(value.python_type(tr)):
            super().set_attr(tr, name, value)
        tr.assign_to_class(self.cls, name, value)

    def del_attr(self, tr: Tracer, name: str) -> None:
        if tr.effects.assigned(self.cls, name) is None or name in self.cls.__dict__:
            super().del_attr(tr, name)
        tr.effects.unassign(self.cls, name)

    def _described(self, tr: Tracer, owner: type, name: str, raw: Any) -> Value:
        """What a descriptor of the program's gives for the class itself."""
        where, method = class_lookup(type(raw), "__get__") or (object, None)
        if not isinstance(method, FunctionType):
            raise GraphBreak("unsupported-value", f"descriptor {name!r} of {self.describe()}")
        tr.inherited(type(raw), where, "__get__")
        bound = BoundFunction(tr.class_member(where, "__get__", method), tr.class_member(owner, name, raw))
        return bound.call(tr, [NONE, self], {})

    def _of_metaclass(self, tr: Tracer, name: str) -> Value:
        meta = type(self.cls)
        found = class_lookup(meta, name)
        if class_lookup(self.cls, name) is None:
            tr.inherited(self.cls, object, name)
        if found is None:
            tr.inherited(meta, object, name)
        hook = self.meta_method(tr, "__getattr__") if found is None else None
        if hook is not None:
            return hook.call(tr, [Const(name)], {})
        if found is None or is_of(found[0], "builtins"):
            natively(getattr, self.cls, name)
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}, which its metaclass defines")
        owner, raw = found
        tr.inherited(meta, owner, name)
        if isinstance(raw, property):
            tr.class_member(owner, name, raw)
            if raw.fget is None:
                natively(raw.__get__, self.cls)  # Python's own complaint
            return tr.from_callable(raw.fget).call(tr, [self], {})
        if isinstance(raw, FunctionType):
            return BoundFunction(tr.class_member(owner, name, raw), self)
        if defines(type(raw), "__get__"):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}, which its metaclass defines")
        return tr.class_member(owner, name, raw)

    def meta_method(self, tr: Tracer, name: str) -> Value | None:
        """A special method that its metaclass defines in Python, bound to it."""
        found = of_metaclass(self.cls, name)
        if found is None:
            return None
        tr.inherited(type(self.cls), found[0], name)
        return BoundFunction(tr.class_member(found[0], name, found[1]), self)

    def _special_of_metaclass(self, tr: Tracer, name: str, *args: Value) -> Value:
        method = self.meta_method(tr, name)
        if method is None:
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
        return method.call(tr, args, {})

    def get_item(self, tr: Tracer, key: Value) -> Value:
        method = self.meta_method(tr, "__getitem__")
        if method is not None:
            return method.call(tr, [key], {})
        if isinstance(self.cls, enum.EnumType):
            return tr.from_python(natively(self.cls.__getitem__, key.constant(tr)))
        found = class_lookup(self.cls, "__class_getitem__")
        if found is not None and not trusts(found[0]):
            return self.get_attr(tr, "__class_getitem__").call(tr, [key], {})
        return subscripted(tr, self.cls, key)

    def contains(self, tr: Tracer, item: Value) -> bool:
        method = self.meta_method(tr, "__contains__")
        if method is None and isinstance(self.cls, enum.EnumType):
            plain = item.unasked(tr, "__hash__", "__eq__") if isinstance(item, Const) else item.constant(tr)
            if sys.version_info < (3, 12) and not isinstance(plain, enum.Enum):
                raise GraphBreak("user-exception", f"whether {self.describe()} has {item.describe()}, of which Python warns")
            return bool(natively(operator.contains, self.cls, plain))
        return super().contains(tr, item) if method is None else method.call(tr, [item], {}).truth(tr)

    def length(self, tr: Tracer) -> Value:
        if isinstance(self.cls, enum.EnumType) and of_metaclass(self.cls, "__len__") is None:
            return Const(len(self.cls))
        return self._special_of_metaclass(tr, "__len__")

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        if isinstance(self.cls, enum.EnumType) and of_metaclass(self.cls, "__iter__") is None:
            return map(tr.from_python, list(self.cls))
        return self._special_of_metaclass(tr, "__iter__").iterate(tr)

    def constant(self, tr: Tracer) -> Any:
        return self.cls

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, ClassValue) and self.cls is other.cls


def check_class(tr: Tracer, value: Value, words: str) -> ClassValue:
    """A value as a class; Python's own complaint where it is none. One that may be a class that is not known breaks."""
    if isinstance(value, ClassValue):
        return value
    if issubclass(value.python_type(tr), type):
        raise GraphBreak("unsupported-value", f"what class {value.describe()} is")
    raise TypeError(words)


FILTERS = "the filters of warnings may be changed, which decide what is told"


class PyModuleValue(Value):
    """A Python module."""

    __slots__ = ("module",)

    def __init__(self, module: ModuleType, source: Source | None = None) -> None:
        super().__init__(source)
        self.module = module

    def python_type(self, tr: Tracer) -> type:
        return tr.class_of_module(self.module)

    def describe(self) -> str:
        return f"module {self.module.__name__}"

    def key(self, tr: Tracer) -> Any:
        return self.module

    def truth(self, tr: Tracer) -> bool:
        kind = tr.class_of_module(self.module)
        if kind is not ModuleType and (defines(kind, "__bool__") or defines(kind, "__len__")):
            raise GraphBreak("unsupported-value", f"the truth of {self.describe()}, which its class tells")
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "__dict__":
            return tr.globals_value(self.module.__dict__)
        if self.module is warnings and name == "filters":
            raise GraphBreak("side-effect", FILTERS)
        return tr.module_attribute(self.module, name)

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        if self.module is warnings:
            raise GraphBreak("side-effect", f"warnings.{name} is set, which decides what is told")
        tr.set_module_attribute(self.module, name, value)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, PyModuleValue) and self.module is other.module
