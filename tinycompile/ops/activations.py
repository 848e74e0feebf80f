"""Activation functions: pointwise, named after ATen's ops; ``torch.nn.functional`` spells most of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import composite, declare, spelled, unary
from tinycompile.ops.record import Decompose, Pointwise
from tinycompile.ops.samples import FLOATS, INTS, call, one, t
from tinycompile.ops.scalar import Builder, Number, Value


def _float_only(kernel: str) -> Any:
    def meta(x: TensorMeta, *attrs: Any) -> TensorMeta:
        if not x.dtype.is_floating_point:
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{rules.type_name(x.dtype)}'")
        return rules.like(x)

    return meta


def _hardtanh_meta(x: TensorMeta, low: Number = -1, high: Number = 1) -> TensorMeta:
    if low > high:
        raise ValueError("min_val cannot be greater than max_val")
    return rules.empty_like(x)


def _softshrink_meta(x: TensorMeta, lambd: Number = 0.5) -> TensorMeta:
    result = _float_only("softshrink_cpu")(x)
    largest = torch.finfo(x.dtype).max
    if not 0 <= lambd <= largest:
        known = f"[0, {largest:g}] for input dtype {rules.type_name(x.dtype)}"
        raise RuntimeError(f"lambda must be in range {known}, but found {float(lambd):g}")
    return result


def _celu_meta(x: TensorMeta, alpha: Number = 1.0) -> TensorMeta:
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _float_only("elu_cpu")(x)


def _like(x: TensorMeta, *attrs: Any) -> TensorMeta:
    return rules.like(x)


# ------------------------------------------------------------------------------------------------------ relu and its kin


def _relu_meta(x: TensorMeta) -> TensorMeta:
    if x.dtype == torch.bool:
        raise RuntimeError("Boolean inputs not supported for relu")
    return rules.like(x)


def _relu6_meta(x: TensorMeta) -> TensorMeta:
    _relu_meta(x)
    return rules.empty_like(x)


def _clip(b: Builder, x: Value, low: Number, high: Number) -> Value:
    """NaN stays NaN, and -0.0 stays -0.0: where both are equal, the second operand is taken."""
    return b("minimum", b.const(high, x.dtype), b("maximum", b.const(low, x.dtype), x))


def _relu(b: Builder, x: Value) -> Value:
    return b("maximum", b.const(0, x.dtype), x)


def _hardtanh(b: Builder, x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    return _clip(b, x, min_val, max_val)


def _leaky_relu(b: Builder, x: Value, negative_slope: Number = 0.01) -> Value:
    return b.where(x > 0, x, x * float(negative_slope))


def _hardshrink(b: Builder, x: Value, lambd: Number = 0.5) -> Value:
    return b.where((x >= -lambd) & (x <= lambd), 0.0, x)


def _softshrink(b: Builder, x: Value, lambd: Number = 0.5) -> Value:
    return b.where(x > lambd, x - lambd, b.where(x < -lambd, x + lambd, x * 0))


def _threshold(b: Builder, x: Value, threshold: Number, value: Number) -> Value:
    return b.where(x <= threshold, value, x)


unary("relu", _relu, "default", spelled("relu", "tmf"), one((*FLOATS, *INTS)), meta=_relu_meta)
unary("relu6", lambda b, x: _clip(b, x, 0, 6), "default", spelled("relu6", "f"), one(FLOATS), eager=F.relu6, meta=_relu6_meta)
declare(
    "hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor",
    _hardtanh_meta,
    Pointwise(_hardtanh),
    F.hardtanh,
    spelled("hardtanh", "f"),
    lambda: [*one(FLOATS)(), call(t(9), -0.5, 0.25)],
)
declare(
    "leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor",
    _float_only("leaky_relu_cpu"),
    Pointwise(_leaky_relu),
    F.leaky_relu,
    spelled("leaky_relu", "f"),
    lambda: [*one(FLOATS)(), call(t(9), 0.3), call(t(9), 0)],
)
declare(
    "hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor",
    _float_only("hardshrink_cpu"),
    Pointwise(_hardshrink),
    torch.hardshrink,
    spelled("hardshrink", "tmf"),
    lambda: [*one(FLOATS)(), call(t(9), 1.0)],
)
declare(
    "softshrink(Tensor self, Scalar lambd=0.5) -> Tensor",
    _softshrink_meta,
    Pointwise(_softshrink),
    F.softshrink,
    spelled("softshrink", "f"),
    lambda: [*one(FLOATS)(), call(t(9), 1.0)],
)
declare(
    "threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor",
    _like,
    Pointwise(_threshold),
    torch.threshold,
    spelled("threshold", "tf"),
    one(FLOATS, "normal", 0.1, 20.0),
)


# -------------------------------------------------------------------------------------------- exponential linear units


def _elu(b: Builder, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    left = b("expm1", x * float(input_scale)) * (float(alpha) * float(scale))
    return b.where(x < 0, left, x if scale == 1 else x * float(scale))


def _celu(b: Builder, x: Value, alpha: Number = 1.0) -> Value:
    return _elu(b, x, alpha, 1, 1 / alpha)


def _selu(b: Builder, x: Value) -> Value:
    return _elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


declare(
    "elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor",
    _float_only("elu_cpu"),
    Pointwise(_elu),
    torch.ops.aten.elu,
    spelled("elu", "f"),
    lambda: [*one(FLOATS)(), call(t(9), 0.7)],
    ulp=4.0,
)
declare(
    "celu(Tensor self, Scalar alpha=1.0) -> Tensor",
    _celu_meta,
    Pointwise(_celu),
    torch.celu,
    spelled("celu", "tf"),
    lambda: [*one(FLOATS)(), call(t(9), 0.7)],
    ulp=4.0,
)
unary("selu", _selu, "default", spelled("selu", "tf"), one(FLOATS), meta=_float_only("elu_cpu"), ulp=4.0)


# ------------------------------------------------------------------------------------------------- smooth activations


def _gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    """Hendrycks and Gimpel, 2016. The tanh form is ``x * sigmoid(2u)``, equal to ``x/2 * (1 + tanh(u))`` and cheap on GPUs."""
    if approximate == "none":
        return x * 0.5 * (b("erf", x * math.sqrt(0.5)) + 1)
    u = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * b("sigmoid", u * 2)


def _gelu_meta(x: TensorMeta, approximate: str = "none") -> TensorMeta:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    if not x.dtype.is_floating_point:
        raise NotImplementedError(f"\"GeluKernelImpl\" not implemented for '{rules.type_name(x.dtype)}'")
    return rules.like(x)


def _softplus_of(b: Builder, x: Value) -> Value:
    return b.where(x > 20.0, x, b("log1p", b("exp", x)))


def _softplus(b: Builder, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    scaled = x if beta == 1 else x * float(beta)
    soft = b("log1p", b("exp", scaled))
    return b.where(scaled > float(threshold), x, soft if beta == 1 else soft / float(beta))


def _log_sigmoid(b: Builder, x: Value) -> Value:
    return b("minimum", x, b.const(0.0, x.dtype)) - b("log1p", b("exp", -b("abs", x)))


def _log_sigmoid_meta(x: TensorMeta) -> TensorMeta:
    """The CPU kernel also writes a buffer for its backward, and lays both out row-major."""
    found: TensorMeta = _float_only("log_sigmoid_cpu")(x)
    return rules.fresh(x.shape, x.dtype, x.device) if x.device.type == "cpu" else found


def _eager_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return F.gelu(x, approximate=approximate)


declare(
    "gelu(Tensor self, *, str approximate='none') -> Tensor",
    _gelu_meta,
    Pointwise(_gelu),
    _eager_gelu,
    spelled("gelu", "f"),
    lambda: [*one(FLOATS)(), *one(FLOATS, approximate="tanh")()],
    ulp=8.0,
)
declare(
    "softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor",
    _float_only("softplus_cpu"),
    Pointwise(_softplus),
    F.softplus,
    spelled("softplus", "f"),
    lambda: [*one(FLOATS)(), call(t(9), 2.0, 1.0)],
    ulp=4.0,
)


# name, formula, namespaces, the torch function, ATen's kernel name in errors
_SMOOTH: tuple[tuple[str, Any, str, Any, str], ...] = (
    ("silu", lambda b, x: x * b("sigmoid", x), "f", F.silu, "silu_cpu"),
    ("mish", lambda b, x: x * b("tanh", _softplus_of(b, x)), "f", F.mish, "mish_cpu"),
    ("hardswish", lambda b, x: x * _clip(b, x + 3, 0, 6) / 6, "f", F.hardswish, "hardswish_cpu"),
    ("hardsigmoid", lambda b, x: _clip(b, x + 3, 0, 6) / 6, "f", F.hardsigmoid, "hardsigmoid_cpu"),
    ("log_sigmoid", _log_sigmoid, "", F.logsigmoid, "log_sigmoid_cpu"),
)
for _name, _formula, _where, _eager, _kernel in _SMOOTH:
    _meta = _log_sigmoid_meta if _name == "log_sigmoid" else _float_only(_kernel)
    _functions = ("torch.nn.functional.logsigmoid",) if _name == "log_sigmoid" else spelled(_name, _where)
    unary(_name, _formula, "default", _functions, one(FLOATS), eager=_eager, meta=_meta, ulp=4.0)

# Of several ops in torch too: integers wrap in the first of them.
composite(
    "softsign(Tensor self) -> Tensor",
    lambda x: ops.div(x, ops.add(ops.abs(x), 1)),
    F.softsign,
    spelled("softsign", "f"),
    one((*FLOATS, *INTS)),
)
composite(
    "tanhshrink(Tensor self) -> Tensor",
    lambda x: ops.sub(x, ops.tanh(x)),
    F.tanhshrink,
    spelled("tanhshrink", "f"),
    one((*FLOATS, *INTS)),
)


# ---------------------------------------------------------------------------------------------------- gates and learned


def _glu_meta(x: TensorMeta, dim: int = -1) -> TensorMeta:
    if not x.shape:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    at = rules.shapes.normalize_dim(dim, x.rank)
    size = x.shape[at]
    if not rules.shapes.same(size % 2, 0):
        raise RuntimeError(f"Halving dimension must be even, but dimension {at} is size {size}")
    half = TensorMeta((*x.shape[:at], size // 2, *x.shape[at + 1 :]), x.strides, x.dtype, x.device)
    return rules.elementwise((half, half), x.dtype)


def _glu(x: Any, dim: int = -1) -> Any:
    at = dim % len(x.shape)
    half = x.shape[at] // 2
    return ops.mul(ops.slice(x, at, 0, half), ops.sigmoid(ops.slice(x, at, half)))


def _prelu_meta(x: TensorMeta, weight: TensorMeta) -> TensorMeta:
    if weight.rank > 1:
        raise RuntimeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.rank}")
    channels = 1 if x.rank < 2 else x.shape[1]
    if not rules.is_one(weight.numel) and not rules.shapes.same(weight.numel, channels):
        raise RuntimeError(
            f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {weight.numel} and "
            f"channel size = {channels}."
        )
    return rules.empty_like(x)


def slope_of_channels(x: Any, weight: Any) -> Any:
    """The slope of ``prelu`` in a shape that broadcasts with ``x``: one a channel, or one for all."""
    if len(weight.shape) and len(x.shape) >= 2:
        return ops.view(weight, (1, -1, *(1 for _ in x.shape[2:])))
    return weight if len(x.shape) else ops.view(weight, ())


def _prelu(x: Any, weight: Any) -> Any:
    return ops.where(ops.gt(x, 0), x, ops.mul(x, slope_of_channels(x, weight)))


declare(
    "glu(Tensor self, int dim=-1) -> Tensor",
    _glu_meta,
    Decompose(_glu),
    F.glu,
    spelled("glu", "f"),
    lambda: [*(call(t(4, 6, dtype=d)) for d in FLOATS), call(t(4, 6), 0), call(t(2, 4, 3), -2)],
    ulp=4.0,
)
declare(
    "prelu(Tensor self, Tensor weight) -> Tensor",
    _prelu_meta,
    Decompose(_prelu),
    torch.prelu,
    spelled("prelu", "tmf"),
    lambda: [call(t(4, 6), t(1)), call(t(4, 6), t(6)), call(t(2, 3, 4), t(3)), call(t(5), t(1))],
)
