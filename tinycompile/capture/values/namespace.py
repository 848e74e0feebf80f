"""Dicts that show variables: an object's ``__dict__``, a class's, a module's globals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import HeldItem, Source
from tinycompile.capture.values.base import Kwargs, Lazy, Value, builtin_attribute
from tinycompile.capture.values.classes import is_descriptor_class
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import DELETED, NewObject, ObjectValue
from tinycompile.capture.values.opaque import Pinned

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

Entries = dict[Any, tuple[Value, Value | Lazy]]


class AttributesValue(DictValue):
    """The ``__dict__`` of an object that the program made: its attributes as they are now."""

    __slots__ = ("owner",)

    def __init__(self, owner: NewObject) -> None:
        Value.__init__(self)
        self.cls, self.holder, self.default_factory = dict, None, None
        self.owner = owner

    def describe(self) -> str:
        return f"the __dict__ of {self.owner.describe()}"

    @property
    def items(self) -> Entries:  # type: ignore[override]  # what a dict keeps, this computes
        """By name: the name and the value."""
        return {name: (Const(name), value) for name, value in self.owner.shadow.items() if value is not DELETED}

    def layout(self) -> Any:
        return tuple(self.items)

    def changed(self, tr: Tracer) -> None:
        raise GraphBreak("side-effect", f"{self.describe()} is written")

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        name = key.constant(tr)
        if type(name) is not str:
            self.changed(tr)
        tr.effects.touch(self.owner)
        self.owner.shadow[name] = value

    def del_item(self, tr: Tracer, key: Value) -> None:
        if key.key(tr) not in self.items:
            raise KeyError(key.constant(tr))
        tr.effects.touch(self.owner)
        del self.owner.shadow[key.constant(tr)]

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, AttributesValue) and self.owner is other.owner


class OutsideAttributes(DictValue):
    """The ``__dict__`` of an object from outside. It is read as it was; where either has been written, plain Python goes on."""

    __slots__ = ("inner", "owner")

    def __init__(self, owner: ObjectValue, inner: DictValue) -> None:
        Value.__init__(self, inner.source)
        self.cls, self.holder, self.default_factory = dict, None, None
        self.owner, self.inner = owner, inner

    def describe(self) -> str:
        return f"the __dict__ of {self.owner.describe()}"

    @property
    def items(self) -> Entries:  # type: ignore[override]
        """Those of the dict itself."""
        if self.owner.shadow:
            raise GraphBreak("side-effect", f"{self.describe()} is read, and attributes were set")
        return self.inner.items

    def layout(self) -> Any:
        return self.inner.layout()

    def changed(self, tr: Tracer) -> None:
        raise GraphBreak("side-effect", f"{self.describe()} is written")

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, OutsideAttributes) and self.owner is other.owner


class ClassAttributes(DictValue):
    """The ``__dict__`` of a class from outside, which is read only. A look for one name guards it; others guard all.
    Where the class has been written, plain Python goes on."""

    __slots__ = ("_found", "_tr", "of")

    def __init__(self, tr: Tracer, of: type) -> None:
        Value.__init__(self, tr.class_dict(of))
        self.cls, self.holder, self.default_factory = MappingProxyType, None, None
        self._tr, self.of = tr, of
        self._found: Entries | None = None

    def describe(self) -> str:
        return f"the __dict__ of class {self.of.__qualname__}"

    @property
    def is_constant(self) -> bool:
        return False

    @property
    def items(self) -> Entries:  # type: ignore[override]  # what a dict keeps, this computes
        """By name: the name and the value, which is looked at when it is used."""
        self._check_unwritten()
        if self._found is None:
            held = self._tr.class_dict(self.of)
            self._tr.guards.keys(held)
            named = {name: HeldItem(held, name, f"{self.of.__name__}.{name}") for name in self.of.__dict__}
            self._found = {n: (Const(n), Lazy(self.of.__dict__[n], source)) for n, source in named.items()}
        return self._found

    def _check_unwritten(self) -> None:
        if self._tr.effects.assigns(self.of):
            raise GraphBreak("side-effect", f"{self.describe()} is read, and attributes were set")

    def layout(self) -> Any:
        return tuple(self.items)

    def changed(self, tr: Tracer) -> None:
        raise GraphBreak("user-exception", f"{self.describe()} is written")

    def _value(self, tr: Tracer, at: Any) -> Value:
        """What stands there itself: a function, no method."""
        self._check_unwritten()
        raw = self.of.__dict__[at]
        if not is_descriptor_class(type(raw)) or isinstance(raw, FunctionType):
            return tr.class_member(self.of, at, raw)
        source = HeldItem(tr.class_dict(self.of), at, f"{self.of.__name__}.{at}")
        tr.guards.item(source, raw, equal=False)
        return Pinned(raw, source, GraphBreak("unsupported-value", f"{at!r} in {self.describe()} is a {type(raw).__name__}"))

    def contains(self, tr: Tracer, item: Value) -> bool:
        return self._find(tr, item) is not None

    def get_item(self, tr: Tracer, key: Value) -> Value:
        found = self._find(tr, key)
        if found is None:
            tr.lacks_key(key)
        return self._value(tr, found)

    def _get(self, tr: Tracer, args: Sequence[Value]) -> Value:
        found = self._find(tr, args[0])
        return self._value(tr, found) if found is not None else args[1] if len(args) > 1 else NONE

    def _find(self, tr: Tracer, key: Value) -> str | None:
        """The name, guarded to be there; None where it is guarded to be missing."""
        self._check_unwritten()
        name = key.constant(tr)
        if type(name) is not str:
            raise GraphBreak("unsupported-value", f"{key.describe()} in {self.describe()}")
        held = tr.class_dict(self.of)
        if name not in self.of.__dict__:
            tr.guards.absent(held, name, f"{self.of.__name__} has no own {name!r}")
            return None
        tr.guards.item(HeldItem(held, name, f"{self.of.__name__}.{name}"), self.of.__dict__[name], equal=False)
        return name

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "copy":
            return DictValue(tr, self.pairs(tr))
        if name == "get" and not kwargs:
            return self._get(tr, args)
        if name not in _READS:
            raise GraphBreak("unsupported-value", f"method {name!r} of {self.describe()}")
        return super().call_method(tr, name, args, kwargs)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return self is other  # each look at a class makes one


_READS = ("keys", "values", "items", "__len__", "__getitem__", "__iter__", "__contains__", "__reversed__")


class Globals(Value):
    """A module's variables as a dict: ``globals()``, ``vars(module)``."""

    __slots__ = ("space",)

    def __init__(self, space: dict[str, Any], source: Source) -> None:
        super().__init__(source)
        self.space = space

    def python_type(self, tr: Tracer) -> type:
        return dict

    def describe(self) -> str:
        return f"the globals of {self.space.get('__name__')}"

    def truth(self, tr: Tracer) -> bool:
        return True

    def find(self, tr: Tracer, key: Value) -> Value | None:
        """A variable's value; None where there is none."""
        name = key.constant(tr)
        return tr.variable(self.space, name) if type(name) is str else None

    def get_item(self, tr: Tracer, key: Value) -> Value:
        found = self.find(tr, key)
        if found is None:
            raise KeyError(key.constant(tr))
        return found

    def contains(self, tr: Tracer, item: Value) -> bool:
        return self.find(tr, item) is not None

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        name = key.constant(tr)
        if type(name) is not str:
            raise GraphBreak("side-effect", f"{self.describe()} get a key that is no name")
        tr.set_global(self.space, name, value)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        raise GraphBreak("unsupported-value", f"iteration over {self.describe()}")

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return builtin_attribute(tr, self, dict, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "get" and args and not kwargs:
            found = self.find(tr, args[0])
            return found or (args[1] if len(args) > 1 else NONE)
        if name in ("__getitem__", "__contains__") and len(args) == 1:
            return self.get_item(tr, args[0]) if name == "__getitem__" else boolean(self.contains(tr, args[0]))
        raise GraphBreak("unsupported-value", f"method {name!r} of {self.describe()}")

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, Globals) and self.space is other.space
