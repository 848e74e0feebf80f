"""What type hints are made of: ``list[int]``, ``Box[T]``, ``int | None``, type variables. They never change."""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Value

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

# The base of what typing makes of classes: of the library's own names, and of what these are with arguments.
_ALIAS: Any = typing.List  # noqa: UP006
_TYPINGS = tuple(c for c in type(_ALIAS).__mro__[:-2] if issubclass(type(_ALIAS[int]), c))
HINTS: tuple[type, ...] = (
    types.GenericAlias,
    types.UnionType,
    typing.TypeVar,
    typing.ParamSpec,
    type(typing.Optional),
    *_TYPINGS,
)


class Hint(Value):
    """An object that stands for a type. Called, it makes an instance of the class that it is about."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    def python_type(self, tr: Tracer) -> type:
        return type(self.obj)

    def describe(self) -> str:
        return f"type hint {self.obj}"

    @property
    def is_constant(self) -> bool:
        return True

    def constant(self, tr: Tracer) -> Any:
        return self.obj

    def key(self, tr: Tracer) -> Any:
        return self.obj

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        origin = getattr(self.obj, "__origin__", None)
        if isinstance(origin, type) and not name.startswith("__"):
            return tr.from_python(origin).get_attr(tr, name)
        return tr.from_python(natively(getattr, self.obj, name))

    def get_item(self, tr: Tracer, key: Value) -> Value:
        return subscripted(tr, self.obj, key)

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        origin = getattr(self.obj, "__origin__", None)
        if not isinstance(origin, type):
            raise GraphBreak("unknown-function", f"a call of {self.describe()}")
        made = tr.from_python(origin).call(tr, args, kwargs)
        try:
            made.set_attr(tr, "__orig_class__", self)
        except (AttributeError, GraphBreak):  # what has no room for it goes without, as in Python
            pass
        return made

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, Hint) and self.obj is other.obj


def subscripted(tr: Tracer, obj: Any, key: Value) -> Value:
    """``obj[key]`` of a class or of a hint."""
    return tr.from_python(natively(operator.getitem, obj, key.constant(tr)))
