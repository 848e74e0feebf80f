"""``operator.itemgetter(1)`` and its relatives; methods that dispatch; signatures of functions."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
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


class DispatchedMethod(Value):
    """``receiver.name``, where the class has a ``functools.singledispatchmethod``."""

    __slots__ = ("made_by", "receiver")

    def __init__(self, made_by: functools.singledispatchmethod[Any], receiver: Value) -> None:
        super().__init__()
        self.made_by, self.receiver = made_by, receiver

    def describe(self) -> str:
        return f"a dispatching method of {self.receiver.describe()}"

    def truth(self, tr: Tracer) -> bool:
        return True

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        return tr.call_builtin(self.made_by, [self.receiver, *args], kwargs)

    def same_object(self, tr: Tracer, other: Value) -> bool:
        raise GraphBreak("unsupported-value", f"which object {self.describe()} is")  # (from 3.13 they are kept)


class SignatureValue(Value):
    """An ``inspect.Signature``, of which only the parameters' names are read."""

    __slots__ = ("parameters",)

    def __init__(self, parameters: Value) -> None:
        super().__init__()
        self.parameters = parameters

    def python_type(self, tr: Tracer) -> type:
        return inspect.Signature

    def describe(self) -> str:
        return "a signature"

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return self.parameters if name == "parameters" else super().get_attr(tr, name)


class ParameterValue(Value):
    """An ``inspect.Parameter``: there, and not looked into."""

    __slots__ = ()

    def python_type(self, tr: Tracer) -> type:
        return inspect.Parameter

    def describe(self) -> str:
        return "a parameter of a signature"


def _dotted(tr: Tracer, subject: Value, path: str) -> Value:
    for name in path.split("."):
        subject = subject.get_attr(tr, name)
    return subject
