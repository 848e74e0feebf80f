"""Calls of Python functions: arguments are bound as Python binds them; the callee is followed in a frame of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.execute import Frame, run
from tinycompile.capture.values.base import Kwargs, Lazy, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.function import FunctionValue
from tinycompile.capture.values.iterator import IteratorValue
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_MAX_DEPTH = 80
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def inline(tr: Tracer, fn: FunctionValue, args: Sequence[Value], kwargs: Kwargs) -> Value:
    """Follow a call into the callee."""
    code = fn.code
    if len(tr.frames) > _MAX_DEPTH:
        raise GraphBreak("recursion", f"{fn.describe()} is called {_MAX_DEPTH} calls deep")
    if code.co_flags & _COROUTINE:
        raise GraphBreak("generator", f"{fn.describe()} is a coroutine")
    frame = Frame(code, fn.globals, bind_arguments(tr, fn, args, kwargs), fn.name)
    for name, cell in zip(code.co_freevars, fn.closure, strict=True):
        frame.slots[name] = cell
    if code.co_flags & inspect.CO_GENERATOR:
        return IteratorValue(_generate(tr, frame))
    return run(tr, frame)


def _generate(tr: Tracer, frame: Frame) -> Iterator[Value]:
    """The values that a generator yields; its frame sleeps in between."""
    while True:
        value = run(tr, frame)
        if not frame.suspended:
            return
        yield value
        frame.stack.append(NONE)  # what ``yield`` evaluates to


def bind_arguments(tr: Tracer, fn: FunctionValue, args: Sequence[Value], kwargs: Kwargs) -> dict[str, Value | Lazy]:
    """Parameters by name. Raises TypeError, worded as Python words it."""
    code = fn.code
    names = code.co_varnames[: code.co_argcount]
    kw_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    slots: dict[str, Value | Lazy] = dict(zip(names, args, strict=False))
    extra = list(args[len(names) :])
    at = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        slots[code.co_varnames[at]] = TupleValue(extra)
        at += 1
    elif extra:
        raise TypeError(f"{fn.name}() takes {len(names)} positional arguments but {len(args)} were given")
    rest: Kwargs = {}
    by_name = {*names[code.co_posonlyargcount :], *kw_only}
    for name, value in kwargs.items():
        if name not in by_name:
            rest[name] = value
        elif name in slots:
            raise TypeError(f"{fn.name}() got multiple values for argument '{name}'")
        else:
            slots[name] = value
    if code.co_flags & inspect.CO_VARKEYWORDS:
        slots[code.co_varnames[at]] = DictValue(tr, [(Const(k), v) for k, v in rest.items()])
    elif rest:
        raise TypeError(f"{fn.name}() got an unexpected keyword argument '{next(iter(rest))}'")
    _fill_defaults(fn, names, kw_only, slots)
    return slots


def _fill_defaults(fn: FunctionValue, names: Sequence[str], kw_only: Sequence[str], slots: dict[str, Value | Lazy]) -> None:
    for name, default in zip(reversed(names), reversed(fn.defaults), strict=False):
        slots.setdefault(name, default)
    for name, default in fn.kwdefaults.items():
        slots.setdefault(name, default)
    missing = [n for n in names if n not in slots]
    if missing:
        raise TypeError(f"{fn.name}() missing {len(missing)} required positional arguments: {missing}")
    missing = [n for n in kw_only if n not in slots]
    if missing:
        raise TypeError(f"{fn.name}() missing {len(missing)} required keyword-only arguments: {missing}")
