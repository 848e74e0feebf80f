"""Numbers that a result's dtype can't hold.

Which calls refuse such a number ("value cannot be converted to type ... without overflow"), and what the others make of it,
differs from op to op, device to device and version to version of torch. Calls with one are torch's own; they are rare.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ops.record import Metas, Op

# Their operands meet a number in arithmetic that is wide enough, or that wraps as torch's does: nothing is refused.
_TAKE_ANY = frozenset({"add", "sub", "mul", "div"})
_OVERFLOWING = 2**31  # sizes stay below
INT64 = range(-(2**63), 2**63)  # ints that torch takes as numbers


def bounds(dtype: torch.dtype) -> tuple[Any, Any] | None:
    """The least and the greatest finite number of a dtype; None for bools and complex numbers, which torch converts freely."""
    if dtype == torch.bool or dtype.is_complex:
        return None
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def holds(dtype: torch.dtype, value: Any) -> bool:
    """Whether a Python number or a size can be converted to a dtype; of a symbolic size that is guarded."""
    ends = bounds(dtype)
    if ends is None:
        return True
    low, high = ends
    if isinstance(value, Expr):
        below = high >= _OVERFLOWING or shapes.at_least(int(high), value)
        return below and (low <= -_OVERFLOWING or shapes.at_least(value, int(low)))
    if isinstance(value, int):
        return INT64.start <= value < INT64.stop and low <= value <= high
    if not math.isfinite(value):
        return dtype.is_floating_point
    return bool(low <= value <= high)


def out_of_range(op: Op, args: tuple[Any, ...], metas: Metas) -> bool:
    """Whether some number among the arguments of a call is none of its results' dtypes. ``args``: in schema order."""
    results = metas if isinstance(metas, tuple) else (metas,)
    dtypes = {m.dtype for m in results if isinstance(m, TensorMeta)}
    for value, arg in zip(args, op.schema.args, strict=True):
        if arg.is_list or arg.base not in ("Tensor", "Scalar", "float") or not isinstance(value, (int, float, Expr)):
            continue
        free = isinstance(value, bool) or (arg.base == "Tensor" and op.name in _TAKE_ANY)
        if not free and not all(holds(dtype, value) for dtype in dtypes):
            return True
    return False
