"""``operator.itemgetter(1)`` and its relatives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class Getter(Value):
    """An instance of ``itemgetter``, ``attrgetter`` or ``methodcaller``."""

    __slots__ = ("args", "cls", "kwargs")

    def __init__(self, cls: Any, args: Sequence[Value], kwargs: Kwargs) -> None:
        super().__init__()
        self.cls, self.args, self.kwargs = cls, list(args), dict(kwargs)

    def python_type(self, tr: Tracer) -> type:
        return self.cls

    def describe(self) -> str:
        return f"an {self.cls.__name__}"

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        (subject,) = args
        if self.cls is operator.methodcaller:
            return subject.call_method(tr, self.args[0].constant(tr), self.args[1:], self.kwargs)
        read: Callable[[Value], Value] = (
            (lambda key: subject.get_item(tr, key))
            if self.cls is operator.itemgetter
            else (lambda name: _dotted(tr, subject, name.constant(tr)))
        )
        found = [read(a) for a in self.args]
        return found[0] if len(found) == 1 else TupleValue(found)


def _dotted(tr: Tracer, subject: Value, path: str) -> Value:
    for name in path.split("."):
        subject = subject.get_attr(tr, name)
    return subject
