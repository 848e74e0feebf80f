"""Derivatives of the activation functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinycompile.ops.activations import slope_of_channels
from tinycompile.ops.calls import ops
from tinycompile.ops.gradients import Gradients, as_it_was, one_input, sum_to, vjp

Args = Sequence[Any]
_SIXTH = 0.1666666716337204  # 1 / 6 in single precision, with which torch multiplies doubles too


def _gelu(g: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        cdf = (ops.erf(x * math.sqrt(0.5)) + 1) * 0.5
        pdf = ops.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (cdf + x * pdf)
    slope = math.sqrt(2 / math.pi)
    twice = (x + x * x * x * 0.044715) * (2 * slope)
    s = ops.sigmoid(twice)  # as the forward: tanh(u) is 2 s - 1
    rest = ops.sigmoid(ops.neg(twice))  # 1 - s, which cancels where x is large
    return g * (s + x * (s * rest) * ((x * x * (3 * 0.044715) + 1) * (2 * slope)))


def _silu(g: Any, x: Any) -> Any:
    s = ops.sigmoid(x)
    return g * (s * (x * (1 - s) + 1))


def _mish(g: Any, x: Any) -> Any:
    inner = ops.tanh(ops.softplus(x))
    return g * (inner + x * ops.sigmoid(x) * (1 - inner * inner))


def _softplus(g: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = x if beta == 1 else x * beta
    return ops.where(scaled > threshold, g, g * ops.sigmoid(scaled))


def _elu(g: Any, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    left = ops.exp(x * input_scale) * (alpha * scale * input_scale)
    return g * ops.where(x <= 0, left, float(scale))


def _hardswish(g: Any, x: Any) -> Any:
    return ops.where(x <= -3, 0.0, ops.where(x < 3, g * (x / 3 + 0.5), g))


def _softsign(g: Any, x: Any) -> Any:
    """Not g / (1 + |x|)^2: torch's is the quotient rule, NaN at infinity."""
    below = as_it_was(ops.abs(x) + 1)
    return g / below - g * (x / below / below) * ops.sign(x)


def _log_sigmoid(g: Any, x: Any) -> Any:
    """Torch keeps exp(-|x|) on a CPU, so the sign alone is that of ``x`` by then."""
    was = as_it_was(x) if x.device.type == "cpu" else x
    return g * ops.sigmoid(-(x if was is x else ops.copysign(was, x)))


def _outside(low: Any, high: Any, g: Any, x: Any) -> Any:
    """Zero at the bounds and beyond."""
    return ops.where(ops.logical_or(x <= low, x >= high), 0.0, g)


def _shrunk(g: Any, x: Any, lambd: Any = 0.5) -> Any:
    return ops.where(ops.logical_and(x >= -lambd, x <= lambd), 0.0, g)


one_input("relu", "result", lambda g, y: ops.where(y <= 0, 0.0, g))
_FROM_INPUT: dict[str, Any] = {
    "relu6": lambda g, x: _outside(0, 6, g, x),
    "hardtanh": lambda g, x, low=-1, high=1: _outside(low, high, g, x),
    "leaky_relu": lambda g, x, slope=0.01: ops.where(x > 0, g, g * slope),
    "hardshrink": _shrunk,
    "softshrink": _shrunk,
    "threshold": lambda g, x, threshold, value: ops.where(x <= threshold, 0.0, g),
    "elu": _elu,
    "celu": lambda g, x, alpha=1.0: _elu(g, x, alpha, 1, 1 / alpha),
    "selu": lambda g, x: _elu(g, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "gelu": _gelu,
    "softplus": _softplus,
    "silu": _silu,
    "mish": _mish,
    "hardswish": _hardswish,
    "hardsigmoid": lambda g, x: ops.where(ops.logical_and(x > -3, x < 3), g * _SIXTH, 0.0),
    "softsign": _softsign,
    "log_sigmoid": _log_sigmoid,
}
for _name, _slope in _FROM_INPUT.items():
    one_input(_name, "self", _slope)


@vjp("prelu", "self", "weight")
def _prelu(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """One product a place, as in ATen's kernel: of ``where`` it would be a sum with 0, which has no sign."""
    x, weight = args
    slope, positive = slope_of_channels(x, weight), ops.gt(x, 0)
    of_weight = sum_to(ops.where(positive, 0.0, ops.mul(x, grads[0])), slope) if needs[1] else None
    return (
        ops.where(positive, grads[0], ops.mul(slope, grads[0])) if needs[0] else None,
        None if of_weight is None else ops.reshape(of_weight, tuple(weight.shape)),
    )
