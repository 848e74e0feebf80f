"""Bitwise ops on integers, logical ops on bools, and shifts."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import binary, spelled, unary
from tinycompile.ops.samples import INTS, call, one, t, two
from tinycompile.ops.scalar import Builder, Value

ANY = (*INTS, "bool")


def _no_floats(kernel: str, bools: bool = True) -> Any:
    def meta(*operands: Any) -> TensorMeta:
        dtype = rules.result_type(operands)
        if dtype.is_floating_point or (dtype == torch.bool and not bools):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{rules.type_name(dtype)}'")
        return rules.elementwise(operands, dtype, dtype)

    return meta


def _operators(name: str, inplace: str, dunder: str) -> tuple[str, ...]:
    return f"operator.{name}", f"operator.{inplace}", f"torch.Tensor.__{dunder}__", f"torch.Tensor.__i{dunder}__"


unary(
    "bitwise_not",
    lambda b, x: ~x,
    "default",
    spelled("bitwise_not", "tm", "operator.invert", "torch.Tensor.__invert__"),
    one(ANY),
    meta=_no_floats("bitwise_not_cpu"),
)
for _name, _formula in (
    ("and", lambda b, x, y: x & y),
    ("or", lambda b, x, y: x | y),
    ("xor", lambda b, x, y: x ^ y),
):
    binary(
        f"bitwise_{_name}",
        _formula,
        "default",
        spelled(f"bitwise_{_name}", "tm", *_operators(f"{_name}_" if _name != "xor" else _name, f"i{_name}", _name)),
        two(ANY, number=3),
        meta=_no_floats(f"bitwise_{_name}_cpu"),
    )


# ----------------------------------------------------------------------------------------------------------------- shifts


def _bits(x: Value) -> int:
    return torch.iinfo(x.dtype).bits


def _left_shift(b: Builder, x: Value, count: Value) -> Value:
    """Zero for a count out of range."""
    bits = _bits(x)
    inside = (count >= 0) & (count < bits)
    return b.where(inside, b("shl", x, b.where(inside, count, 0)), 0)


def _right_shift(b: Builder, x: Value, count: Value) -> Value:
    """A count out of range shifts everything out: the sign for signed types, zero for uint8."""
    bits = _bits(x)
    inside = (count >= 0) & (count < bits)
    if x.dtype == torch.uint8:
        return b.where(inside, b("shr", x, b.where(inside, count, 0)), 0)
    return b("shr", x, b.where(inside, count, bits - 1))


_COUNTS = (
    *(call(t(9, dtype=d, fill="integers"), n) for d in INTS for n in (0, 1, 7, 200)),
    *(call(t(9, dtype=d, fill="integers"), t(9, dtype=d, fill="integers")) for d in INTS),
)
binary(
    "bitwise_left_shift",
    _left_shift,
    "default",
    spelled("bitwise_left_shift", "tm", *_operators("lshift", "ilshift", "lshift")),
    lambda: _COUNTS,
    meta=_no_floats("lshift_cpu", bools=False),
)
binary(
    "bitwise_right_shift",
    _right_shift,
    "default",
    spelled("bitwise_right_shift", "tm", *_operators("rshift", "irshift", "rshift")),
    lambda: _COUNTS,
    meta=_no_floats("rshift_cpu", bools=False),
)
