"""How dtypes, constants and scalar ops are spelled in C++. One table a family of dtypes; ``{0}`` is the first operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tinycompile.base.dtypes import NARROW, e4m3fn_overflow
from tinycompile.base.errors import BackendError
from tinycompile.codegen.cpp.indexing import c_int

C_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "uint16_t",  # half types and float8 are held as their bits
    torch.bfloat16: "uint16_t",
    torch.float8_e4m3fn: "uint8_t",
    torch.float8_e5m2: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    torch.bool: "bool",
}
MEMORY_TYPES = C_TYPES | {torch.bool: "uint8_t"}  # in arrays: GCC 12 does not vectorise loads of bool

_COMPARE = {
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "where": "{0} ? {1} : {2}",
}  # fmt: skip

_FLOAT = _COMPARE | {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "isnan": "{0} != {0}", "reciprocal": "1 / {0}", "isinf": "tc::fabs({0}) == tc::INF", "signbit": "tc::signbit({0})",
    "abs": "tc::fabs({0})", "fmod": "tc::fmod({0}, {1})", "fma": "tc::fused({0}, {1}, {2})", "rsqrt": "1 / tc::sqrt({0})",
}  # fmt: skip

_INT = _COMPARE | {
    "truncdiv": "tc::truncdiv({0}, {1}, fault)", "floordiv": "tc::floordiv({0}, {1}, fault)",
    "mod": "tc::mod({0}, {1}, fault)", "fmod": "tc::fmod({0}, {1}, fault)",
    "and": "({T})({0} & {1})", "or": "({T})({0} | {1})", "xor": "({T})({0} ^ {1})", "not": "({T})~{0}",
}  # fmt: skip

_BOOL = _COMPARE | {
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} != {1}", "not": "!{0}", "checked": "tc::checked({0}, fault)",
}  # fmt: skip

# Ops that may set `fault`: a loop that uses one carries the flag.
_INT_FAULTS = frozenset(("truncdiv", "floordiv", "mod", "fmod"))
_FLOAT32_FAULTS = frozenset(("sin", "cos", "tan"))

# Roughly how many additions an op costs on float32; ops not named cost 1. For thread counts and for what to keep.
COST = {
    **dict.fromkeys(("exp", "exp2", "sigmoid", "log", "log2", "log10", "tanh", "erf", "expm1", "log1p", "sin", "cos"), 8),
    **dict.fromkeys(("tan", "sinh", "cosh", "atan", "asin", "acos", "asinh", "acosh", "atanh"), 12),
    **dict.fromkeys(("pow", "erfc", "atan2", "lgamma", "philox"), 30),
    **dict.fromkeys(("fmod", "mod", "floordiv", "truncdiv"), 10),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal"), 4),
}


def op_may_fault(op: str, dtype: torch.dtype) -> bool:
    """Whether an op on operands of ``dtype`` can ask for eager: divisions by zero, absurd angles, indices out of range."""
    return (
        op == "checked"
        or (op in _FLOAT32_FAULTS and dtype == torch.float32)
        or (op in _INT_FAULTS and not dtype.is_floating_point)
    )


def c_scalar(op: str, dtype: torch.dtype, args: Sequence[str], arg_dtypes: Sequence[torch.dtype]) -> str:
    """The C++ expression of a scalar op whose operands are simple names or literals."""
    if op == "cast":
        return c_cast(args[0], arg_dtypes[0], dtype)
    data = arg_dtypes[-1]
    if data in NARROW and op != "where":
        raise BackendError(f"{op} on {data}: narrow values must be cast to float32 before arithmetic")
    table = _FLOAT if data.is_floating_point else _BOOL if data == torch.bool else _INT
    places = [f"{{{i}}}" for i in range(len(args))]
    if op_may_fault(op, data) and op in _FLOAT32_FAULTS:
        places.append("fault")
    template = table.get(op, f"tc::{op}({', '.join(places)})")
    return template.format(*args, T=C_TYPES[data])


def c_read(element: str, dtype: torch.dtype) -> str:
    """An element of an array of :data:`MEMORY_TYPES` as a value."""
    return f"({element} != 0)" if dtype == torch.bool else element


def c_cast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    """``x`` converted as torch's ``.to()`` does; floats to narrow integers go through int32, as torch's own kernels do."""
    if source == target:
        return x
    if source in NARROW:
        return c_cast(f"tc::from_{_name(source)}({x})", torch.float32, target)
    if target in NARROW:
        over = f", {e4m3fn_overflow():#x}" if target is torch.float8_e4m3fn else ""
        return f"tc::to_{_name(target)}({c_cast(x, source, torch.float32)}{over})"
    if target == torch.bool:
        return f"{x} != 0"
    if source.is_floating_point and not target.is_floating_point:
        if target.itemsize < 4:
            return f"({C_TYPES[target]})(int32_t)({x})"
        if target in (torch.uint32, torch.uint64):
            return f"({C_TYPES[target]})(int64_t)({x})"
        return f"tc::to_int<{C_TYPES[target]}>({x})"
    return f"({C_TYPES[target]})({x})"


def c_const(value: Any, dtype: torch.dtype) -> str:
    """A literal of ``dtype``."""
    if dtype in NARROW:
        bits = torch.uint8 if dtype.itemsize == 1 else torch.int16
        raw = int(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype).view(bits).item()) & 0xFFFF
        return f"({C_TYPES[dtype]}){raw:#0{2 + 2 * dtype.itemsize}x}"
    if dtype.is_floating_point:
        return _c_float(float(value), dtype)
    if dtype == torch.bool:
        return "true" if value else "false"
    text = c_int(int(value))
    return text if dtype == torch.int32 else f"({C_TYPES[dtype]}){text}"


def _c_float(value: float, dtype: torch.dtype) -> str:
    single = dtype == torch.float32
    number = float(np.float32(value)) if single else value
    if math.isnan(number):
        return '__builtin_nanf("")' if single else '__builtin_nan("")'
    if math.isinf(number):
        sign = "-" if number < 0 else ""
        return f"{sign}tc::INF" if single else f"{sign}(double)tc::INF"
    text = str(np.float32(value)) if single else repr(value)
    text = text if any(c in text for c in ".e") else f"{text}.0"
    return f"{text}f" if single else text


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
