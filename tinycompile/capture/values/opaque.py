"""``Opaque``: an object from outside that capture can't model. It may be passed on; whatever asks it something breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Opaque(Value):
    """Nothing about it is guarded. ``why``: the break that any question leads to."""

    __slots__ = ("why",)

    def __init__(self, source: Source, why: GraphBreak) -> None:
        super().__init__(source)
        self.why = why

    def _refuse(self) -> NoReturn:
        raise GraphBreak(self.why.kind, self.why.reason)

    def python_type(self, tr: Tracer) -> type:
        self._refuse()

    def constant(self, tr: Tracer) -> Any:
        self._refuse()

    def argument(self, tr: Tracer) -> Any:
        self._refuse()

    def key(self, tr: Tracer) -> Any:
        self._refuse()

    def truth(self, tr: Tracer) -> bool:
        self._refuse()

    def get_attr(self, tr: Tracer, name: str) -> Value:
        self._refuse()

    def set_attr(self, tr: Tracer, name: str, value: Value) -> None:
        self._refuse()

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        self._refuse()

    def get_item(self, tr: Tracer, key: Value) -> Value:
        self._refuse()

    def set_item(self, tr: Tracer, key: Value, value: Value) -> None:
        self._refuse()

    def del_item(self, tr: Tracer, key: Value) -> None:
        self._refuse()

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        self._refuse()

    def same_object(self, tr: Tracer, other: Value) -> bool:
        if isinstance(other, Const) and other.value is None and self.source is not None:
            tr.guards.check(f"{self.source.text} is not None", f"{self.source.label} is not None")
            return False
        return self._refuse()


class Pinned(Opaque):
    """A property, static or class method as it stands in a class, known by identity: its class and its functions are known."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source, why: GraphBreak) -> None:
        super().__init__(source, why)
        self.obj = obj

    def python_type(self, tr: Tracer) -> type:
        return type(self.obj)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if type(self.obj) in _FUNCTIONS and name in _FUNCTIONS[type(self.obj)]:
            return tr.from_python(getattr(self.obj, name))
        return super().get_attr(tr, name)


_FUNCTIONS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
