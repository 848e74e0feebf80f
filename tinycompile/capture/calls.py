"""Calls of Python functions: arguments are bound as Python binds them; the callee is followed in a frame of its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.execute import Frame, run
from tinycompile.capture.generators import GeneratorValue
from tinycompile.capture.values.base import Kwargs, Lazy, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.function import FunctionValue
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
        raise GraphBreak("recursion", f"{fn.describe()} is called {len(tr.frames)} calls deep")
    if code.co_flags & _COROUTINE:
        raise GraphBreak("generator", f"{fn.describe()} is a coroutine")
    frame = Frame(code, fn.globals, bind_arguments(tr, fn, args, kwargs), fn.name)
    for name, cell in zip(code.co_freevars, fn.closure, strict=True):
        frame.slots[name] = cell
    if code.co_flags & inspect.CO_GENERATOR:
        return GeneratorValue(tr, frame)
    return run(tr, frame)


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
        raise _too_many(fn, names, kw_only, len(args), kwargs)
    rest: Kwargs = {}
    only = [repr(n) for n in kwargs if n in names[: code.co_posonlyargcount]]
    if only and not code.co_flags & inspect.CO_VARKEYWORDS:
        shown = ", ".join(only).replace("', '", ", ")
        raise TypeError(f"{fn.name}() got some positional-only arguments passed as keyword arguments: {shown}")
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
    _fill_defaults(tr, fn, names, kw_only, slots)
    return slots


def _fill_defaults(
    tr: Tracer, fn: FunctionValue, names: Sequence[str], kw_only: Sequence[str], slots: dict[str, Value | Lazy]
) -> None:
    for name, default in zip(reversed(names), reversed(fn.defaults), strict=False):
        slots.setdefault(name, default)
    for name, default in _keyword_defaults(tr, fn).items():
        slots.setdefault(name, default)
    for kind, wanted in (("positional argument", names), ("keyword-only argument", kw_only)):
        missing = [repr(n) for n in wanted if n not in slots]
        if missing:
            plural = "" if len(missing) == 1 else "s"
            raise TypeError(f"{fn.name}() missing {len(missing)} required {kind}{plural}: {_listed(missing)}")


def _keyword_defaults(tr: Tracer, fn: FunctionValue) -> Mapping[str, Value | Lazy]:
    """Those of a function from outside lie in a dict, which may have been written as such."""
    known = tr.known(getattr(fn.outside, "__kwdefaults__", None))
    if not isinstance(known, DictValue) or not tr.effects.changes(known):
        return fn.kwdefaults
    return {name.constant(tr): value for name, value in known.pairs(tr)}


def _listed(names: Sequence[str]) -> str:
    """As Python lists names in a complaint."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def _too_many(fn: FunctionValue, names: Sequence[str], kw_only: Sequence[str], given: int, kwargs: Kwargs) -> TypeError:
    most = len(names)
    takes = f"from {most - len(fn.defaults)} to {most}" if fn.defaults else str(most)
    plural = "s" if most != 1 or fn.defaults else ""
    named = sum(k in kwargs for k in kw_only)
    shown = f"{given} positional argument{_s(given)} (and {named} keyword-only argument{_s(named)})" if named else str(given)
    verb = "was" if given == 1 and not named else "were"
    return TypeError(f"{fn.name}() takes {takes} positional argument{plural} but {shown} {verb} given")


def _s(count: int) -> str:
    return "" if count == 1 else "s"
