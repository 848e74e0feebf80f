"""Exceptions as they are: nothing here asks what a class of the program's says of its own (a property, ``__getattribute__``,
``__setattr__``, ``__str__``, ``__class__``)."""

from __future__ import annotations

import sys
import traceback
from types import FunctionType, TracebackType
from typing import Any, TypeGuard, TypeVar

E = TypeVar("E", bound=BaseException)

_FIELDS = {
    name: vars(BaseException)[name]
    for name in ("args", "__cause__", "__context__", "__suppress_context__", "__traceback__", "__dict__")
}
_MRO, _FLAGS, _NAME, _HELD = (vars(type)[name] for name in ("__mro__", "__flags__", "__name__", "__dict__"))
COMMITTED = "_tinycompile_committed"  # a variable of rebuilt code, from where on it changes something outside
_HEAP_TYPE = 1 << 9  # made by a class statement
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_KNOWN = sys.stdlib_module_names | {"torch", "triton", "numpy", "tinycompile"}


def is_a(error: BaseException, *kinds: type[E]) -> TypeGuard[E]:
    """Whether its class is one of these or derives from one. (``isinstance`` asks for ``__class__``, too.)"""
    return issubclass(type(error), kinds)


def read(error: BaseException, field: str) -> Any:
    """One of the fields that each exception has."""
    return _FIELDS[field].__get__(error)


def write(error: BaseException, field: str, value: Any) -> None:
    """Set one of them."""
    _FIELDS[field].__set__(error, value)


def bases_of(error: BaseException) -> tuple[type, ...]:
    """Its class and those from which that derives."""
    bases: tuple[type, ...] = _MRO.__get__(type(error))
    return bases


def is_committed(error: BaseException) -> bool:
    """Whether it came up in rebuilt code when something outside had been changed already: then the call can't be redone."""
    frames = (frame for frame, _ in traceback.walk_tb(trace_of(error)))
    return any(COMMITTED in f.f_locals for f in frames if f.f_code.co_filename.startswith("<tinycompile"))


def is_chained(error: BaseException) -> bool:
    """Whether it knows of another."""
    alone = read(error, "__cause__") is None and read(error, "__context__") is None
    return not alone or read(error, "__suppress_context__")


def trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback."""
    trace: TracebackType | None = read(error, "__traceback__")
    return trace


def text_of(error: BaseException) -> str:
    """Its text, where that is Python's or a library's to tell; else none."""
    owner = next(cls for cls in bases_of(error) if "__str__" in _HELD.__get__(cls))
    told = not _FLAGS.__get__(owner) & _HEAP_TYPE or _is_a_librarys(_HELD.__get__(owner)["__str__"])
    parts = {**dict(enumerate(read(error, "args"))), **read(error, "__dict__"), "__notes__": None}  # which no text tells of
    plain = all(type(part) in _PLAIN for part in parts.values())
    return str(error) if told and plain else ""


def words(error: BaseException) -> str:
    """Its class and its text, for messages."""
    return f"{_NAME.__get__(type(error))}: {text_of(error)}"


def formatted(error: BaseException) -> str:
    """Tracebacks of it and of what it came from, the last first."""
    parts, seen, found = [], set[int](), error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        parts.append(
            "".join(["Traceback (most recent call last):\n", *traceback.format_tb(trace_of(found)), words(found), "\n"])
        )
        cause = read(found, "__cause__")
        found = read(found, "__context__") if cause is None else cause
    return "\nwhich came from\n\n".join(parts)


def _is_a_librarys(method: Any) -> bool:
    space = method.__globals__ if type(method) is FunctionType else {}
    name = space.get("__name__", "")
    return name.partition(".")[0] in _KNOWN and vars(sys.modules.get(name, sys)) is space
