"""Objects as text: ``str``, ``repr``, ``format`` and f-strings."""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import ClassValue, class_lookup
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.sequence import SequenceValue, TupleValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.special_results import checked
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


def printable(tr: Tracer, value: Value) -> Any:
    """The object as a string conversion sees it."""
    if isinstance(value, ClassValue):
        for name in ("__str__", "__repr__", "__format__"):
            if value.meta_method(tr, name) is not None:
                raise GraphBreak("unsupported-value", f"{value.describe()} as text, which its metaclass makes")
        return value.cls
    if isinstance(value, TensorValue):
        raise GraphBreak("data-dependent", f"{value.describe()} is made into a string")
    _guard_orders(tr, value)
    return value.unasked(tr, "__str__", "__repr__", "__format__") if isinstance(value, Const) else value.constant(tr)


def _guard_orders(tr: Tracer, value: Value) -> None:
    """Guard the orders of sets, which a text shows."""
    if isinstance(value, SetValue):
        value.iterate(tr)
    elif isinstance(value, SequenceValue):
        if isinstance(value, TupleValue):
            for name in ("__str__", "__repr__", "__format__"):
                value.leaves(tr, name)
        for part in value.values(tr):
            _guard_orders(tr, part)
    elif isinstance(value, DictValue):
        for pair in value.pairs(tr):
            for part in pair:
                _guard_orders(tr, part)


def text(tr: Tracer, value: Value, conversion: str = "s") -> str:
    """``str(value)``; ``repr`` or ``ascii`` for the conversions ``r`` and ``a``."""
    if isinstance(value, ObjectValue) and not isinstance(value, (ModuleValue, ExceptionValue)):
        for name in ("__str__", "__repr__") if conversion == "s" else ("__repr__",):
            found = class_lookup(type(value.obj), name)
            if found is not None and isinstance(found[1], FunctionType):
                method = value.special(tr, name)
                assert method is not None
                made = checked(tr, name, method.call(tr, [], {})).constant(tr)
                return str(made.encode("ascii", "backslashreplace").decode() if conversion == "a" else made)
    if isinstance(value, Const):
        return _text_of_constant(tr, value, conversion)
    return str(natively(_CONVERSIONS[conversion], printable(tr, value)))


def _is_of_object(value: Const, name: str) -> bool:
    found = class_lookup(type(value.value), name)
    return found is not None and found[1] is object.__dict__[name]


def _text_of_constant(tr: Tracer, value: Const, conversion: str) -> str:
    name = "__str__" if conversion == "s" else "__repr__"
    answer = tr.own_answer(value, name)
    if answer is None and name == "__str__" and _is_of_object(value, name):  # which asks for the other
        answer = tr.own_answer(value, "__repr__")
    if answer is None:
        return str(natively(_CONVERSIONS[conversion], value.value))
    made = answer.constant(tr)
    return str(made.encode("ascii", "backslashreplace").decode() if conversion == "a" else made)


def formatted(tr: Tracer, value: Value, spec: str = "") -> str:
    """``format(value, spec)``."""
    if isinstance(value, ObjectValue) and not isinstance(value, ModuleValue):
        found = class_lookup(type(value.obj), "__format__")
        if found is not None and isinstance(found[1], FunctionType):
            method = value.special(tr, "__format__")
            assert method is not None
            return str(checked(tr, "__format__", method.call(tr, [Const(spec)], {})).constant(tr))
        if not spec:
            return text(tr, value)
    if isinstance(value, Const):
        answer = tr.own_answer(value, "__format__", Const(spec))
        if answer is not None:
            return str(answer.constant(tr))
        if not spec:
            return text(tr, value)
        found = class_lookup(type(value.value), "__format__")
        if found is not None and found[1] is enum.Enum.__dict__["__format__"]:  # which asks for the text
            return str(natively(format, text(tr, value), spec))
        return str(natively(format, value.value, spec))
    return str(natively(format, printable(tr, value), spec))
