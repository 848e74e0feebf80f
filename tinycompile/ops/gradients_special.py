"""Derivatives of special functions, as ATen has them (``derivatives.yaml``): also at the points where a formula is 0/0."""

from __future__ import annotations

import math
from typing import Any

import torch

from tinycompile.ops.calls import ops
from tinycompile.ops.gradients import as_it_was, constant_op, form, one_input, several_inputs


def _sinc(g: Any, x: Any) -> Any:
    """(cos(pi x) - sinc(x)) / x, 0 at 0."""
    at = x * math.pi
    square = at * x
    return ops.where(ops.eq(square, 0), 0.0, g * ((at * ops.cos(at) - ops.sin(at)) / square))


def _i1(g: Any, x: Any) -> Any:
    """i0(x) - i1(x) / x, 1/2 at 0."""
    tiny, safe = _near_zero(x)
    return g * ops.where(tiny, 0.5, ops.i0(safe) - as_it_was(ops.special_i1(x)) / safe)


def _i1e(g: Any, x: Any) -> Any:
    """i0e(x) - i1e(x) (sign(x) + 1 / x), 1/2 at 0."""
    tiny, safe = _near_zero(x)
    y = as_it_was(ops.special_i1e(x))
    return g * ops.where(tiny, 0.5, ops.special_i0e(safe) - y * (ops.sign(safe) + ops.reciprocal(safe)))


def _near_zero(x: Any) -> tuple[Any, Any]:
    """Where a quotient by ``x`` says nothing, and ``x`` with something else there. NaN is such a place, as torch has it."""
    least = torch.finfo(x.dtype).eps
    tiny = ops.logical_not(ops.gt(ops.abs(x), least))
    return tiny, ops.where(tiny, least, x)


def _logit(g: Any, x: Any, eps: float | None) -> Any:
    """1 / (x (1 - x)); beyond the bounds 0, and NaN where nobody set any."""
    low, high, beyond = (0.0, 1.0, math.nan) if eps is None else (eps, 1.0 - eps, 0.0)
    inside = ops.logical_and(ops.ge(x, low), ops.le(x, high))
    return ops.where(inside, g / (x * (1.0 - x)), beyond)


def _log_ndtr(g: Any, x: Any) -> Any:
    """NaN at minus infinity, as in torch, whose own way loses digits before."""
    was = as_it_was(x)
    slope = math.sqrt(2 / math.pi) / ops.special_erfcx(was * -math.sqrt(0.5))
    slope = slope if was is x else slope * ops.exp((was - x) * (was + x) * 0.5)  # of x by then, and the result before
    return ops.where(ops.isneginf(x), math.nan, g * slope)


def _erfinv(g: Any, x: Any) -> Any:
    y = ops.erfinv(x)
    return g * (ops.exp(y * y) * (math.sqrt(math.pi) / 2))


_FROM_INPUT: dict[str, Any] = {
    "sinc": _sinc,
    "special_entr": lambda g, x: -g * (ops.log(x) + 1),
    "logit": _logit,
    "i0": lambda g, x: g * ops.special_i1(x),
    "special_i0e": lambda g, x: g * (ops.special_i1e(x) - ops.sign(x) * as_it_was(ops.special_i0e(x))),
    "special_i1": _i1,
    "special_i1e": _i1e,
    "special_erfcx": lambda g, x: g * (x * 2 * as_it_was(ops.special_erfcx(x)) - 2 / math.sqrt(math.pi)),
    "special_log_ndtr": _log_ndtr,
    "erfinv": _erfinv,
}
_FROM_RESULT: dict[str, Any] = {
    "special_ndtri": lambda g, y: g * math.sqrt(2 * math.pi) * ops.exp(y * y * 0.5),
}
_RESULT_TOO = frozenset(f"special_{name}" for name in ("i0e", "i1", "i1e", "erfcx", "log_ndtr"))
"""Of these torch's formula reads the result beside the input."""
for _saved, _family in (("self", _FROM_INPUT), ("result", _FROM_RESULT)):
    for _name, _slope in _family.items():
        one_input(_name, _saved, _slope, *(["result"] if _name in _RESULT_TOO else []))
constant_op("angle", "self")


@form("special_ndtr")
def _ndtr(x: Any) -> Any:
    return ops.mul(ops.add(ops.erf(ops.mul(x, math.sqrt(0.5))), 1.0), 0.5)


_BOTH = ("self", "other")
several_inputs(
    "special_xlog1py", _BOTH,
    lambda g, x, y: ops.where(ops.eq(x, 0) & (y <= -1), 0.0, ops.special_xlog1py(g, y)),
    lambda g, x, y: g * x / (y + 1),
)  # fmt: skip
several_inputs(
    "logaddexp2", _BOTH,
    lambda g, x, y: g / (ops.exp2(y - x) + 1),
    lambda g, x, y: g / (ops.exp2(x - y) + 1),
)  # fmt: skip
