"""Questions about types and attributes, conversions, makers of containers."""

from __future__ import annotations

import abc
import collections
import contextlib
import functools
import operator
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture import inheritance, strings
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.pins import pin
from tinycompile.capture.provenance import is_the_programs, natively
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values import array, scalar
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.classes import (
    ClassValue,
    PyModuleValue,
    asks_for_subclasses,
    check_class,
    class_lookup,
    of_metaclass,
)
from tinycompile.capture.values.constant import NONE, Const, boolean
from tinycompile.capture.values.context import NullContext
from tinycompile.capture.values.function import BoundFunction, BuiltinValue, FunctionValue
from tinycompile.capture.values.generic import Hint
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.module import ModuleValue
from tinycompile.capture.values.object import ObjectValue
from tinycompile.capture.values.partial import PartialValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import ListValue, SliceValue, TupleValue
from tinycompile.capture.values.sets import SetValue, converted
from tinycompile.capture.values.special_results import checked
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.ir.builder import identifier

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@rule(len)
def _len(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return args[0].length(tr)


@rule(isinstance)
def _isinstance(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(any(_is_instance(tr, args[0], c) for c in _classes(tr, args[1])))


def _is_instance(tr: Tracer, subject: Value, other: Any) -> bool:
    cls = subject.python_type(tr)
    if cls is other:  # Python asks nobody then
        return True
    method = _of_metaclass(tr, other, "__instancecheck__")
    if method is not None:
        return method.call(tr, [subject], {}).truth(tr)
    tr.guard_bases(cls)
    if isinstance(subject, TensorValue) and other is torch.nn.Parameter:  # its metaclass looks at the instance
        return False
    shown = subject.get_attr(tr, "__class__") if isinstance(subject, ObjectValue) else None
    kinds = dict.fromkeys([cls, *([shown.cls] if isinstance(shown, ClassValue) else [])])  # (a property of the program's)
    return any(_is_subclass(tr, kind, other, "__instancecheck__") for kind in kinds)


@rule(issubclass)
def _issubclass(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    cls: type | None = None
    for other in _classes(tr, args[1]):
        method = _of_metaclass(tr, other, "__subclasscheck__")
        if method is not None and method.call(tr, [args[0]], {}).truth(tr):
            return boolean(True)
        if method is None:
            cls = cls or check_class(tr, args[0], "issubclass() arg 1 must be a class").cls
            tr.guard_bases(cls)
            if _is_subclass(tr, cls, other, "__subclasscheck__"):
                return boolean(True)
    return boolean(False)


def _of_metaclass(tr: Tracer, other: Any, how: str) -> Value | None:
    """What decides in Python, of a class whose metaclass does."""
    asked = isinstance(other, type) and of_metaclass(other, how) is not None
    return ClassValue(other).meta_method(tr, how) if asked else None


_LEGACY_TENSORS = tuple(
    getattr(torch, n) for n in ("FloatTensor", "DoubleTensor", "LongTensor", "BoolTensor") if hasattr(torch, n)
)


def _is_subclass(tr: Tracer, cls: type, other: Any, how: str) -> bool:
    """What Python's own classes of classes answer to a question. Guards what an abstract class answers, which ``register``
    changes: of a class that derives from it that is certain."""
    if any(other is kind for kind in _LEGACY_TENSORS):
        raise GraphBreak("unsupported-value", f"isinstance(..., {other})")
    if isinstance(other, type) and (class_lookup(type(other), how) or (type,))[0] is type:
        return any(base is other for base in cls.__mro__)
    if isinstance(other, type) and (class_lookup(other, "_is_protocol") or (other, False))[1] is True:
        raise GraphBreak("unsupported-value", f"isinstance(..., {other.__qualname__}), a protocol, which looks at attributes")
    if isinstance(other, abc.ABCMeta) and asks_for_subclasses(other):
        raise GraphBreak("unsupported-value", f"whether {cls.__name__} counts as a {other.__name__}: the program is asked")
    answer = bool(natively(issubclass, cls, other))
    if isinstance(other, abc.ABCMeta) and other not in cls.__mro__:
        ask, names = (
            tr.guards.hold(issubclass, "issubclass").name,
            [tr.guards.hold(c, identifier(c.__name__)).name for c in (cls, other)],
        )
        tr.guards.check(f"{ask}({', '.join(names)}) is {answer}", f"whether {cls.__name__} counts as a {other.__name__}")
    return answer


def _classes(tr: Tracer, value: Value) -> tuple[Any, ...]:
    if isinstance(value, ClassValue):
        return (value.cls,)
    if isinstance(value, TupleValue):
        return tuple(c for v in value.values(tr) for c in _classes(tr, v))
    if isinstance(value, Hint):
        parts = getattr(value.obj, "__args__", (value.obj,))
        if not isinstance(value.obj, types.UnionType) or not all(issubclass(type(part), type) for part in parts):
            natively(isinstance, None, value.obj)  # Python's own complaint
        return tuple(type(None) if c is None else c for c in parts)
    if isinstance(value, BuiltinValue):
        return (value.fn,)
    raise GraphBreak("unsupported-value", f"isinstance of {value.describe()}")


@rule(type)
def _type(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        raise GraphBreak("class-body", "type() of three arguments")
    return tr.from_python(args[0].python_type(tr))


def _name(tr: Tracer, value: Value) -> str:
    """The name of an attribute."""
    name = value.constant(tr)
    if not isinstance(name, str):
        raise GraphBreak("user-exception", f"{value.describe()} as the name of an attribute")
    return name


@rule(getattr)
def _getattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    try:
        return args[0].get_attr(tr, _name(tr, args[1]))
    except AttributeError as error:
        if len(args) < 3 or not is_the_programs(error):
            raise
        return args[2]


@rule(hasattr)
def _hasattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(args[0].has_attr(tr, _name(tr, args[1])))


@rule(setattr)
def _setattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_attr(tr, _name(tr, args[1]), args[2])
    return NONE


@rule(callable)
def _callable(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], (FunctionValue, BoundFunction, BuiltinValue, PartialValue, ClassValue, ModuleValue, MethodOf)):
        return boolean(True)
    return boolean(class_lookup(args[0].python_type(tr), "__call__") is not None)


@rule(print)
def _print(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak("print", "print()")


@rule(id)
def _id(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Of an object that stays the same: a number. Of an optimizer, too, by which a GradScaler knows it. Of what came with the
    call it is guarded, until it is seen to change."""
    (value,) = args
    if isinstance(value, ObjectValue) and value.source is not None and isinstance(value.obj, torch.optim.Optimizer):
        pin(tr, value.obj, value.source)
        return Const(id(value.obj))
    if isinstance(value, Const) and (value.value is None or isinstance(value.value, bool)):
        return Const(id(value.value))
    if isinstance(value, (FunctionValue, ClassValue, BuiltinValue, PyModuleValue)):
        known = value.key(tr)
        if known is not value:
            return Const(id(known))
    found = tr.object_of(value)
    if found is None or value.source is None:
        raise GraphBreak("unsupported-value", f"id() of {value.describe()}")
    if tr.is_rebound(value.source.text, found):
        raise GraphBreak("unsupported-value", f"id() of {value.source.label}, which is another object in each call")
    ask = tr.guards.hold(id, "id_").name
    tr.guards.check(f"{ask}({value.source.text}) == {id(found)}", f"which object {value.source.label} is")
    return Const(id(found))


# --- conversions


@rule(int)
def _int(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _number(tr, int, args, kwargs)


@rule(float)
def _float(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _number(tr, float, args, kwargs)


@rule(complex)
def _complex(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _converted(tr, complex, args, kwargs)


def _number(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs and isinstance(args[0], (Const, SymInt, ScalarValue)) and args[0].python_type(tr) is cls:
        return args[0]
    if len(args) == 1 and isinstance(args[0], ObjectValue) and not kwargs:
        for name in (f"__{cls.__name__}__", "__index__"):
            method = args[0].special(tr, name)
            if method is not None:
                made = checked(tr, name, method.call(tr, [], {}))
                return made if name != "__index__" or cls is int else _number(tr, cls, [made], {})
    if len(args) == 1 and isinstance(args[0], Const) and not kwargs:
        answer = tr.own_answer(args[0], f"__{cls.__name__}__")
        if answer is not None:
            return answer
        return tr.computed(natively(cls, args[0].unasked(tr, "__index__", "__trunc__")), *args)
    if len(args) == 1 and isinstance(args[0], ArrayValue) and not kwargs:
        return array.call(tr, cls, args, kwargs)
    number = scalar.called(tr, cls, args[0]) if len(args) == 1 else None
    return _converted(tr, cls, args, kwargs) if number is None else number


def _converted(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    made = natively(cls, *(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()})
    return tr.computed(made, *args, *kwargs.values())


@rule(bool)
def _bool(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(args[0].truth(tr)) if args else boolean(False)


@rule(operator.truth)
def _truth(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(args[0].truth(tr))


@rule(operator.not_)
def _not(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return boolean(not args[0].truth(tr))


@rule(str)
def _str(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) + len(kwargs) > 1 or kwargs:
        return _converted(tr, str, args, kwargs)
    return tr.computed(strings.text(tr, args[0]), args[0]) if args else Const("")


@rule(repr)
def _repr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tr.computed(strings.text(tr, args[0], "r"))


@rule(format)
def _format(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tr.computed(strings.formatted(tr, args[0], *(a.constant(tr) for a in args[1:])), args[0])


@rule(list)
def _list(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return ListValue(args[0].filling(tr) if args else ())


@rule(tuple)
def _tuple(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(args[0].filling(tr) if args else ())


@rule(torch.Size)
def _size(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    made = TupleValue(args[0].filling(tr) if args else (), cls=torch.Size)
    if made.is_constant:
        natively(torch.Size, [v.constant(tr) for v in made.values(tr)])  # Python's own complaint
    return made


@rule(set)
def _set(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return converted(tr, set, args[0] if args else None)


@rule(frozenset)
def _frozenset(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    same = bool(args) and isinstance(args[0], SetValue) and args[0].cls is frozenset
    return args[0] if same else converted(tr, frozenset, args[0] if args else None)


@rule(dict)
def _dict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mapping(tr, dict, args, kwargs)


@rule(collections.OrderedDict)
def _ordered_dict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return _mapping(tr, collections.OrderedDict, args, kwargs)


@rule(collections.defaultdict)
def _defaultdict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    made = _mapping(tr, collections.defaultdict, args[1:], kwargs)
    made.default_factory = args[0] if args and args[0] is not NONE else None
    if made.default_factory is not None and not _callable(tr, args[:1], {}).truth(tr):
        raise GraphBreak("user-exception", "defaultdict() of something that can't be called")
    return made


@rule(collections.deque)
def _deque(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    most = kwargs.get("maxlen", args[1] if len(args) > 1 else NONE).constant(tr)
    natively(collections.deque, (), most)  # Python's own complaint
    return DequeValue(list(kwargs.get("iterable", args[0] if args else TupleValue([])).iterate(tr)), most)


@rule(dict.fromkeys)
def _fromkeys(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = args[1] if len(args) > 1 else NONE
    return DictValue(tr, [(key, value) for key in args[0].iterate(tr)])


@rule(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    counts, values = args
    for value in values.iterate(tr):
        before = counts.get_item(tr, value) if counts.contains(tr, value) else Const(0)
        counts.set_item(tr, value, tr.binary("+", before, Const(1)))
    return NONE


def _mapping(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> DictValue:
    made = DictValue(tr, (), cls)
    for other in args:
        made.update(tr, other)
    for key, value in kwargs.items():
        made.set_item(tr, Const(key), value)
    return made


@rule(slice)
def _slice(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    parts = [NONE, args[0], NONE] if len(args) == 1 else [*args, *[NONE] * (3 - len(args))]
    return SliceValue(parts)


# --- makers


@rule(functools.partial)
def _partial(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not _callable(tr, args[:1], {}).truth(tr):
        raise GraphBreak("user-exception", "partial() of something that can't be called")
    return PartialValue.made(tr, args[0], args[1:], kwargs)


@rule(functools.update_wrapper)
def _update_wrapper(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    wrapper, wrapped = args[0], kwargs.get("wrapped", args[1] if len(args) > 1 else NONE)
    assigned = kwargs.get("assigned", args[2] if len(args) > 2 else tr.from_python(functools.WRAPPER_ASSIGNMENTS))
    if not isinstance(wrapper, FunctionValue) or not isinstance(wrapped, (FunctionValue, BoundFunction)):
        raise GraphBreak("unsupported-value", f"functools.wraps of {wrapped.describe()}")
    for name in assigned.constant(tr):
        if wrapped.has_attr(tr, name):
            wrapper.set_attr(tr, name, wrapped.get_attr(tr, name))
    if isinstance(wrapped, FunctionValue):
        for name, value in wrapped.own_attributes(tr).items():
            wrapper.set_attr(tr, name, value)
    wrapper.set_attr(tr, "__wrapped__", wrapped)
    return wrapper


@rule(delattr)
def _delattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_attr(tr, _name(tr, args[1]))
    return NONE


@rule(contextlib.nullcontext)
def _nullcontext(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return NullContext(kwargs.get("enter_result", args[0] if args else NONE))


@rule(typing.cast)
def _typing_cast(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


@rule(super)
def _super(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        args = inheritance.super_arguments(tr)
    if len(args) != 2 or kwargs:
        raise GraphBreak("unsupported-value", f"super() of {len(args)} arguments")
    return inheritance.super_object(tr, *args)
