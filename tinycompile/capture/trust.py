"""Which packages are taken not to change: the standard library's and torch's are not guarded inside."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
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


_OWN = ("torch", "tinycompile")  # where some are made that are in no module, and nobody else's


def is_trusted(module_name: str | None) -> bool:
    """Whether a module is the standard library's or torch's: not guarded inside."""
    return (module_name or "").partition(".")[0] in _TRUSTED


def trusts(obj: Any) -> bool:
    """Whether a class, function or other object is the standard library's or torch's own. One that the program makes may only
    say so: ``types.new_class`` and ``exec`` name their callers' module, or Python's, and ``functools.wraps`` that of another
    function."""
    name = getattr(obj, "__module__", None)
    if not isinstance(name, str) or not is_trusted(name):
        return False
    if isinstance(obj, FunctionType):
        return trusts_variables_of(obj.__globals__)
    return _is_found(obj) if isinstance(obj, type) else trusts(type(obj))


def trusts_variables_of(globals_: Mapping[str, Any]) -> bool:
    """Whether these are the variables of a module of the standard library's or torch's, not of code that only has its name."""
    name = globals_.get("__name__")
    if not isinstance(name, str) or not is_trusted(name):
        return False
    module = sys.modules.get(name)
    return name.partition(".")[0] in _OWN or (module is not None and vars(module) is globals_)


def _is_found(cls: type) -> bool:
    """Whether a class of a trusted module's is in that module."""
    package, names = cls.__module__.partition(".")[0], cls.__qualname__.split(".")
    if package in _OWN or not cls.__flags__ & HEAP_TYPE:
        return True
    found: Any = sys.modules.get(cls.__module__)
    if "<locals>" in names:
        return hasattr(found, names[0])
    for name in names:
        found = getattr(found, name, None)
    return found is cls


def module_of(cls: type) -> str:
    """The name of the module that a class says it is in: none where it was made by code without one."""
    name = getattr(cls, "__module__", None)
    return name if isinstance(name, str) else ""


def is_of(cls: type, *modules: str) -> bool:
    """Whether a class is one of these modules' of the standard library's or torch's."""
    return module_of(cls) in modules and trusts(cls)


HEAP_TYPE = 1 << 9  # made by a class statement


def is_torch_object(obj: Any) -> bool:
    """Whether an object is one of torch's internals (its functions in C are methods of these)."""
    return module_of(type(obj)).startswith("torch") and not isinstance(obj, (torch.Tensor, torch.Size))


def original_of(obj: Any) -> Any:
    """The module that a compiled module was made of, with which it shares its attributes; others are their own."""
    ours = any(module_of(cls) == "tinycompile.api" for cls in type(obj).__mro__)
    return obj.original if ours else obj
