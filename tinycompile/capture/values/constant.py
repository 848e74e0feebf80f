"""Immutable Python objects whose value is known: numbers, strings, None, dtypes, devices, ranges, enum members."""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source
from tinycompile.capture.told_apart import is_itself_alone
from tinycompile.capture.trust import BUILTIN_TYPES, trusts
from tinycompile.capture.values.base import Kwargs, MethodOf, Value

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

NUMPY_SCALARS = (np.bool_, np.integer, np.floating, np.complexfloating)
NUMPY_CONSTANTS = (*NUMPY_SCALARS, np.dtype, np.finfo, np.iinfo)
LITERALS: tuple[type, ...] = (int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented))
TORCH_CONSTANTS: tuple[type, ...] = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch.finfo, torch.iinfo)
_ARGUMENTS = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)


def is_constant_object(obj: Any) -> bool:
    """Whether an object is modelled as a Const."""
    return type(obj) in _KINDS or isinstance(obj, (enum.Enum, *NUMPY_CONSTANTS))


_KINDS = frozenset({*LITERALS, *TORCH_CONSTANTS, range, re.Pattern})


# Special methods that make a class or an object, or copy one: a member is made already.
_MAKERS = frozenset({
    "__new__", "__init__", "__init_subclass__", "__class_getitem__", "__set_name__", "__reduce__", "__reduce_ex__",
    "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__", "__dir__", "__sizeof__",
})  # fmt: skip


def is_written_in_python(raw: Any) -> bool:
    """Whether what a class of the program's has for a special method is the program's, not one of Python's that it holds."""
    return not isinstance(raw, (type(None), *BUILTIN_TYPES)) and not trusts(raw)


def is_member(value: Value) -> bool:
    """Whether a Value is a member of an enumeration."""
    return isinstance(value, Const) and isinstance(value.value, enum.Enum)


def has_own_specials(obj: Any) -> bool:
    """Whether an object is a member of an enumeration that says itself what operators, texts or such are. (It is guarded where
    one of these is asked for.)"""
    return isinstance(obj, enum.Enum) and any(
        name.startswith("__") and name not in _MAKERS and callable(raw) and is_written_in_python(raw)
        for cls in type(obj).__mro__
        if not trusts(cls)
        for name, raw in cls.__dict__.items()
    )


class Const(Value):
    """A known constant."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value

    def python_type(self, tr: Tracer) -> type:
        return type(self.value)

    def describe(self) -> str:
        if isinstance(self.value, enum.Enum):  # whose own text may be the program's, or show objects of the program's
            return f"{type(self.value).__name__}.{object.__getattribute__(self.value, '_name_')}"
        return repr(self.value) if type(self.value) in _KINDS else f"a {type(self.value).__name__}"

    @property
    def is_constant(self) -> bool:
        return not has_own_specials(self.value)

    def constant(self, tr: Tracer) -> Any:
        if has_own_specials(self.value):
            raise GraphBreak("unsupported-value", f"{self.describe()}, whose class has special methods, is given to Python")
        return self.value

    def argument(self, tr: Tracer) -> Any:
        if isinstance(self.value, np.complexfloating) and not isinstance(self.value, complex):
            raise GraphBreak("unsupported-argument", f"{self.describe()}, of which torch takes the real part, or nothing")
        if isinstance(self.value, NUMPY_SCALARS):  # one of numpy's booleans is a float to torch
            return float(self.value) if isinstance(self.value, np.bool_) else self.value.item()
        if isinstance(self.value, enum.Enum):  # of IntEnum, StrEnum and such: torch sees the number or the text
            plain = next((kind for kind in (int, float, str) if isinstance(self.value, kind)), None)
            return super().argument(tr) if plain is None else getattr(plain, f"__{plain.__name__}__")(self.value)
        if isinstance(self.value, _ARGUMENTS):
            return self.value
        if self.value is Ellipsis:
            return self.value
        return super().argument(tr)

    def key(self, tr: Tracer) -> Any:
        self.unasked(tr, "__hash__", "__eq__")
        if self.source is not None and is_itself_alone(self.value):
            known = tr.guards.hold(self.value, "key").name
            tr.guards.check(f"{self.source.text} is {known}", f"{self.source.label} is this {type(self.value).__name__}")
        return self.value

    def truth(self, tr: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            answer = tr.own_answer(self, name)
            if answer is not None:
                return answer.truth(tr)
            if hasattr(type(self.value), name):
                break
        return bool(natively(bool, self.value))

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if isinstance(self.value, enum.Enum):
            if tr.own_special(self, "__getattribute__") is not None:
                raise GraphBreak("unsupported-value", f"{self.describe()} has its own way of reading attributes")
            of_class = tr.enum_attribute(self, name)
            if of_class is not None:
                return of_class
            if name == "value" and "_value_" in self.value.__dict__:
                return tr.dict_entry(self.value.__dict__, "_value_", f"{self.value}.value")
            given = self._given_to_member(tr, self.value, name)
            if given is not None:
                return given
            answer = None if _has_attribute(self.value, name) else tr.own_answer(self, "__getattr__", Const(name))
            if answer is not None:
                return answer
        found = natively(getattr, self.value, name)
        if is_constant_object(found):
            return tr.kept(found) if isinstance(self.value, range) else Const(found)
        if callable(found) and not isinstance(found, type):
            return MethodOf(self, name)
        if isinstance(self.value, enum.Enum):  # a member may be given a list, and the list change
            return tr.wrap(found, tr.guards.hold(found, name))
        return tr.from_python(found)

    def _given_to_member(self, tr: Tracer, member: enum.Enum, name: str) -> Value | None:
        """An attribute that the program gave an enumeration's member, or its class; guards that there is none."""
        if not _has_attribute(member, name):
            tr.lacks(member, name)
        elif name in member.__dict__:
            if not name.startswith("_"):
                return tr.dict_entry(member.__dict__, name, f"{type(member).__name__}.{member.name}.{name}")
        else:
            owner = next((c for c in type(member).__mro__ if name in c.__dict__), object)
            raw = owner.__dict__.get(name)
            if not (name.startswith("_") or trusts(owner) or isinstance(raw, enum.Enum) or hasattr(raw, "__get__")):
                tr.inherited(type(member), owner, name)
                return tr.class_member(owner, name, raw)
        return None

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        own = tr.enum_attribute(self, name) if isinstance(self.value, enum.Enum) else None
        if own is not None:
            return own.call(tr, args, kwargs)
        if name.startswith("__"):  # what Python's own has to say may be said in terms of another that is the program's
            self.constant(tr)
        if isinstance(self.value, torch.device) and name in ("__enter__", "__exit__"):
            raise GraphBreak("mode", f"with {self.value!r}: the default device changes")
        method = natively(getattr, self.value, name)
        if name == "join" and isinstance(self.value, str) and len(args) == 1 and not kwargs:
            args = [tr.from_python([v.constant(tr) for v in tr.in_a_row(args[0])])]
        given = [a.constant(tr) for a in args]
        made = natively(method, *given, **{k: v.constant(tr) for k, v in kwargs.items()})
        return tr.computed(made, self, *args, *kwargs.values())

    def get_item(self, tr: Tracer, key: Value) -> Value:
        answer = tr.own_answer(self, "__getitem__", key)
        if answer is not None:
            return answer
        return tr.computed(natively(operator.getitem, self.value, key.constant(tr)), self)

    def iterate(self, tr: Tracer) -> Iterator[Value]:
        answer = tr.own_answer(self, "__iter__")
        if answer is not None:
            return answer.iterate(tr)
        return map(tr.from_python, natively(iter, self.unasked(tr, "__getitem__", "__next__")))

    def filling(self, tr: Tracer) -> Iterator[Value]:
        if tr.own_special(self, "__iter__") is not None:
            self.unasked(tr, "__len__", "__length_hint__")
        return self.iterate(tr)

    def length(self, tr: Tracer) -> Value:
        answer = tr.own_answer(self, "__len__")
        return Const(natively(len, self.value)) if answer is None else answer

    def contains(self, tr: Tracer, item: Value) -> bool:
        answer = tr.own_answer(self, "__contains__", item)
        if answer is not None:
            return answer.truth(tr)
        if tr.own_special(self, "__iter__") is not None and not hasattr(type(self.value), "__contains__"):
            return super().contains(tr, item)
        plain = item.unasked(tr, "__eq__", "__hash__") if isinstance(item, Const) else item.constant(tr)
        return bool(natively(operator.contains, self.unasked(tr, "__iter__", "__getitem__"), plain))

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        own = tr.own_special(self, "__call__")
        return super().call(tr, args, kwargs) if own is None else own.call(tr, args, kwargs)

    def unasked(self, tr: Tracer, *names: str) -> Any:
        """The object, for code of Python's that asks it no special methods but these; breaks where the program wrote one."""
        for name in names:
            if tr.own_special(self, name) is not None:
                raise GraphBreak("unsupported-value", f"{name} of {self.describe()} is asked by Python")
        return self.value

    def same_object(self, tr: Tracer, other: Value) -> bool:
        return isinstance(other, Const) and (self.value is other.value or _interned(self.value, other.value))


SMALL_INTS = range(-5, 257)
_NUMPYS = tuple({kind for kind in np.sctypeDict.values() if issubclass(kind, NUMPY_SCALARS) and kind is not np.bool_})
_COMPUTED = (int, float, complex, str, bytes, range, torch.device, torch.finfo, torch.iinfo, *_NUMPYS)


def may_be_another(obj: Any) -> bool:
    """Whether Python, torch or numpy makes another object each time that it computes a value: Python keeps one of each small
    int, and of each text of one letter or none."""
    kind = type(obj)
    if not any(kind is known for known in _COMPUTED):  # (a class of the program's may say itself what it equals)
        return False
    return not (kind is int and obj in SMALL_INTS) and not (kind in (str, bytes) and len(obj) < 2)


def _interned(a: Any, b: Any) -> bool:
    """Whether equal constants of a kind are one object: they are where CPython or torch keep one of each."""
    one_of_each = isinstance(a, (bool, type(None), torch.dtype)) or (type(a) is int and a in SMALL_INTS)
    return type(a) is type(b) and one_of_each and a == b


def _has_attribute(member: enum.Enum, name: str) -> bool:
    """``hasattr``, but without asking ``__getattr__``."""
    return name in member.__dict__ or any(name in cls.__dict__ for cls in type(member).__mro__)


NONE, TRUE, FALSE = Const(None), Const(True), Const(False)


def boolean(value: bool) -> Const:
    """The shared constant."""
    return TRUE if value else FALSE
