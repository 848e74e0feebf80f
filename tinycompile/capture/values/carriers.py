"""Kinds of values that can't always be carried over a break, or that can hold one: capture notes where each was made."""

from __future__ import annotations

from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import FunctionValue
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import NewObject
from tinycompile.capture.values.partial import PartialValue
from tinycompile.capture.values.sequence import SequenceValue
from tinycompile.capture.values.sets import SetValue

CARRIERS: tuple[type[Value], ...] = (
    IteratorValue,
    ExceptionValue,
    NewObject,
    PartialValue,
    FunctionValue,
    SequenceValue,
    DictValue,
    SetValue,
    ArrayValue,
)
