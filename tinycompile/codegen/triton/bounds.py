"""What the ops of a nest say about its values: bounds on magnitudes, and whether cheap approximations are good enough."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tinycompile.codegen.triton.dtypes import HALF
from tinycompile.ir.loops import Const, Nest, Reduce, Scalar, Scan, Store

_UNIT = frozenset({"tanh", "sin", "cos", "sigmoid", "erf"})
_SAME = frozenset({"neg", "abs", "cast", "floor", "ceil", "trunc", "round"})
_LARGEST = frozenset({"minimum", "maximum", "where", "fmin", "fmax"})
_APPROXIMATED = frozenset({"div", "reciprocal", "sqrt", "exp", "sigmoid", "tanh"})
_JUMPS = frozenset({"floor", "ceil", "trunc", "round", "fmod", "eq", "ne", "lt", "le", "gt", "ge"})


def may_approximate(nest: Nest, dtypes: Mapping[str, torch.dtype]) -> bool:
    """Whether every result is stored as a half type (``dtypes``: of buffers) and nothing jumps with the last bits of a value:
    no comparison, rounding, conversion to integer or argmax sees an approximated one."""
    if not all(dtypes[s.buffer] in HALF for s in nest.body if isinstance(s, Store)):
        return False
    inexact: set[str] = set()
    for s in nest.body:
        if not isinstance(s, (Scalar, Reduce, Scan)) or not (inexact & set(s.args) or getattr(s, "op", "") in _APPROXIMATED):
            continue
        if isinstance(s, Scalar):
            jumps = s.op in _JUMPS or (s.op == "cast" and not s.dtype.is_floating_point)
        else:
            jumps = s.kind.startswith("arg")
        if jumps:
            return False
        inexact.update((s.name,) if isinstance(s, Scalar) else s.names)
    return True


def magnitudes(nest: Nest) -> Mapping[str, float]:
    """An upper bound of ``|value|`` for each value that has one (NaN aside); others are absent.

    ``sin(tanh(x) * 1.1)`` needs no reduction of huge angles."""
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
