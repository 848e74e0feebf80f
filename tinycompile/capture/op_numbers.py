"""Numbers as ops take them from a program: which may be known at run time only, and ints that torch can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinycompile.base import shapes
from tinycompile.base.expr import Expr
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.sequence import SequenceValue
from tinycompile.dispatch.schema import Argument
from tinycompile.ops.record import OPS

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

# Records whose kernels take a number of the schema that is known only at run time. Others are for the number of this call.
_AT_RUN_TIME = frozenset(
    {"add", "sub", "addcmul", "addcdiv", "full", "full_like", "new_full", "scalar_tensor", "arange", "threshold"}
)
_INTS = range(-(2**63), 2**64)


def taken(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a record; OverflowError for an int that torch has no type for."""
    of_floats = name == "arange" and any(type(value) is float for value in args[:3])  # whose length is no expression of sizes
    settle = name not in _AT_RUN_TIME or of_floats
    return tuple(_taken(value, arg, settle) for value, arg in zip(args, OPS[name].schema.args, strict=True))


def settled(value: Any) -> Any:
    """An argument for the numbers of this call, which are guarded: also those in tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(settled, value)) if any(type(v) in (Expr, tuple, list) for v in value) else value
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items()}
    return shapes.pinned(value) if isinstance(value, Expr) else value


def _taken(value: Any, arg: Argument, settle: bool) -> Any:
    if arg.base == "int":  # a dim, an offset, a number of parts: no size, and what follows is worked out for it
        return settled(value)
    if arg.is_list or arg.base not in ("Tensor", "Scalar", "float"):
        return value
    if isinstance(value, Expr):  # in a tensor's place it is an operand: kernels take that
        return shapes.pinned(value) if settle and arg.base != "Tensor" else value
    if type(value) is int and value not in _INTS:
        raise OverflowError("int too big to convert" if value > 0 else "can't convert negative int to unsigned")
    return value


def has_numpys(tr: Tracer, values: Iterable[Value]) -> bool:
    """Whether one of numpy's scalars is among values, or in a sequence there. C sees plain numbers in these."""
    return any(
        has_numpys(tr, v.values(tr)) if isinstance(v, SequenceValue) else isinstance(getattr(v, "value", None), np.generic)
        for v in values
    )
