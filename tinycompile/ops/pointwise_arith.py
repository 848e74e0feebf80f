"""Arithmetic on tensors and numbers: add, sub, mul, the divisions, pow, minimum and friends."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import binary, declare, spelled, unary
from tinycompile.ops.record import Pointwise
from tinycompile.ops.samples import FLOATS, INTS, call, one, t, two
from tinycompile.ops.scalar import Builder, Number, Value

NUMERIC = (*FLOATS, *INTS)
ANY = (*NUMERIC, "bool")


def operators(name: str) -> tuple[str, ...]:
    """A Python operator and its in-place form, as a function and as a method."""
    return (f"operator.{name}", f"operator.i{name}", f"torch.Tensor.__{name}__", f"torch.Tensor.__i{name}__")


# ---------------------------------------------------------------------------------------------------------- add, sub, mul


def check_alpha(dtype: torch.dtype, alpha: Any) -> None:
    """ATen's ``alpha_check``."""
    if isinstance(alpha, bool) and dtype != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not dtype.is_floating_point:
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")


def _add_meta(x: Any, other: Any, alpha: Any = 1) -> TensorMeta:
    dtype = rules.result_type((x, other))
    check_alpha(dtype, alpha)
    return rules.elementwise((x, other), dtype, dtype)


def _sub_meta(x: Any, other: Any, alpha: Any = 1) -> TensorMeta:
    booleans = [isinstance(o, bool) or (isinstance(o, TensorMeta) and o.dtype == torch.bool) for o in (x, other)]
    if all(booleans):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        )
    if any(booleans):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
            "use the `~` or "
            "`logical_not()` operator instead."
        )
    return _add_meta(x, other, alpha)


def scaled(b: Builder, value: Value, alpha: Number) -> Value:
    """``alpha * value``; nothing for 1."""
    return value if not isinstance(alpha, Expr) and alpha == 1 else value * b.const(alpha, value.dtype)


def _add(b: Builder, x: Value, other: Value, alpha: Number = 1) -> Value:
    if x.dtype == torch.bool:
        return x | other if alpha else x
    return x + scaled(b, other, alpha)


def _sub(b: Builder, x: Value, other: Value, alpha: Number = 1) -> Value:
    return x - scaled(b, other, alpha)


def _mul(b: Builder, x: Value, other: Value) -> Value:
    return x & other if x.dtype == torch.bool else x * other


def _eager_add(x: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    return torch.add(x, other, alpha=alpha)


def _eager_sub(x: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    return torch.sub(x, other, alpha=alpha)


declare(
    "add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    _add_meta,
    Pointwise(_add),
    _eager_add,
    spelled("add", "tm", *operators("add")),
    lambda: [
        *two(ANY)(),
        call(t(3), t(3), alpha=0.5),
        call(t(3, dtype="int32"), t(3, dtype="int32"), alpha=3),
        call(t(3, dtype="int32"), 2.5),
        call(t(3, dtype="float16"), 2.5),
        call(t(3, dtype="int32"), t(3), alpha=2),
    ],
)
declare(
    "sub(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    _sub_meta,
    Pointwise(_sub),
    _eager_sub,
    (*spelled("sub", "tm", *operators("sub")), *spelled("subtract", "tm")),
    lambda: [*two(NUMERIC)(), call(t(3), t(3), alpha=0.5)],
)
binary("mul", _mul, "default", (*spelled("mul", "tm", *operators("mul")), *spelled("multiply", "tm")), two(ANY, number=2.5))


# --------------------------------------------------------------------------------------------------------------- division


def _differ_in_sign(a: Value, b: Value) -> Value:
    return (a < 0) ^ (b < 0)


def _floor_divide(b: Builder, x: Value, other: Value) -> Value:
    """ATen's ``div_floor_floating``: exact where floor(x / y) is off by rounding."""
    if not x.dtype.is_floating_point:
        return b("floordiv", x, other)
    mod = b("fmod", x, other)
    div = (x - mod) / other
    div = b.where(mod.ne(0) & _differ_in_sign(other, mod), div - 1, div)
    floor = b("floor", div)
    floor = b.where((div - floor) > 0.5, floor + 1, floor)
    quotient = x / other
    zero = b.where(b("signbit", quotient), -0.0, b.const(0.0, x.dtype))
    return b.where(other.eq(0), quotient, b.where(div.eq(0), zero, floor))


def _div_trunc(b: Builder, x: Value, other: Value) -> Value:
    return b("trunc", x / other) if x.dtype.is_floating_point else b("truncdiv", x, other)


def _remainder(b: Builder, x: Value, other: Value) -> Value:
    if not x.dtype.is_floating_point:
        return b("mod", x, other)
    mod = b("fmod", x, other)
    return b.where(mod.ne(0) & _differ_in_sign(other, mod), mod + other, mod)


def _not_for_bool(kernel: str) -> Any:
    def meta(x: Any, other: Any) -> TensorMeta:
        dtype = rules.result_type((x, other))
        if dtype == torch.bool:
            raise NotImplementedError(f"\"{kernel}\" not implemented for 'Bool'")
        return rules.elementwise((x, other), dtype, dtype)

    return meta


def _eager_div_floor(x: Any, other: Any) -> torch.Tensor:
    return torch.div(x, other, rounding_mode="floor")


def _eager_div_trunc(x: Any, other: Any) -> torch.Tensor:
    return torch.div(x, other, rounding_mode="trunc")


_NONZERO = two(NUMERIC, fill="positive", number=3)
_DIVISIONS = (
    call(t(8, fill="special"), t(8, fill="special")),
    call(t(9), -2.0),
    call(t(9, dtype="int32", fill="integers"), -3),
    call(t(64, dtype="float16"), 0.1),
    call(t(64), t(64)),
)
binary(
    "div",
    lambda b, x, y: x / y,
    "int_to_float",
    (
        *spelled("div", "tm", *operators("truediv"), "torch.Tensor.__div__"),
        *spelled("divide", "tm"),
        *spelled("true_divide", "tm"),
    ),
    two((*FLOATS, "int64", "int32", "uint8", "bool"), fill="positive", number=3),
)
binary(
    "floor_divide",
    _floor_divide,
    "default",
    spelled("floor_divide", "tm", *operators("floordiv")),
    lambda: [*_NONZERO(), *_DIVISIONS],
    meta=_not_for_bool("div_floor_cpu"),
)
binary(  # as ``floor_divide``, of which torch has no derivative
    "div_floor",
    _floor_divide,
    "default",
    (),
    lambda: [*_NONZERO(), *_DIVISIONS],
    _eager_div_floor,
    _not_for_bool("div_floor_cpu"),
)
binary(
    "div_trunc", _div_trunc, "default", (), lambda: [*_NONZERO(), *_DIVISIONS], _eager_div_trunc, _not_for_bool("div_trunc_cpu")
)
binary(
    "remainder",
    _remainder,
    "default",
    spelled("remainder", "tm", *operators("mod")),
    lambda: [*_NONZERO(), *_DIVISIONS],
    meta=_not_for_bool("remainder_cpu"),
)
binary(
    "fmod",
    lambda b, x, y: b("fmod", x, y),
    "default",
    spelled("fmod"),
    lambda: [*_NONZERO(), *_DIVISIONS],
    meta=_not_for_bool("fmod_cpu"),
)


# ------------------------------------------------------------------------------------------------- signs, parts, extremes


def _neg_meta(x: TensorMeta) -> TensorMeta:
    if x.dtype == torch.bool:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the `~` or "
            "`logical_not()` operator instead."
        )
    return rules.like(x)


def _sign(b: Builder, x: Value) -> Value:
    if x.dtype == torch.bool:
        return x
    zero = b.const(0, x.dtype)
    return b.where(x > 0, b.const(1, x.dtype), b.where(x < 0, -1, zero) if x.dtype != torch.uint8 else zero)


def _extreme(word: str) -> Any:
    """minimum, maximum, fmin, fmax; bools and integers have no NaN."""
    whole = {"fmin": "minimum", "fmax": "maximum"}.get(word, word)

    def formula(b: Builder, x: Value, other: Value) -> Value:
        if x.dtype == torch.bool:
            return x & other if whole == "minimum" else x | other
        if not x.dtype.is_floating_point:
            return b(whole, x, other)
        return b(word, other, x) if word != whole else b(word, x, other)  # of equal zeros fmin and fmax give the first

    return formula


unary(
    "neg",
    lambda b, x: -x,
    "default",
    (*spelled("neg", "tm", "operator.neg", "torch.Tensor.__neg__"), *spelled("negative")),
    one(NUMERIC),
    meta=_neg_meta,
)
unary(
    "abs",
    lambda b, x: x if x.dtype in (torch.bool, torch.uint8) else b("abs", x),
    "default",
    (*spelled("abs", "tm", "operator.abs", "builtins.abs", "torch.Tensor.__abs__"), *spelled("absolute")),
    one(NUMERIC),
)
unary("sign", _sign, "default", spelled("sign"), one(ANY))
unary("sgn", _sign, "default", spelled("sgn"), one(ANY))
unary(
    "square",
    lambda b, x: x * x if x.dtype != torch.bool else x,
    "default",
    spelled("square"),
    one((*NUMERIC, "bool")),
    meta=lambda x: rules.elementwise((x,), dtype := rules.result_type((x, 2)), dtype),
)
unary("positive", lambda b, x: x, "default", (), one(NUMERIC), eager=torch.clone, meta=rules.empty_like)
for _name in ("minimum", "maximum"):
    binary(_name, _extreme(_name), "default", spelled(_name), two(ANY, number=None))
for _name in ("fmin", "fmax"):
    binary(_name, _extreme(_name), "default", spelled(_name), two(ANY, number=None))
