"""Building containers, slices and strings; unpacking."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tinycompile.capture import strings
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import defines
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.mapping import DictValue, pairs_of_mapping
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.opaque import Opaque
from tinycompile.capture.values.sequence import ListValue, SliceValue, TupleValue
from tinycompile.capture.values.sets import SetValue

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


def build_tuple(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``(a, b)``."""
    frame.stack.append(TupleValue(frame.pop(ins.arg)))


def build_list(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``[a, b]``."""
    frame.stack.append(ListValue(frame.pop(ins.arg)))


def build_set(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{a, b}``."""
    frame.stack.append(SetValue(tr, frame.pop(ins.arg)))


def build_map(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{k: v}``."""
    flat = frame.pop(2 * ins.arg)
    frame.stack.append(DictValue(tr, zip(flat[::2], flat[1::2], strict=True)))


def build_const_key_map(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{"k": v}`` with constant keys."""
    keys = frame.stack.pop().values(tr)
    frame.stack.append(DictValue(tr, zip(keys, frame.pop(ins.arg), strict=True)))


def build_string(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Join the parts of an f-string."""
    parts = frame.pop(ins.arg)
    frame.stack.append(tr.computed("".join(v.constant(tr) for v in parts), *parts))


def build_slice(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a:b:c``."""
    parts = frame.pop(ins.arg)
    frame.stack.append(SliceValue([*parts, *[NONE] * (3 - len(parts))]))


def format_value(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{value!conversion:spec}``."""
    conversion, has_spec = ins.arg
    spec = frame.stack.pop().constant(tr) if has_spec else ""
    value = frame.stack.pop()
    if conversion:
        value = tr.computed(strings.text(tr, value, conversion), value)
    frame.stack.append(tr.computed(strings.formatted(tr, value, spec), value))


def convert_value(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{value!r}`` before a format (3.13)."""
    value = frame.stack.pop()
    frame.stack.append(tr.computed(strings.text(tr, value, ins.arg), value))


def check_iterable(value: Value, stars: str) -> None:
    """Leave stars before what is no container to Python, in its words."""
    if isinstance(value, Const) and not (stars == "*" and hasattr(type(value.value), "__iter__")):
        raise GraphBreak("user-exception", f"{value.describe()} after {stars}")
    if isinstance(value, ObjectValue) and stars == "*":
        if not any(defines(type(value.obj), name) for name in ("__iter__", "__getitem__")):
            raise GraphBreak("user-exception", f"{value.describe()} after {stars}")


# --- growing, in comprehensions and displays with stars ---


def _grown(tr: Tracer, frame: Frame, ins: Instruction) -> Any:
    """The container that an instruction grows. One that plain Python began and that can't be modelled breaks the graph."""
    container = frame.stack[-ins.arg]
    if isinstance(container, Opaque):
        raise GraphBreak(container.why.kind, container.why.reason)
    return container


def list_append(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Comprehension step."""
    value = frame.stack.pop()
    _grown(tr, frame, ins).append(tr, [value])


def list_extend(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``[*a]``."""
    value = frame.stack.pop()
    check_iterable(value, "*")
    _grown(tr, frame, ins).extend(tr, [value])


def set_add(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Comprehension step."""
    value = frame.stack.pop()
    _grown(tr, frame, ins).add(tr, value)


def set_update(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{*a}``."""
    value = frame.stack.pop()
    _grown(tr, frame, ins).take_over(tr, value)


def map_add(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Comprehension step."""
    key, value = frame.pop(2)
    _grown(tr, frame, ins).set_item(tr, key, value)


def dict_update(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``{**a}``."""
    other = frame.stack.pop()
    check_iterable(other, "**")
    _grown(tr, frame, ins).update(tr, other)


def dict_merge(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``f(**a, **b)``: a repeated key is an error."""
    other = frame.stack.pop()
    target = _grown(tr, frame, ins)
    if not other.has_attr(tr, "keys"):
        raise GraphBreak("user-exception", f"argument after ** must be a mapping, not {other.python_type(tr).__name__}")
    for key, value in pairs_of_mapping(tr, other):
        if target.contains(tr, key):
            raise GraphBreak("user-exception", f"got multiple values for keyword argument {key.constant(tr)!r}")
        target.set_item(tr, key, value)


def list_to_tuple(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """The end of ``(*a, b)``."""
    frame.stack.append(TupleValue(frame.stack.pop().values(tr)))


# --- unpacking ---


def _check_unpackable(tr: Tracer, value: Value) -> None:
    """Where there is no way to ask what is unpacked for items, Python says so in other words than elsewhere."""
    kind = value.python_type(tr) if isinstance(value, (Const, ObjectValue)) else list
    if not any(defines(kind, name) for name in ("__iter__", "__getitem__")):
        if isinstance(value, ObjectValue):
            value.special(tr, "__iter__"), value.special(tr, "__getitem__")  # guards that it lacks them
        raise TypeError(f"cannot unpack non-iterable {kind.__name__} object")


def unpack_sequence(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a, b = x``."""
    value = frame.stack.pop()
    _check_unpackable(tr, value)
    values = list(itertools.islice(value.iterate(tr), ins.arg + 1))  # an iterator is asked for one more
    if len(values) < ins.arg:
        raise ValueError(f"not enough values to unpack (expected {ins.arg}, got {len(values)})")
    if len(values) > ins.arg:
        raise ValueError(f"too many values to unpack (expected {ins.arg})")
    frame.stack += reversed(values)


def unpack_ex(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``a, *b, c = x``."""
    before, after = ins.arg
    value = frame.stack.pop()
    _check_unpackable(tr, value)
    iterator = tr.iter(value)
    values = list(itertools.islice(tr.steps(iterator), before))
    if len(values) == before:
        values += iterator.filling(tr)  # (which asks it for an iterator again)
    if len(values) < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(values)})")
    middle = ListValue(values[before : len(values) - after])
    frame.stack += reversed([*values[:before], middle, *values[len(values) - after :]])


HANDLERS = {
    "BUILD_TUPLE": build_tuple,
    "BUILD_LIST": build_list,
    "BUILD_SET": build_set,
    "BUILD_MAP": build_map,
    "BUILD_CONST_KEY_MAP": build_const_key_map,
    "BUILD_STRING": build_string,
    "BUILD_SLICE": build_slice,
    "FORMAT_VALUE": format_value,
    "CONVERT_VALUE": convert_value,
    "LIST_APPEND": list_append,
    "LIST_EXTEND": list_extend,
    "SET_ADD": set_add,
    "SET_UPDATE": set_update,
    "MAP_ADD": map_add,
    "DICT_UPDATE": dict_update,
    "DICT_MERGE": dict_merge,
    "LIST_TO_TUPLE": list_to_tuple,
    "UNPACK_SEQUENCE": unpack_sequence,
    "UNPACK_EX": unpack_ex,
}
