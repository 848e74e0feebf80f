"""Whether Python's builtins are those that this package's own code means: a program may put others in their place."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any, TypeVar

# What programs replace for good, by what does more than the same: to print on one process only, say, or to see imports.
_LEFT_TO_PROGRAMS = (
    "__import__", "__build_class__", "print", "input", "open", "breakpoint", "help", "exit", "quit", "copyright", "credits",
    "license", "compile", "eval", "exec",
)  # fmt: skip
_NOW = vars(builtins)
_KNOWN = {name: obj for name, obj in _NOW.items() if callable(obj) and name not in _LEFT_TO_PROGRAMS}
T = TypeVar("T")


def builtins_are_replaced(
    _names: tuple[str, ...] = tuple(_KNOWN),
    _objects: tuple[Any, ...] = tuple(_KNOWN.values()),
    _each: Callable[..., Any] = map,
    _all: Callable[..., bool] = all,
) -> bool:
    """Whether one of them is another now than when this package was imported, or is gone. Asks none of them."""
    return not _all(_each(operator.is_, _each(_NOW.get, _names), _objects))


def under_known_builtins(make: Callable[[], T]) -> T:
    """What something of ours gives, which is to call none of the program's; that are in place again behind it."""
    before = {name: _NOW[name] for name in _KNOWN if name in _NOW}
    _NOW.update(_KNOWN)
    try:
        return make()
    finally:
        for name in _KNOWN:
            if name in before:
                _NOW[name] = before[name]
            else:
                del _NOW[name]
