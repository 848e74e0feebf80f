"""``Value``: a Python object as capture knows it. Subclasses answer operations; what a kind doesn't answer breaks the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.arguments import check_arguments
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import is_of, module_of

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

Kwargs = dict[str, "Value"]


@dataclass(frozen=True, slots=True)
class Lazy:
    """An object from outside that nobody has looked at yet: no guard on it exists."""

    obj: Any
    source: Source


class Value:
    """Base of all values. ``source`` says where it came from, None for what was made inside.

    Python's identity of objects is Python's identity of Values: two names of one object hold one Value."""

    __slots__ = ("__weakref__", "source")

    source: Source | None

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # --- what it is ---

    def python_type(self, tr: Tracer) -> type:
        """``type(x)``."""
        raise GraphBreak("unsupported-value", f"the type of {self.describe()}")

    def describe(self) -> str:
        """A few words for messages."""
        name = type(self).__name__.removesuffix("Value").lower()
        return f"{name} {self.source.label}" if self.source is not None else f"a {name}"

    @property
    def is_constant(self) -> bool:
        """Whether ``constant`` gives the object itself, made of immutable parts only."""
        return False

    def constant(self, tr: Tracer) -> Any:
        """The object; breaks when its parts are not all known."""
        raise GraphBreak("unsupported-value", f"a plain Python value is needed, not {self.describe()}")

    def argument(self, tr: Tracer) -> Any:
        """As an argument of a torch function: FakeTensors, numbers, symbolic dims, sequences of these."""
        raise GraphBreak("unsupported-argument", self.describe())

    def key(self, tr: Tracer) -> Any:
        """A hashable object that is equal for equal dict keys."""
        return tr.keyed(self)

    def identity_key(self, tr: Tracer) -> Any:
        """The same for what is told apart by which objects it is about."""
        return self.key(tr)

    # --- operations ---

    def truth(self, tr: Tracer) -> bool:
        """``bool(x)``."""
        raise GraphBreak("unsupported-value", f"the truth of {self.describe()}")

    def get_attr(self, tr: Tracer, name: str) -> Value:
        """``x.name``. Raises AttributeError where Python would."""
        raise GraphBreak("unsupported-value", f"attribute {name!r} of {self.describe()}")

    def has_attr(self, tr: Tracer, name: str) -> bool:
        """``hasattr(x, name)``."""
        try:
            self.get_attr(tr, name)
        except AttributeError as error:
            if not is_the_programs(error):
                raise
            return False
        return True

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        """``x.name = value``."""
        raise GraphBreak("side-effect", f"attribute {name!r} of {self.describe()} was set")

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """``x(*args, **kwargs)``."""
        raise GraphBreak("unknown-function", f"a call of {self.describe()}")

    def del_attr(self, tr: Tracer, name: str) -> None:
        """``del x.name``."""
        raise GraphBreak("side-effect", f"attribute {name!r} of {self.describe()} was deleted")

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        """``x.name(*args, **kwargs)``."""
        return self.get_attr(tr, name).call(tr, args, kwargs)

    def get_item(self, tr: Tracer, key: Value) -> Value:
        """``x[key]``."""
        return self.call_method(tr, "__getitem__", [key], {})

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        """``x[key] = value``."""
        raise GraphBreak("side-effect", f"an item of {self.describe()} was set")

    def del_item(self, tr: Tracer, key: Value) -> None:
        """``del x[key]``."""
        raise GraphBreak("side-effect", f"an item of {self.describe()} was deleted")

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        """``iter(x)``."""
        raise GraphBreak("unsupported-value", f"iteration over {self.describe()}")

    def filling(self, tr: Tracer) -> Iterator[Value]:
        """``iter(x)``, for a list or a tuple that is made or filled: these ask how long it will be."""
        return self.iterate(tr)

    def length(self, tr: Tracer) -> Value:
        """``len(x)``."""
        return self.call_method(tr, "__len__", [], {})

    def contains(self, tr: Tracer, item: Value) -> bool:
        """``item in x``."""
        return any(item is other or tr.equal(other, item) for other in self.iterate(tr))

    def same_object(self, tr: Tracer, other: Value) -> bool:
        """``x is other``, for two Values that are not one."""
        if self.source is not None and other.source is not None:
            tr.guards.check(f"{self.source.text} is not {other.source.text}", "which objects are one")
        return False


class MethodOf(Value):
    """``receiver.name`` of a built-in kind, not called yet."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver, self.name = receiver, name

    def describe(self) -> str:
        return f"method {self.name!r} of {self.receiver.describe()}"

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        cls = getattr(self.receiver, "cls", object)
        if isinstance(cls, type) and _is_built_in(cls) and hasattr(cls, self.name):
            check_arguments(getattr(cls, self.name), args, kwargs, bound=True)
        return self.receiver.call_method(tr, self.name, args, kwargs)

    def truth(self, tr: Tracer) -> bool:
        return True


def _is_built_in(cls: type) -> bool:
    return cls is torch.Size or is_of(cls, "builtins", "collections")


def builtin_attribute(tr: Tracer, value: Value, cls: type, name: str) -> Value:
    """``value.name`` of a built-in kind: a method, to be called, or what its class has that is none. Raises AttributeError in
    Python's words where the class has nothing. (``hasattr`` would ask ``type``, too.)"""
    if name == "__class__":
        return tr.from_python(cls)
    owner = next((c for c in cls.__mro__ if name in c.__dict__), None)
    if owner is None:
        raise no_attribute(value, cls, name)
    raw = owner.__dict__[name]
    return tr.from_python(raw) if raw is None or isinstance(raw, str) else MethodOf(value, name)


_SHOWN = ("itertools", "types", "torch.return_types")  # modules whose classes are shown with their names


def no_attribute(value: Value, cls: type, name: str) -> AttributeError:
    """Python's own complaint."""
    if module_of(cls) in ("collections", "torch"):  # whose names are shown with or without the module's
        try:
            getattr(cls(), name)
        except AttributeError as error:
            return AttributeError(str(error), name=name)
    shown = f"{module_of(cls)}.{cls.__name__}" if module_of(cls) in _SHOWN else cls.__name__
    return AttributeError(f"'{shown}' object has no attribute '{name}'", name=name)
