"""Which of torch's functions write to their first argument, by name and by what they are told."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinycompile.ops.table import INPLACE_OPERATORS

_WRITING = frozenset(("__setitem__", *(f"__{name}__" for name in INPLACE_OPERATORS)))

OWN_GRADIENT = frozenset(("acosh", "asinh", "atanh", "eq", "floor_divide", "ge", "gt", "heaviside", "le", "lt", "ne")) | {
    f"logical_{word}" for word in ("and", "not", "or", "xor")
}
"""Records whose gradient in place is another than that of their result: torch has none and says so in the backward, has zeros
where the result has none, or lets gradients through."""


def name_of(fn: Callable[..., Any]) -> str:
    """A torch function's own name: ``mul_``, also of ``torch.ops.aten.mul_.Tensor``."""
    return getattr(fn, "__name__", "").partition(".")[0]


def names_a_write(name: str) -> bool:
    """Whether a function of torch's, or the last part of its path, is called as those are that write: ``add_``."""
    return name.endswith("_") and not name.endswith("__")


def asks_in_place(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of ``torch.nn.functional`` is told to write to its first argument."""
    at = _position_of_inplace(fn)
    return bool(kwargs.get("inplace", at is not None and len(args) > at and args[at]))


@functools.cache
def _position_of_inplace(fn: Callable[..., Any]) -> int | None:
    if getattr(fn, "__module__", None) != "torch.nn.functional":
        return None
    names = list(inspect.signature(fn).parameters)
    return names.index("inplace") if "inplace" in names else None


def writes_first(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a torch function writes to its first argument: ``sort_``, ``__setitem__``, ``relu(x, inplace=True)``."""
    name = name_of(fn)
    return name in _WRITING or names_a_write(name) or asks_in_place(fn, args, kwargs)


def first_by_position(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with the first one by position: functions of ``torch.nn.init`` say ``tensor=``."""
    if args or "tensor" not in kwargs:
        return args, dict(kwargs)
    return (kwargs["tensor"],), {name: value for name, value in kwargs.items() if name != "tensor"}
