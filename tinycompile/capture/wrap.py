"""From Python objects to Values. One with a source gets the guards that its Value needs; one without is trusted to stay."""

from __future__ import annotations

import functools
import re
import sys
from collections import OrderedDict, defaultdict, deque
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ProxyTypes

import numpy as np
import torch

from tinycompile.base.device import Device
from tinycompile.capture import wrap_containers as containers
from tinycompile.capture import wrap_data as data
from tinycompile.capture import wrap_functions as functions
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.kernel_writes import is_kernel
from tinycompile.capture.pins import guard_kind, is_known_by_identity, pin
from tinycompile.capture.sources import Source
from tinycompile.capture.trust import BUILTIN_TYPES, module_of, trusts
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.classes import is_heap_type
from tinycompile.capture.values.constant import Const, is_constant_object
from tinycompile.capture.values.descriptors import has_own_identity, hides_dict, says_own_class
from tinycompile.capture.values.generic import HINTS, Hint
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.opaque import Opaque
from tinycompile.capture.values.sequence import ListValue, SliceValue, TupleValue
from tinycompile.capture.values.set_steps import Snapshot
from tinycompile.capture.values.sets import SetValue
from tinycompile.eager.tensor import Tensor as OurTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


# --- with a source ------------------------------------------------------------------------------------------


def wrap(tr: Tracer, obj: Any, source: Source) -> Value:
    """The Value of an object from outside, guarded. Where breaks can be resumed, one that can't be modelled is Opaque."""
    if issubclass(type(obj), ProxyTypes):
        return _unmodelled(tr, source, f"{source.label} is a weak proxy: what it stands for answers for it, while it lives")
    if issubclass(type(obj), super):
        return _unmodelled(tr, source, f"{source.label} is a super object")
    if _has_hook(obj):
        plain = not hides_dict(type(obj)) and not has_own_identity(type(type(obj))) and functions.is_plain(type(obj))
        if plain and is_known_by_identity(tr, obj, source):
            return functions.object_at(tr, obj, pin(tr, obj, source))
        if tr.options.resume:
            why = f"{source.label} has a __getattribute__, or says which class it has or equals: guards call that"
            return Opaque(source, GraphBreak("unsupported-value", why))
    cls = obj if isinstance(obj, type) else type(obj)
    if tr.resumed and _is_of_this_call(tr, cls):
        return Opaque(source, GraphBreak("class-body", f"{cls.__name__} is another class in each call"))
    try:
        return _wrap(tr, obj, source)
    except GraphBreak as why:
        guard_kind(tr, obj, source)  # what broke for one kind need not break for another
        if not tr.options.resume:
            raise
        why.__traceback__ = why.__context__ = None  # they would keep alive what the call was about
        return Opaque(source, why)


def of_an_object(tr: Tracer, source: Source) -> Value:
    """A dict that is an object's ``__dict__``, and the object's attributes were looked at: they are followed there."""
    return _unmodelled(tr, source, f"{source.label} is the __dict__ of an object that is used beside it")


def _unmodelled(tr: Tracer, source: Source, reason: str) -> Value:
    why = GraphBreak("unsupported-value", reason)
    if not tr.options.resume:
        raise why
    return Opaque(source, why)


def _wrap(tr: Tracer, obj: Any, source: Source) -> Value:
    if is_constant_object(obj):
        return data.constant(tr, obj, source)
    if isinstance(obj, (torch.Tensor, OurTensor)):
        return data.tensor(tr, obj, source)
    rule = _RULES.get(type(obj))
    if type(obj) is dict and "__name__" in obj and _is_namespace(tr, obj):
        pin(tr, obj, source)
        return tr.globals_value(obj)
    if rule is not None:
        return rule(tr, obj, source)
    if isinstance(obj, (torch.nn.Module, ModuleType)):
        return functions.pinned(tr, obj, source)
    if isinstance(obj, tuple) and (hasattr(obj, "_fields") or module_of(type(obj)) == "torch.return_types"):
        return containers.tuple_(tr, obj, source)
    if isinstance(obj, (type, *HINTS, *BUILTIN_TYPES)) or module_of(type(obj)) == "tinycompile.api" or is_kernel(obj):
        return functions.pinned(tr, obj, source)
    if isinstance(obj, (list, tuple, dict, set, frozenset)):
        return containers.subclassed(tr, obj, source)
    if isinstance(obj, (torch.Generator, BaseException)):
        raise GraphBreak("unsupported-value", f"{source.label} is a {module_of(type(obj))}.{type(obj).__qualname__}")
    return functions.plain_object(tr, obj, source)


def _is_of_this_call(tr: Tracer, cls: type) -> bool:
    """Whether a class statement of the very function that goes on here made a class."""
    inside = f"{tr.frames[0].code.co_qualname}.<locals>." if tr.frames else ""
    return bool(inside) and is_heap_type(cls) and cls.__qualname__.startswith(inside)


def _is_namespace(tr: Tracer, obj: dict[str, Any]) -> bool:
    """Whether a dict holds the variables of a module, which code may change in other ways, too."""
    module = sys.modules.get(obj["__name__"]) if type(obj["__name__"]) is str else None
    return getattr(module, "__dict__", None) is obj or any(f.globals is obj for f in tr.frames)


def _has_hook(obj: Any) -> bool:
    """Whether any look at an object, even ``isinstance``, calls code of the program's, or goes to another object."""
    kind = type(obj)
    if has_own_identity(kind) or has_own_identity(type(kind)) or issubclass(kind, ProxyTypes):
        return True
    return type(kind.__getattribute__) is FunctionType or says_own_class(kind) or hides_dict(kind)


def has_identity(obj: Any) -> bool:
    """Whether it matters that two names are one object: it can change, and Values are not shared in another way."""
    if _has_hook(obj):
        return False
    kind = type(obj)
    return kind in _CONTAINERS or not (
        is_constant_object(obj)
        or kind in _RULES
        or isinstance(obj, (torch.Tensor, OurTensor, torch.nn.Module, ModuleType, tuple, type, *HINTS, *BUILTIN_TYPES))
    )


def is_told_apart(obj: Any) -> bool:
    """Whether the Value of something without an identity in that sense knows itself which other Values are the same object."""
    return _has_hook(obj) or isinstance(obj, (torch.Tensor, OurTensor, torch.nn.Module, ModuleType, FunctionType, type))


_CONTAINERS = (list, dict, set, OrderedDict, defaultdict, deque, np.ndarray)
_RULES: dict[type, Any] = {
    tuple: containers.tuple_,
    torch.Size: containers.tuple_,
    list: containers.list_,
    dict: containers.dict_,
    OrderedDict: containers.dict_,
    defaultdict: containers.defaultdict_,
    deque: containers.deque_,
    set: containers.set_,
    frozenset: containers.set_,
    slice: containers.slice_,
    FunctionType: functions.passed_function,
    BuiltinFunctionType: functions.builtin,
    CellType: functions.cell_from,
    CodeType: functions.code,
    ModuleType: functions.pinned,
    functools.partial: functions.passed_partial,
    MethodType: functions.bound_method,
    Device: data.our_device,
    np.ndarray: data.array,
}


# --- without a source ---------------------------------------------------------------------------------------


_FOUND = type(re.finditer("", ""))


def from_python(tr: Tracer, obj: Any) -> Value:
    """The Value of an object that capture itself made, or that is trusted not to change."""
    if is_constant_object(obj):
        return Const(obj)
    kind = type(obj)
    if kind is list:
        return ListValue([from_python(tr, o) for o in obj])
    if kind in (tuple, torch.Size) or (isinstance(obj, tuple) and hasattr(obj, "_fields")):
        return TupleValue([from_python(tr, o) for o in obj], cls=kind)
    if kind in (dict, OrderedDict):
        return DictValue(tr, [(from_python(tr, k), from_python(tr, v)) for k, v in obj.items()], kind)
    if kind in (set, frozenset):
        known = Snapshot("member", (Const(obj),)) if kind is frozenset else Snapshot("list", tuple(map(Const, obj)))
        made = SetValue(tr, map(Const, obj), kind, made_by=("held" if kind is frozenset else "set", [known]))
        made.real = made.real if list(made.real) == list(obj) else None
        return made
    if kind is re.Match:
        return Const(obj)
    if kind is _FOUND:  # by a regular expression, one after the other
        return tr.iterator(iter([from_python(tr, found) for found in obj]))
    if kind is slice:
        return SliceValue(from_python(tr, p) for p in (obj.start, obj.stop, obj.step))
    if isinstance(obj, HINTS):
        return Hint(obj)
    if isinstance(obj, (FunctionType, type, ModuleType, MethodType, functools.partial, *BUILTIN_TYPES)):
        return functions.from_callable(tr, obj)
    if callable(obj) and trusts(obj):
        return functions.from_callable(tr, obj)
    if isinstance(obj, torch.Tensor):
        return tr.wrap(obj, tr.guards.hold(obj, "tensor"))
    return tr.wrap(obj, tr.guards.hold(obj, kind.__name__.lower()))
