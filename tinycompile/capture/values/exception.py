"""Exceptions that the program raises and catches under capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.constant import NONE, is_constant_object

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class ExceptionValue(Value):
    """An exception object made of constants. It can't be carried over a break: it knows where it was raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def python_type(self, tr: Tracer) -> type:
        return type(self.error)

    def describe(self) -> str:
        return f"exception {type(self.error).__name__}"

    def constant(self, tr: Tracer) -> Any:
        if all(map(is_constant_object, self.error.args)):
            return self.error
        raise GraphBreak("unsupported-value", f"{self.describe()} of objects as text")

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "args":
            return tr.from_python(self.constant(tr).args)
        if name == "__class__":
            return tr.from_python(type(self.error))
        if name in ("__cause__", "__context__"):
            found = getattr(self.error, name)
            return NONE if found is None else ExceptionValue(found)
        if name in ("__traceback__", "with_traceback", "add_note", "__notes__"):
            raise GraphBreak("unsupported-value", f"{name} of {self.describe()}")
        found = getattr(self.error, name)
        return MethodOf(self, name) if callable(found) else tr.from_python(found)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name in ("__str__", "__repr__"):
            return tr.from_python(getattr(self.constant(tr), name)())
        raise GraphBreak("unsupported-value", f"method {name!r} of {self.describe()}")


class Traceback(Value):
    """What ``__exit__`` gets as its third argument: it can be passed on, not looked at."""

    __slots__ = ()

    def truth(self, tr: Tracer) -> bool:
        return True
