"""The table of rules, and calls of what is written in C: by rule, by value, or as a torch op."""

from __future__ import annotations

import enum
import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.capture import torch_calls
from tinycompile.capture.arguments import by_position, check_arguments
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.provenance import natively
from tinycompile.capture.trust import is_of, module_of, trusts
from tinycompile.capture.values import array, scalar
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.classes import (
    ClassValue,
    built_in_base,
    class_lookup,
    defines,
    is_heap_type,
    is_plain_class,
    is_pythons_metaclass,
)
from tinycompile.capture.values.constant import NONE, TRUE, Const
from tinycompile.capture.values.container import BASES, ContainerObject, NewContainer, base_of, empty_contents, fill
from tinycompile.capture.values.exception import ExceptionValue
from tinycompile.capture.values.function import BuiltinValue
from tinycompile.capture.values.object import NewObject, ObjectValue
from tinycompile.capture.values.scalar import ScalarValue
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.special_results import checked
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.ops.table import OpObject

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

Args = Sequence[Value]
Rule = Callable[["Tracer", Args, Kwargs], Value]
RULES: dict[Any, Rule] = {}


def rule(*fns: Any) -> Callable[[Rule], Rule]:
    """Register what calls of these functions mean."""

    def register(handler: Rule) -> Rule:
        for fn in fns:
            RULES[fn] = handler
        return handler

    return register


def call(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """A call of a builtin, of a function of the standard library written in C, or of torch's."""
    try:
        handler = RULES.get(fn)
    except TypeError:
        handler = None
    if handler is not None:
        check_arguments(fn, args, kwargs)
        return handler(tr, *by_position(fn, args, kwargs))
    if fn in _PURE and not kwargs and args:
        number = scalar.called(tr, fn, *args)
        if number is not None:
            return number
    if fn in _PURE and all(v.is_constant or isinstance(v, (SymInt, ScalarValue)) for v in (*args, *kwargs.values())):
        made = natively(fn, *(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()})
        return tr.computed(made, *args, *kwargs.values())
    owner = getattr(fn, "__objclass__", None)
    if owner is not None and args and owner not in torch.Tensor.__mro__[:-1]:  # list.append(x, y): an unbound method
        return _unbound(tr, fn, args, kwargs)
    receiver = getattr(fn, "__self__", None)
    if isinstance(receiver, np.ufunc) and fn.__name__ in ("reduce", "accumulate", "outer") and len(args) <= 3:
        return array.call(tr, fn, args, kwargs)
    if owner is None and isinstance(receiver, (str, bytes, range, tuple)):  # a bound C method from outside
        return tr.from_python(receiver).call_method(tr, fn.__name__, args, kwargs)
    if is_torch(fn) or isinstance(fn, OpObject):
        return torch_calls.call_torch(tr, fn, args, kwargs)
    raise GraphBreak("unknown-function", BuiltinValue(fn).describe())


def _unbound(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """A method of a built-in class, called on an object. One of a class that derives from it may have another of that name."""
    receiver, name = args[0], fn.__name__
    inside = isinstance(receiver, (ContainerObject, NewContainer))
    kind = base_of(receiver.python_type(tr)) if inside else receiver.python_type(tr)
    found = None if kind is None else class_lookup(kind, name)
    if found is None or found[1] is not fn:
        raise GraphBreak("unsupported-value", f"{fn.__qualname__} of {receiver.describe()}")
    check_arguments(fn, args[1:], kwargs, bound=True)
    if isinstance(receiver, (ContainerObject, NewContainer)):
        return receiver.inherited_method(name).call(tr, args[1:], kwargs)
    return receiver.call_method(tr, name, args[1:], kwargs)


def is_torch(fn: Any) -> bool:
    """Whether a C function is torch's."""
    module = getattr(fn, "__module__", None) or ""
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    name = getattr(owner, "__module__", None) or getattr(type(owner), "__module__", "") if owner is not None else ""
    return module.startswith("torch") or str(name).startswith("torch")


_PURE = frozenset(
    {
        *(f for f in vars(math).values() if callable(f)),
        divmod,
        round,
        pow,
        ord,
        chr,
        hex,
        bin,
        oct,
        ascii,
        format,
        hash,
        operator.index,
        operator.truth,
        operator.concat,
        str.maketrans,
        int.from_bytes,
        float.fromhex,
    }
)


def call_class(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """``cls(...)``."""
    handler = RULES.get(cls)
    if handler is not None:
        check_arguments(cls, args, kwargs)
        return handler(tr, *by_position(cls, args, kwargs))
    if cls in _CONSTANT_CLASSES or (module_of(cls) == "torch" and cls in (torch.device, torch.finfo, torch.iinfo)):
        made = natively(cls, *(a.constant(tr) for a in args), **{k: v.constant(tr) for k, v in kwargs.items()})
        return tr.computed(made, *args, *kwargs.values())
    if isinstance(cls, enum.EnumType) and trusts(type(cls)) and len(args) == 1 and not kwargs:
        return _member(tr, cls, args[0])
    if cls is object and not args and not kwargs:
        return NewObject(object)
    if not is_pythons_metaclass(type(cls)):
        raise GraphBreak("unsupported-value", f"an object of class {cls.__qualname__} is made, by its metaclass")
    maker = class_lookup(cls, "__new__")
    if maker is not None and _is_namedtuples(maker[1]):
        return _named_tuple(tr, cls, args, kwargs)
    if module_of(cls) == "torch.return_types":
        return TupleValue(args[0].iterate(tr), cls=cls)
    if issubclass(cls, BaseException):
        return _exception(tr, cls, args, kwargs)
    if issubclass(cls, torch.Tensor):
        raise GraphBreak("unsupported-value", f"a {cls.__name__} is made")
    if maker is not None and isinstance(maker[1], (staticmethod, FunctionType)) and _is_of_the_program(cls):
        return _by_new(tr, cls, maker, args, kwargs)
    if _is_of_the_program(cls) and base_of(cls) is not None and maker is not None and maker[0] in BASES:
        return _initialised(tr, NewContainer(tr, cls, empty_contents(tr, cls, args)), args, kwargs)
    if not is_plain_class(cls) or issubclass(cls, torch.nn.Module):
        raise GraphBreak("unsupported-value", f"an object of class {cls.__qualname__} is made")
    return _new_object(tr, cls, args, kwargs)


def _member(tr: Tracer, cls: enum.EnumType, value: Value) -> Value:
    """The member of an enumeration that has a value; breaks where the program says what is made of those that none has."""
    plain = value.unasked(tr, "__hash__", "__eq__") if isinstance(value, Const) else value.constant(tr)
    owner, _ = class_lookup(cls, "_missing_") or (object, None)
    members: list[enum.Enum] = list(cls.__members__.values())
    if not trusts(owner) and not any(m is plain or m._value_ == plain for m in members):
        raise GraphBreak("unsupported-value", f"{cls.__name__} of a value of no member, for which it has a _missing_")
    tr.inherited(cls, owner, "_missing_")
    return Const(natively(cls, plain))


def _exception(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """An exception of a class whose ``__init__`` is the program's or the builtin one."""
    if defines(cls, "__del__"):
        raise GraphBreak("unsupported-value", f"a {cls.__name__} is made, whose end is noticed")
    owner = class_lookup(cls, "__new__")
    if owner is None or not is_of(owner[0], "builtins") or not issubclass(cls, Exception) or issubclass(cls, OSError):
        raise GraphBreak("user-exception", f"{cls.__name__} was made")
    if issubclass(cls, ExceptionGroup):
        return _exception_group(tr, cls, args, kwargs)
    plain = tuple(a.constant(tr) for a in args if a.is_constant)
    error = owner[0].__new__(cls, *plain)
    made = tr.remember(ExceptionValue(error, list(args)))
    init = made.special(tr, "__init__")
    if init is not None:
        checked(tr, "__init__", init.call(tr, args, kwargs))
    elif kwargs and all(v.is_constant for v in (*args, *kwargs.values())):
        named = {k: v.constant(tr) for k, v in kwargs.items()}
        natively(built_in_base(cls).__init__, error, *plain, **named)  # as Python checks them
    elif kwargs:
        raise GraphBreak("user-exception", f"{cls.__name__} was made with keywords")
    return made


def _exception_group(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    members = list(args[1].iterate(tr)) if len(args) == 2 and not kwargs else []
    if cls is not ExceptionGroup or not members or not all(isinstance(m, ExceptionValue) for m in members):
        raise GraphBreak("user-exception", f"{cls.__name__} was made")
    return tr.remember(ExceptionValue(cls(args[0].constant(tr), [m.obj for m in members]), list(args)))  # type: ignore[attr-defined]


def _is_of_the_program(cls: Any) -> bool:
    """Whether a class statement made it, and nothing special happens when an instance is made or dies."""
    return is_heap_type(cls) and not defines(cls, "__del__")


def _by_new(tr: Tracer, cls: Any, maker: tuple[type, Any], args: Args, kwargs: Kwargs) -> Value:
    """A class with a ``__new__`` of its own."""
    owner, raw = maker
    fn = tr.class_member(owner, "__new__", raw.__func__ if isinstance(raw, staticmethod) else raw)
    made = fn.call(tr, [tr.from_python(cls), *args], kwargs)
    if isinstance(made, TupleValue) and class_lookup(cls, "__init__") == (object, object.__init__):
        return made
    return _initialised(tr, made, args, kwargs) if issubclass(made.python_type(tr), cls) else made


def _initialised(tr: Tracer, made: Value, args: Args, kwargs: Kwargs) -> Value:
    """Call ``__init__``: the program's, or the built-in one of a container."""
    if not isinstance(made, ObjectValue):
        raise GraphBreak("unsupported-value", f"__init__ of {made.describe()}")
    cls = type(made.obj)
    init = class_lookup(cls, "__init__")
    if init is not None and isinstance(init[1], FunctionType):
        method = made.special(tr, "__init__")
        assert method is not None
        checked(tr, "__init__", method.call(tr, args, kwargs))
    elif isinstance(made, NewContainer):
        made.inherited_method("__init__")
        fill(tr, made.base, args, kwargs)
    return made


def _new(base: type, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``base.__new__(cls, ...)``, which refuses a class that is to be made in another way."""
    cls = args[0].cls if args and isinstance(args[0], ClassValue) else None
    if cls is None or not is_heap_type(cls) or defines(cls, "__del__") or issubclass(cls, (BaseException, torch.nn.Module)):
        raise GraphBreak("unsupported-value", "an object made by __new__")
    natively(base.__new__, cls, *([None] * len(args[1:]) if base is object else ()))  # Python's own complaint
    if defines(cls, "_make") and defines(cls, "_fields"):
        return TupleValue(args[1].iterate(tr), cls=cls)
    if base_of(cls) is not None:
        return NewContainer(tr, cls, empty_contents(tr, cls, args[1:]))
    if base is not object or built_in_base(cls) is not object:
        raise GraphBreak("unsupported-value", f"an object of class {cls.__qualname__} is made")
    return NewObject(cls)


for _base in (object, list, dict, set, frozenset, tuple):
    rule(_base.__new__)(functools.partial(_new, _base))


@rule(type.__call__)
def _type_call(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``super().__call__(...)`` in a metaclass."""
    if not args or not isinstance(args[0], ClassValue):
        raise GraphBreak("unsupported-value", "type.__call__ of something that is no class")
    return call_class(tr, args[0].cls, args[1:], kwargs)


@rule(object.__init__)
def _init(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], ObjectValue):  # it does nothing, but may refuse arguments
        natively(object.__init__, args[0].obj, *(None for _ in args[1:]), **dict.fromkeys(kwargs))
    return NONE


def _new_object(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    if inspect.isabstract(cls):
        natively(object.__new__, cls)  # Python's own complaint
    made = NewObject(cls)
    init = None if class_lookup(cls, "__init__") == (object, object.__init__) else made.special(tr, "__init__")
    if init is not None:
        checked(tr, "__init__", init.call(tr, args, kwargs))
    elif args or kwargs:
        raise TypeError(f"{cls.__name__}() takes no arguments")
    return made


@rule(object.__eq__)
def _object_eq(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return TRUE if tr.identical(*args) else Const(NotImplemented)


@rule(object.__getattribute__)
def _object_getattribute(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 2 or not isinstance(args[0], ObjectValue):
        raise GraphBreak("unsupported-value", f"object.__getattribute__ of {args[0].describe()}")
    return args[0].plain_attr(tr, str(args[1].constant(tr)), hook=False)


@rule(object.__setattr__, torch.nn.Module.__setattr__)
def _setattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    target, name, value = args
    if not isinstance(target, ObjectValue):
        raise GraphBreak("side-effect", f"an attribute of {target.describe()} was set")
    target.store(tr, name.constant(tr), value)
    return NONE


@rule(object.__delattr__, torch.nn.Module.__delattr__)
def _delattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    target, name = args
    if not isinstance(target, ObjectValue):
        raise GraphBreak("side-effect", f"an attribute of {target.describe()} was deleted")
    target.erase(tr, name.constant(tr))
    return NONE


_CONSTANT_CLASSES: frozenset[type] = frozenset({torch.device, torch.finfo, torch.iinfo, bytes})


def _named_tuple(tr: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    owner, raw = class_lookup(cls, "__new__") or (cls, cls.__new__)
    fn = raw.__func__
    tr.inherited(cls, owner, "__new__")
    tr.class_member(owner, "__new__", fn)
    held, known = tr.guards.hold(fn, "new"), tr.guards.hold(fn.__defaults__, "defaults")
    tr.guards.check(f"{held.name}.__defaults__ is {known.name}", f"the defaults of {cls.__name__}")
    try:
        inspect.signature(fn).bind(cls, *args, **kwargs)
    except TypeError as error:
        raise GraphBreak("user-exception", f"{cls.__name__}: {error}") from None
    names = fn.__code__.co_varnames[1 : fn.__code__.co_argcount]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    defaults = fn.__defaults__ or ()
    for name, default in zip(reversed(names), reversed(defaults), strict=False):
        if name not in given:
            given[name] = tr.wrap(default, tr.guards.hold(default, name))
    return TupleValue([given[name] for name in names], cls=cls)


def _is_namedtuples(maker: Any) -> bool:
    """Whether a ``__new__`` is one that ``namedtuple`` wrote."""
    return isinstance(maker, staticmethod) and getattr(maker.__func__, "__globals__", {}).get("_tuple_new") is tuple.__new__
