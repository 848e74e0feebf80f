"""Powers, and pointwise ops of three tensors: lerp, addcmul, addcdiv."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.pointwise_arith import operators, scaled
from tinycompile.ops.record import Extern, Pointwise
from tinycompile.ops.samples import FLOATS, INTS, call, t, two
from tinycompile.ops.scalar import Builder, Number, Value

NUMERIC = (*FLOATS, *INTS)
ANY = (*NUMERIC, "bool")


# -------------------------------------------------------------------------------------------------------------------- pow


def _pow_meta(x: Any, exponent: Any) -> TensorMeta:
    dtype = rules.result_type((x, exponent))
    if not dtype.is_floating_point and isinstance(exponent, int) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return rules.elementwise([o for o in (x, exponent) if isinstance(o, TensorMeta)], dtype, dtype)  # a number is no operand


def _integer_power(b: Builder, x: Value, exponent: int) -> Value:
    """By squaring; wraps as the dtype does."""
    result: Value | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    return b.const(1, x.dtype) if result is None else result


def _pow_scalar(b: Builder, x: Value, exponent: Number) -> Value:
    """Small exponents go by multiplication and square root, as ATen's ``pow_tensor_scalar_optimized_kernel``."""
    if x.dtype == torch.bool:
        return x if exponent else x | True
    if not x.dtype.is_floating_point:
        return _integer_power(b, x, int(exponent))
    if exponent in (1, 2, 3):
        return _integer_power(b, x, int(exponent))
    if exponent == 0:
        return b.const(1.0, x.dtype)
    if exponent == 0.5:
        return b("sqrt", x)
    if exponent == -0.5:
        return b("rsqrt", x)
    if exponent == -1:
        return b("reciprocal", x)
    if exponent == -2:
        return b("reciprocal", x * x)
    return b("pow", x, b.const(float(exponent), x.dtype))


_POWERS = (0, 1, 2, 3, 4, 0.5, -0.5, -1.0, -2.0, 2.5, 1.0)
declare(
    "pow_scalar(Tensor self, Scalar exponent) -> Tensor",
    _pow_meta,
    Pointwise(_pow_scalar),
    torch.pow,
    (),
    lambda: [
        *(call(t(4, 5, dtype=d, fill="positive"), p) for d in FLOATS for p in _POWERS),
        *(call(t(9, dtype=d, fill="integers"), p) for d in INTS for p in (0, 1, 2, 5)),
        call(t(6, 4, layout="transposed"), 2),
        call(t(), 3),
        call(t(0), 2),
        call(t(9, fill="special"), 2.5),
        call(t(9, dtype="int32"), 2.5),
    ],
    doc="The exponent is a number: pow by multiplication where that is exact.",
)
declare(
    "pow(Tensor self, Tensor exponent) -> Tensor",
    _pow_meta,
    Pointwise(lambda b, x, exponent: b("pow", x, exponent)),
    torch.pow,
    (*spelled("pow", "tm", *operators("pow")),),
    lambda: [*two(FLOATS, fill="positive", number=None)(), call(2.0, t(4))],
)
declare(
    "pow_integers(Tensor self, Tensor exponent) -> Tensor",
    _pow_meta,
    Extern(),
    torch.pow,
    (),
    lambda: [call(t(9, dtype=d, fill="integers"), t(9, dtype=d, fill="positive")) for d in INTS],
    doc="Integer powers by a tensor: left to torch, no scalar op has them.",
)


# ---------------------------------------------------------------------------------------------- lerp, addcmul, addcdiv


def _one_dtype(name: str) -> Any:
    def meta(x: TensorMeta, end: TensorMeta, weight: Any) -> TensorMeta:
        for what, other in (("end", end), ("weight", weight)):
            if isinstance(other, TensorMeta) and other.dtype != x.dtype and not (what == "weight" and not other.shape):
                raise RuntimeError(f"expected dtype {_c_name(x.dtype)} for `{what}` but got dtype {_c_name(other.dtype)}")
        return rules.elementwise((x, end, weight if isinstance(weight, TensorMeta) else None), x.dtype)

    return meta


def _c_name(dtype: torch.dtype) -> str:
    return {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}.get(
        dtype, str(dtype).removeprefix("torch.")
    )


def _lerp(b: Builder, x: Value, end: Value, weight: Value) -> Value:
    near = b("abs", weight) < 0.5
    return b.where(near, x + weight * (end - x), end - (end - x) * (1 - weight))


def _addcmul(b: Builder, x: Value, tensor1: Value, tensor2: Value, value: Number = 1) -> Value:
    if x.dtype == torch.bool:
        return x | (tensor1 & tensor2) if value else x
    return x + scaled(b, tensor1, value) * tensor2


def _addcdiv(b: Builder, x: Value, tensor1: Value, tensor2: Value, value: Number = 1) -> Value:
    return x + scaled(b, tensor1, value) / tensor2


def _addcmul_meta(x: TensorMeta, tensor1: Any, tensor2: Any, value: Any = 1) -> TensorMeta:
    return rules.pointwise_default(x, tensor1, tensor2)


def _addcdiv_meta(x: TensorMeta, tensor1: Any, tensor2: Any, value: Any = 1) -> TensorMeta:
    if not any(o.dtype.is_floating_point for o in rules.tensors_of((tensor1, tensor2))):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a "
            "true division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as (input + "
            "value * torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as (input + value * "
            "tensor1 / tensor2) for float inputs. The future addcdiv behavior is just the latter implementation: "
            "(input + value * tensor1 / tensor2), for all dtypes."
        )
    return rules.pointwise_default(x, tensor1, tensor2)


declare(
    "lerp(Tensor self, Tensor end, Tensor weight) -> Tensor",
    _one_dtype("lerp"),
    Pointwise(_lerp),
    torch.lerp,
    spelled("lerp"),
    lambda: [
        *(call(t(4, 5, dtype=d), t(4, 5, dtype=d), 0.3) for d in FLOATS),
        call(t(4, 5), t(5), t(4, 1)),
        call(t(3), t(3), 0.7),
    ],
)
declare(
    "addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    _addcmul_meta,
    Pointwise(_addcmul),
    lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    spelled("addcmul"),
    lambda: [
        *(call(t(4, 5, dtype=d), t(4, 1, dtype=d), t(5, dtype=d), value=0.5) for d in FLOATS),
        call(t(4, dtype="int32"), t(4, dtype="int32"), t(4, dtype="int32")),
    ],
)
declare(
    "addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    _addcdiv_meta,
    Pointwise(_addcdiv),
    lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    spelled("addcdiv"),
    lambda: [call(t(4, 5, dtype=d), t(4, 1, dtype=d), t(5, dtype=d, fill="positive"), value=0.5) for d in FLOATS],
)
