"""Rules about objects and functions: conversions by special methods, copies, caches, getters."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import sys
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture import number_tensors
from tinycompile.capture.breaks import GraphBreak, KnownBehind
from tinycompile.capture.provenance import natively
from tinycompile.capture.rules import numpy_functions
from tinycompile.capture.rules.registry import RULES, Args, rule
from tinycompile.capture.sources import Called
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.callable import Getter, ParameterValue, SignatureValue
from tinycompile.capture.values.classes import ClassValue, asks_for_subclasses
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.function import BoundFunction, FunctionValue, of_instance
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.object import NewObject, ObjectValue
from tinycompile.capture.values.object_key import ObjectKey
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.special_results import checked
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.ir.effects import is_random

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def _getter(cls: Any) -> None:
    RULES[cls] = lambda tr, args, kwargs: Getter(cls, args, kwargs)


for _cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    _getter(_cls)


@rule(operator.delitem)
def _delitem(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_item(tr, args[1])
    return NONE


@rule(functools.cmp_to_key)
def _cmp_to_key(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak("unknown-function", "functools.cmp_to_key")


@rule(hash)
def _hash(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], ObjectValue):
        method = args[0].special(tr, "__hash__")
        if method is None:
            raise GraphBreak("unsupported-value", f"the hash of {args[0].describe()}")
        return _hash_given(checked(tr, "__hash__", method.call(tr, [], {})).constant(tr))
    answer = tr.own_answer(args[0], "__hash__")
    if answer is not None:
        return _hash_given(answer.constant(tr))
    if isinstance(args[0], Const):
        return Const(natively(hash, args[0].value))
    at = args[0].key(tr)  # Python's own complaint
    known = isinstance(args[0], TupleValue) and _hashes_alike(at)
    return Const(natively(hash, at if known else args[0].constant(tr)))


def _hash_given(value: int) -> Value:
    """What ``hash`` makes of what a ``__hash__`` gave."""
    if -sys.maxsize - 1 <= value <= sys.maxsize:  # taken as it is; -1 means an error in C
        return Const(-2 if value == -1 else value)
    return Const(natively(hash, value))


def _hashes_alike(key: Any) -> bool:
    """Whether what stands for a key has its hash: not where it stands for an object that is told apart by its identity."""
    return all(map(_hashes_alike, key)) if type(key) in (tuple, frozenset) else not isinstance(key, Value)


@rule(inspect.signature)
def _signature(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Of a function or a bound method, where no decorator says otherwise: an object whose parameters can be read."""
    fn = args[0].fn if isinstance(args[0], BoundFunction) else args[0]
    known = fn.fn if isinstance(fn, FunctionValue) else None
    if len(args) != 1 or kwargs or known is None or "__wrapped__" in known.__dict__ or "__signature__" in known.__dict__:
        raise GraphBreak("unsupported-value", f"the signature of {args[0].describe()}")
    tr.guards.code(tr.guards.hold(known, known.__name__))
    names = list(inspect.signature(known).parameters)[1 if fn is not args[0] else 0 :]
    return SignatureValue(DictValue(tr, [(Const(name), ParameterValue()) for name in names], OrderedDict))


@rule(os.fspath)
def _fspath(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return Const(natively(os.fspath, args[0].constant(tr)))


@rule(torch.as_tensor)
def _as_tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], ArrayValue):
        return numpy_functions.as_tensor(tr, args, kwargs)
    if isinstance(args[0], TensorValue):
        given = {k: v for k, v in kwargs.items() if not tr.identical(v, NONE)}
        return args[0].call_method(tr, "to", [], given) if given else args[0]
    if not args[0].is_constant and not number_tensors.are_numbers(tr, args[0]):
        raise GraphBreak("unsupported-op", "torch.as_tensor")
    return tr.from_python(torch.tensor).call(tr, args, kwargs)


@rule(types.SimpleNamespace)
def _namespace(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if args:
        raise GraphBreak("unsupported-value", "a SimpleNamespace is made of a mapping")
    made = NewObject(types.SimpleNamespace)
    made.shadow.update(kwargs)
    return made


# --- single dispatch ----------------------------------------------------------------------------------------


_DISPATCHER = functools.singledispatch(len).__code__  # type: ignore[attr-defined]  # it is a function


def dispatched(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """A call of a function under ``singledispatch``, which what is registered later changes; None for any other function."""
    if fn.__code__ is not _DISPATCHER or not args:
        return None
    return tr.from_callable(_chosen(tr, fn, args[0])).call(tr, args, kwargs)


def call_dispatched(tr: Tracer, fn: functools.singledispatchmethod[Any], args: Args, kwargs: Kwargs) -> Value:
    """A call of a method under ``singledispatchmethod``; its object comes first."""
    if len(args) < 2:
        raise GraphBreak("user-exception", "a method that dispatches, called with nothing to dispatch on")
    chosen = _chosen(tr, fn.dispatcher, args[1])
    return of_instance(tr, chosen, args[0], "the chosen one").call(tr, args[1:], kwargs)


def _chosen(tr: Tracer, fn: Any, arg: Value) -> Any:
    """What a function under ``singledispatch`` does with an argument. Guarded."""
    cls = arg.python_type(tr)
    if any(isinstance(kind, type) and asks_for_subclasses(kind) for kind in fn.registry):
        raise GraphBreak("unsupported-value", f"what {fn.__qualname__} does with a {cls.__name__}: the program is asked")
    chosen = natively(fn.dispatch, cls)
    dispatch, kind, known = (
        tr.guards.hold(o, n).name for o, n in ((fn.dispatch, "dispatch"), (cls, "kind"), (chosen, "chosen"))
    )
    tr.guards.check(f"{dispatch}({kind}) is {known}", f"what {fn.__qualname__} does with a {cls.__name__}")
    return chosen


# --- caches -------------------------------------------------------------------------------------------------


def call_cached(tr: Tracer, fn: Any, args: Args, kwargs: Kwargs) -> Value:
    """A function under ``lru_cache``. Its code is followed, to see that all it does is give a result; what counts is what the
    cache gives. The rebuilt code and the guards ask that, as the program does."""
    before, recorded = tr.effects.count, len(tr.builder.nodes)
    followed = tr.from_callable(fn.__wrapped__).call(tr, args, kwargs)
    if tr.effects.count != before:
        raise GraphBreak("side-effect", f"{fn.__qualname__} is cached, and changes something when it is called")
    if fn.cache_parameters()["maxsize"] == 0:
        return followed
    given, named = [_cached_argument(tr, v) for v in args], {k: _cached_argument(tr, v) for k, v in kwargs.items()}
    random = any(is_random(node) for node in list(tr.builder.nodes.values())[recorded:])
    if random or tr.effects or tr.grad_enabled != tr.root_grad_enabled:
        kind = GraphBreak if random else KnownBehind
        raise kind("side-effect", f"{fn.__qualname__} is cached, and may be called first behind what happened here")
    held = tr.guards.hold(fn, getattr(fn, "__name__", "cached"), fn.__qualname__)
    texts = [t for _, t in given] + [f"{k}={t}" for k, (_, t) in named.items()]
    found = natively(fn, *(o for o, _ in given), **{k: o for k, (o, _) in named.items()})
    return tr.wrap(found, Called(held, ", ".join(texts)))


def _cached_argument(tr: Tracer, value: Value) -> tuple[Any, str]:
    """An argument of a cached function and how it is written: a constant, or an object that is compared by identity."""
    if isinstance(value, ObjectValue) and value.source is not None:
        if isinstance(value.key(tr), ObjectKey):
            raise GraphBreak("unsupported-value", f"a cached function is called with {value.describe()}, whose hash is its own")
        return value.obj, value.source.text
    if not value.is_constant and not isinstance(value, ClassValue):
        raise GraphBreak("unsupported-value", f"a cached function is called with {value.describe()}")
    plain = value.constant(tr)
    literal = type(plain) in (int, str, bool, bytes, type(None))
    return plain, repr(plain) if literal else tr.guards.hold(plain, "constant").name
