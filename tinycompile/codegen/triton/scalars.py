"""How Triton spells each scalar op: one table from (op, kind of dtype) to a template.

In a template ``{0}``, ``{1}`` are operands; a name before ``(`` that our library or libdevice defines is imported.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from tinycompile.base.dtypes import FLOAT8, e4m3fn_overflow
from tinycompile.base.errors import BackendError
from tinycompile.codegen.triton.dtypes import HALF, is_float, short_name, triton_dtype

# One spelling for all dtypes.
_ANY = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}", "shl": "{0} << {1}", "shr": "{0} >> {1}",
    "where": "tl.where({0}, {1}, {2})", "abs": "tl.abs({0})",
    "isnan": "{0} != {0}",
}  # fmt: skip

_BOOL = {
    "lt": "~{0} & {1}",
    "le": "~{0} | {1}",
    "gt": "{0} & ~{1}",
    "ge": "{0} | ~{1}",
    "checked": "{0}",  # the assertion stands before it
    "eq": "~({0} ^ {1})",
    "ne": "{0} ^ {1}",
}

_INT = {
    "philox": "philox({0}, {1})",
    "floordiv": "floor_divide({0}, {1})", "mod": "floor_mod({0}, {1})", "truncdiv": "{0} // {1}", "fmod": "{0} % {1}",
    "minimum": "tl.minimum({0}, {1})", "maximum": "tl.maximum({0}, {1})",
}  # fmt: skip
_UNSIGNED = {"floordiv": "{0} // {1}", "mod": "{0} % {1}", "abs": "{0}"}

_FLOAT = {
    "neg": "{0} * -1.0",  # Triton's unary minus is 0 - x, which loses the sign of zero
    "div": "tl.div_rn({0}, {1})", "reciprocal": "tl.div_rn(1.0, {0})", "fma": "tl.fma({0}, {1}, {2})",
    "minimum": "minimum({0}, {1})", "maximum": "maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})", "fmax": "tl.maximum({0}, {1})",
    "sqrt": "tl.sqrt_rn({0})", "rsqrt": "rsqrt_approx({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "trunc": "trunc({0})", "round": "round_even({0})",
    "exp": "exp({0})", "exp2": "exp2_approx({0})", "expm1": "expm1({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "log1p": "log1p({0})", "log10": "libdevice.log10({0})", "sin": "sin({0})", "cos": "cos({0})",
    "sin_near": "sin_near({0})", "sin_bounded": "sin_bounded({0})", "cos_bounded": "cos_bounded({0})",
    "sin_scalar": "tl.sin({0})", "cos_scalar": "tl.cos({0})",
    "sigmoid": "sigmoid({0})", "tanh": "tanh({0})", "erf": "erf({0})", "isinf": "tl.abs({0}) == float('inf')",
    "signbit": "{0}.to(tl.int32, bitcast=True) < 0",
}  # fmt: skip
_RARE = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "lgamma")
_FLOAT |= {name: f"libdevice.{name}({{0}})" for name in _RARE}
_FLOAT |= {name: f"libdevice.{name}({{0}}, {{1}})" for name in ["pow", "fmod", "atan2"]}

_FLOAT64 = {
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "sin_bounded": "tl.sin({0})", "cos_bounded": "tl.cos({0})",
    "sin_near": "tl.sin({0})",
    "div": "{0} / {1}", "reciprocal": "1.0 / {0}", "sqrt": "tl.sqrt({0})", "sigmoid": "sigmoid64({0})",
    "tanh": "libdevice.tanh({0})", "erf": "tl.erf({0})", "log1p": "libdevice.log1p({0})", "expm1": "libdevice.expm1({0})",
    "signbit": "{0}.to(tl.int64, bitcast=True) < 0",
}  # fmt: skip

# When every floating result of the kernel is stored as a half type.
_FAST = {
    "div": "{0} / {1}", "reciprocal": "1.0 / {0}", "sqrt": "tl.sqrt({0})", "exp": "fast_exp({0})",
    "sigmoid": "fast_sigmoid({0})", "tanh": "fast_tanh({0})", "erf": "fast_erf({0})",
}  # fmt: skip

_ATOM = re.compile(r"[\w.]+(\([^()]*\))?|-?[\d.]+(e[-+]?\d+)?")


def spell(op: str, dtype: torch.dtype, args: list[str], fast: bool) -> str:
    """The expression for ``op`` on operands of ``dtype`` (for ``where``: of the branches). ``fast``: see ``_FAST``."""
    tables: tuple[dict[str, str], ...]
    if dtype == torch.bool:
        tables = (_BOOL, _ANY)
    elif dtype == torch.float64:
        tables = (_FLOAT64, _FLOAT, _ANY)
    elif is_float(dtype):
        tables = (_FAST, _FLOAT, _ANY) if fast else (_FLOAT, _ANY)
    else:
        tables = (_INT, _ANY) if dtype.is_signed else (_UNSIGNED, _INT, _ANY)
    for table in tables:
        if op in table:
            template = table[op]
            return template.format(*(_operand(template, i, a) for i, a in enumerate(args)))
    raise BackendError(f"Triton codegen has no spelling for {op} on {dtype}")


def _operand(template: str, position: int, text: str) -> str:
    """Parenthesise an operand that is itself an expression, unless it is an argument of a call."""
    hole = "{" + str(position) + "}"
    inside_call = f"({hole}" in template or f", {hole}" in template
    return text if _ATOM.fullmatch(text) or (inside_call and f"{hole}." not in template) else f"({text})"


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """``text`` converted as ``torch.Tensor.to`` converts."""
    if source == target:
        return text
    text = text if _ATOM.fullmatch(text) else f"({text})"
    if source in FLOAT8:
        return cast(f"from_{short_name(source)}({text})", torch.float32, target)
    if target in FLOAT8:
        over = f", {e4m3fn_overflow():#x}" if target is torch.float8_e4m3fn else ""
        return f"to_{short_name(target)}({cast(text, source, torch.float32)}{over})"
    if target == torch.bool:
        return f"{text} != 0"
    if target in HALF and source != torch.float32:
        return f"{text}.to(tl.float32).to({triton_dtype(target)})"  # torch goes through float32 too
    if target == torch.uint8 and is_float(source):
        return f"{text}.to(tl.int64).to(tl.uint8)"  # torch's way; a negative float to an unsigned type is undefined
    return f"{text}.to({triton_dtype(target)})"


def literal(value: Any, dtype: torch.dtype) -> str:
    """A number as source text, exact for ``dtype``."""
    if dtype == torch.bool:
        return str(bool(value))
    if not is_float(dtype):
        return str(int(value))
    if dtype in FLOAT8:
        return str(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype).view(torch.uint8).item())
    number = float(value)
    if number != number:
        return 'float("nan")'
    if number in (float("inf"), float("-inf")):
        return f'float("{"-" if number < 0 else ""}inf")'
    return repr(number)
