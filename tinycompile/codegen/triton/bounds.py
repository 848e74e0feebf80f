"""Bounds on the magnitude of values, from the ops that made them: ``sin(tanh(x) * 1.1)`` needs no reduction of huge angles."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tinycompile.ir.loops import Const, Nest, Scalar

_UNIT = frozenset({"tanh", "sin", "cos", "sigmoid", "erf"})
_SAME = frozenset({"neg", "abs", "cast", "floor", "ceil", "trunc", "round"})
_LARGEST = frozenset({"minimum", "maximum", "where", "fmin", "fmax"})


def magnitudes(nest: Nest) -> Mapping[str, float]:
    """An upper bound of ``|value|`` for each value that has one (NaN aside); others are absent."""
    bound: dict[str, float] = {}
    for s in nest.body:
        if isinstance(s, Const) and isinstance(s.value, (int, float)):
            bound[s.name] = abs(float(s.value))
        elif isinstance(s, Scalar):
            top = _scalar(s.op, [bound.get(a, math.inf) for a in s.args])
            if top < math.inf:
                bound[s.name] = top
    return bound


def _scalar(op: str, args: list[float]) -> float:
    if op in _UNIT:
        return 1.0
    if op in _SAME:
        return args[0] + 1.0 if op in ("ceil", "floor", "round") else args[0]
    if op in _LARGEST:
        return max(args[-2:])
    if op in ("add", "sub"):
        return args[0] + args[1]
    if op == "mul" and math.inf not in args:
        return args[0] * args[1]
    return math.inf
