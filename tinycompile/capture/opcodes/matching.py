"""Match statements: what a subject is, its keys, and its attributes by class pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import is_the_programs
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import ClassValue, check_class, defines, is_heap_type
from tinycompile.capture.values.constant import NONE, boolean
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.ir.builder import identifier

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer

# Classes whose one positional pattern is the subject itself.
_ITSELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def match_sequence(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Whether the subject on top is a sequence, for patterns in brackets: text and bytes are none."""
    frame.stack.append(_has_flag(tr, frame.stack[-1], 1 << 5))


def match_mapping(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Whether the subject on top is a mapping."""
    frame.stack.append(_has_flag(tr, frame.stack[-1], 1 << 6))


def _has_flag(tr: Tracer, subject: Value, flag: int) -> Value:
    """Whether the subject's class has a flag, which it has from those that it derives from or was registered with."""
    cls = subject.python_type(tr)
    found = bool(cls.__flags__ & flag)
    if is_heap_type(cls):
        tr.guard_bases(cls)
        held = tr.guards.hold(cls, identifier(cls.__name__)).name
        tr.guards.check(f"bool({held}.__flags__ & {flag}) is {found}", f"what {cls.__name__} is in match statements")
    return boolean(found)


def match_keys(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The values of the keys on top in the mapping below them, or None where one is missing. Its ``get`` is asked for each."""
    subject, keys = frame.stack[-2], list(frame.stack[-1].iterate(tr))
    missing = tr.from_python(object).call(tr, [], {})
    found: list[Value] = []
    for at, key in enumerate(keys):
        if any(key.key(tr) == before.key(tr) for before in keys[:at]):
            raise ValueError(f"mapping pattern checks duplicate key ({key.constant(tr)!r})")
        found.append(subject.call_method(tr, "get", [key, missing], {}))
        if found[-1] is missing:
            frame.stack.append(NONE)
            return
    frame.stack.append(TupleValue(found))


def match_class(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``kind(a, b, name=c)``: the attributes that the patterns are about, or None."""
    subject, kind, names = frame.pop(3)
    kind = check_class(tr, kind, "called match pattern must be a class")
    matches = tr.call_builtin(isinstance, [subject, kind], {}).truth(tr)
    attributes = _attributes(tr, subject, kind.cls, ins.arg, names.constant(tr)) if matches else None
    frame.stack.append(NONE if attributes is None else TupleValue(attributes))


def _attributes(tr: Tracer, subject: Value, cls: Any, positional: int, names: tuple[str, ...]) -> list[Value] | None:
    found: list[Value] = []
    if (positional and cls in _ITSELF) or (positional and not defines(cls, "__match_args__") and issubclass(cls, _ITSELF)):
        if positional > 1:
            raise TypeError(f"{cls.__name__}() accepts 1 positional sub-pattern ({positional} given)")
        found.append(subject)
    elif positional:
        known = _match_args(tr, cls)
        if len(known) < positional:
            plural = "" if len(known) == 1 else "s"
            raise TypeError(f"{cls.__name__}() accepts {len(known)} positional sub-pattern{plural} ({positional} given)")
        names = (*known[:positional], *names)
    for name in names:
        try:
            found.append(subject.get_attr(tr, name))
        except AttributeError as error:
            if not is_the_programs(error):
                raise
            return None
    return found


def _match_args(tr: Tracer, cls: Any) -> tuple[str, ...]:
    if not defines(cls, "__match_args__"):
        return ()
    if issubclass(cls, torch.Tensor):
        raise GraphBreak("unsupported-value", f"positional patterns of {cls.__name__}")
    listed = ClassValue(cls).get_attr(tr, "__match_args__").constant(tr)
    if not isinstance(listed, tuple):
        raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {type(listed).__name__})")
    return listed


HANDLERS = {
    "MATCH_SEQUENCE": match_sequence,
    "MATCH_MAPPING": match_mapping,
    "MATCH_KEYS": match_keys,
    "MATCH_CLASS": match_class,
}
