"""Which packages are taken not to change: the standard library's and torch's are not guarded inside."""

from __future__ import annotations

import functools
import sys
from types import BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import numpy as np
import torch

from tinycompile.ops.table import OpObject

BUILTIN_TYPES = (
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    MethodWrapperType,
    torch._ops.OpOverloadPacket,
    torch._ops.OpOverload,
    OpObject,
    functools._lru_cache_wrapper,
    np.ufunc,
    type(np.sum),  # numpy's functions that other libraries may take over
)
# Packages whose attributes are taken not to change.
_TRUSTED = frozenset(
    {
        "torch",
        "builtins",
        "math",
        "operator",
        "functools",
        "itertools",
        "collections",
        "typing",
        "numbers",
        "enum",
        "types",
        "abc",
        "contextlib",
        "inspect",
        "warnings",
        "copy",
        "tinycompile",
        "dataclasses",
    }
)


def is_trusted(module_name: str | None) -> bool:
    """Whether a module is the standard library's or torch's: not guarded inside."""
    return (module_name or "").partition(".")[0] in _TRUSTED


def trusts(cls: type) -> bool:
    """Whether a class is the standard library's or torch's own. One that the program makes may only say so: ``types.new_class``
    and ``exec`` name their callers' module, or Python's."""
    name = cls.__module__
    if not is_trusted(name) or name.partition(".")[0] in ("torch", "tinycompile") or not cls.__flags__ & HEAP_TYPE:
        return is_trusted(name)
    return hasattr(sys.modules.get(name), cls.__qualname__.partition(".")[0])


HEAP_TYPE = 1 << 9  # made by a class statement


def is_torch_object(obj: Any) -> bool:
    """Whether an object is one of torch's internals (its functions in C are methods of these)."""
    return type(obj).__module__.startswith("torch") and not isinstance(obj, (torch.Tensor, torch.Size))


def original_of(obj: Any) -> Any:
    """The module that a compiled module was made of, with which it shares its attributes; others are their own."""
    ours = any(cls.__module__ == "tinycompile.api" for cls in type(obj).__mro__)
    return obj.original if ours else obj
