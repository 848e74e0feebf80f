"""Which of Python's objects a Value without a Source of its own stands for: ``is`` tells constants of the code, what came from
outside and what is computed apart."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

from tinycompile.capture.guards import GuardSet
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const, may_be_another
from tinycompile.capture.values.function import CodeConstant
from tinycompile.capture.values.sequence import SequenceValue, TupleValue


def _is_among(obj: Any, operands: Iterable[Any]) -> bool:
    """Whether an object is that of one of these Values, or of a part of one."""
    return any(
        v.value is obj if isinstance(v, Const) else isinstance(v, SequenceValue) and _is_among(obj, v.items) for v in operands
    )


class Identities:
    """A part of ``Tracer``."""

    guards: GuardSet

    def __init__(self) -> None:
        self.met: dict[int, tuple[Any, Source]] = {}  # by id of a Value: what does not change
        self.constant_tuples: dict[int, Any] = {}  # by id of a Value: tuples that the program's code holds
        self._code_constants: dict[int, tuple[Any, Value]] = {}  # by id: those that were loaded
        self._computed: dict[int, Any] = {}  # by id: what is another object in each call
        self._numbers_and_texts: dict[int, tuple[Any, Source]] = {}  # by id: those that came from outside
        self._kept: dict[int, tuple[Any, Value]] = {}  # by id: parts of what guards know by identity
        self._keys_met: dict[int, tuple[Value, Any, Source]] = {}  # by id of a Value: keys of dicts from outside

    def from_python(self, obj: Any) -> Value:
        """The Value of an object that needs no guard."""
        raise NotImplementedError

    def forget_identities(self) -> None:
        """Let go of the objects of the call."""
        for table in (self.met, self.constant_tuples, self._code_constants, self._computed, self._numbers_and_texts):
            table.clear()
        self._kept.clear()
        self._keys_met.clear()

    def note_met(self, value: Value, obj: Any, source: Source) -> None:
        """A Value stands for something from outside that does not change."""
        self.met[id(value)] = obj, source
        if may_be_another(obj):
            self._numbers_and_texts.setdefault(id(obj), (obj, source))

    def note_key(self, value: Value, key: Any, source: Source) -> None:
        """A Value stands for a key of a dict from outside, which is guarded to equal this one."""
        self._keys_met[id(value)] = value, key, source
        if may_be_another(key):
            self._numbers_and_texts.setdefault(id(key), (key, source))

    def kept(self, obj: Any) -> Value:
        """The Value of a part of something immutable that guards know by identity: in each call it is this very object."""
        if type(obj) is not tuple and not may_be_another(obj):
            return self.from_python(obj)
        known = self._kept.get(id(obj))
        if known is None:
            known = self._kept[id(obj)] = obj, self.from_python(obj)
            if type(obj) is tuple:
                self.constant_tuples[id(known[1])] = obj
        return known[1]

    def origin(self, value: Value) -> tuple[Any, Source] | None:
        """The object, and where it is found, of a Value that stands for one which does not change and lives outside."""
        known = self.constant_tuples.get(id(value))
        if known is not None:
            return known, self.guards.hold(known, "constant")
        key = self._keys_met.get(id(value))
        return self.met.get(id(value)) if key is None else key[1:]

    def code_constant(self, obj: Any) -> Value:
        """A constant of a code object: one Value, however often it is loaded."""
        known = self._code_constants.get(id(obj))
        if known is None:
            if type(obj) is tuple:
                made: Value = TupleValue(map(self.code_constant, obj))
                self.constant_tuples[id(made)] = obj
            else:
                made = CodeConstant(obj) if isinstance(obj, CodeType) else self.from_python(obj)
            known = self._code_constants[id(obj)] = obj, made
        return known[1]

    def is_code_constant(self, obj: Any) -> bool:
        """Whether this very object is one that the program's code holds, or something that does not change."""
        return id(obj) in self._code_constants or id(obj) in self._kept

    def computed(self, obj: Any, *operands: Value) -> Value:
        """The Value of what Python computes of some Values: another object in each call, unless it is one of these."""
        for part in obj if type(obj) in (tuple, list) else (obj,):
            if may_be_another(part) and not _is_among(part, operands):
                self._computed[id(part)] = part
        return self.from_python(obj)

    def is_computed(self, obj: Any) -> bool:
        """Whether this very object was computed in here, and each call has another."""
        return id(obj) in self._computed and not self.is_code_constant(obj)

    def source_of(self, obj: Any) -> Source | None:
        """Where a number or a text from outside was met, that may be another object in the next call."""
        found = self._numbers_and_texts.get(id(obj))
        return None if found is None or self.is_code_constant(obj) else found[1]
