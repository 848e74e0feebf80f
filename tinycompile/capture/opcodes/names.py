"""Variables, globals, cells, attributes and items."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from tinycompile.capture import inheritance
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.opcodes.stack import NULL, LazyStack, callable_slots
from tinycompile.capture.values.base import Lazy, MethodOf
from tinycompile.capture.values.classes import class_lookup
from tinycompile.capture.values.function import Cell
from tinycompile.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from tinycompile.capture.bytecode import Instruction
    from tinycompile.capture.execute import Frame
    from tinycompile.capture.tracer import Tracer


# --- local variables ---


def load_fast(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push a local variable, or its cell."""
    value = frame.slots.get(ins.arg)
    if isinstance(value, Lazy) and not isinstance(frame.stack, LazyStack):
        value = frame.slots[ins.arg] = tr.force(value)
    if value is None:
        raise UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")
    frame.stack.append(value)


def load_fast_and_clear(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push what the slot holds, if anything, and empty it (inlined comprehensions)."""
    value = frame.slots.pop(ins.arg, None)
    frame.stack.append(NULL if value is None else value)


def store_fast(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Assign a local variable."""
    value = frame.take()
    if value is NULL:
        frame.slots.pop(ins.arg, None)
        return
    if type(value) is Lazy and type(value.obj) is types.CellType:  # a variable's, which an inlined comprehension put aside
        value = tr.force(value)
    frame.slots[ins.arg] = value
    tr.name_after(value, ins.arg)


def delete_fast(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``del x``."""
    if frame.slots.pop(ins.arg, None) is None:
        raise UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")


# --- cells ---


def make_cell(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Put the variable's value, if it has one, into a fresh cell."""
    frame.slots[ins.arg] = Cell(frame.slots.get(ins.arg))


def load_deref(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push a cell's content."""
    frame.stack.append(frame.slots[ins.arg].get(tr, ins.arg))


def store_deref(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Assign through a cell."""
    value = frame.stack.pop()
    frame.slots[ins.arg].set(tr, value)
    tr.name_after(value, ins.arg)


def delete_deref(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``del`` of a cell variable."""
    frame.slots[ins.arg].get(tr, ins.arg)
    frame.slots[ins.arg].set(tr, None)


# --- globals ---


def load_global(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Push a global or a builtin."""
    frame.stack.append(tr.global_value(frame.globals, ins.arg))


def store_global(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """Assign a global."""
    tr.set_global(frame.globals, ins.arg, frame.stack.pop())


def delete_global(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``del`` of a global."""
    raise GraphBreak("side-effect", f"the global {ins.arg!r} was deleted")


# --- attributes ---


def load_attr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``x.name``."""
    frame.stack.append(frame.stack.pop().get_attr(tr, ins.arg))


def load_method(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``x.name`` that is called next; a module's or an object's method keeps its receiver."""
    receiver = frame.stack.pop()
    own = receiver.source is not None and isinstance(receiver, ObjectValue) and _has_method(type(receiver.obj), ins.arg)
    frame.stack += callable_slots(MethodOf(receiver, ins.arg) if own else receiver.get_attr(tr, ins.arg))


_METHODS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, classmethod, staticmethod,
)  # fmt: skip


def _has_method(cls: type, name: str) -> bool:
    """Whether reading ``name`` of an object neither fails nor runs anything: it may as well be read when it is called."""
    found = class_lookup(cls, name)
    return found is not None and isinstance(found[1], _METHODS)


def store_attr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``x.name = value``."""
    value, target = frame.pop(2)
    target.set_attr(tr, ins.arg, value)


def delete_attr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``del x.name``."""
    frame.stack.pop().del_attr(tr, ins.arg)


def load_super_attr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``super().name`` (3.12 on)."""
    name, method, named = ins.arg
    asked, cls, receiver = frame.pop(3)
    if asked.key(tr) is super:
        found = inheritance.super_attribute(tr, cls, receiver, name)
    else:  # a global of the program's
        found = asked.call(tr, [cls, receiver] if named else [], {}).get_attr(tr, name)
    frame.stack += callable_slots(found) if method else [found]


# --- items ---


def binary_subscr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``x[key]``."""
    container, key = frame.pop(2)
    frame.stack.append(container.get_item(tr, key))


def store_subscr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``x[key] = value``."""
    value, container, key = frame.pop(3)
    container.set_item(tr, key, value)


def delete_subscr(tr: Tracer, frame: Frame, ins: Instruction) -> None:
    """``del x[key]``."""
    container, key = frame.pop(2)
    container.del_item(tr, key)


HANDLERS = {
    "LOAD_FAST": load_fast,
    "LOAD_FAST_AND_CLEAR": load_fast_and_clear,
    "STORE_FAST": store_fast,
    "DELETE_FAST": delete_fast,
    "MAKE_CELL": make_cell,
    "LOAD_DEREF": load_deref,
    "STORE_DEREF": store_deref,
    "DELETE_DEREF": delete_deref,
    "LOAD_GLOBAL": load_global,
    "STORE_GLOBAL": store_global,
    "DELETE_GLOBAL": delete_global,
    "LOAD_ATTR": load_attr,
    "LOAD_METHOD": load_method,
    "STORE_ATTR": store_attr,
    "DELETE_ATTR": delete_attr,
    "LOAD_SUPER_ATTR": load_super_attr,
    "BINARY_SUBSCR": binary_subscr,
    "STORE_SUBSCR": store_subscr,
    "DELETE_SUBSCR": delete_subscr,
}
