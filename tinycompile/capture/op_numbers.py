"""Numbers as op records take them from a program: sizes whose value the kernels need, and ints that torch can hold."""

from __future__ import annotations

from typing import Any

from tinycompile.base import shapes
from tinycompile.base.expr import Expr
from tinycompile.dispatch.schema import Argument
from tinycompile.ops.record import OPS

# Records whose kernels take a number of the schema that is known only at run time. Others are for the number of this call.
_AT_RUN_TIME = frozenset(
    {"add", "sub", "addcmul", "addcdiv", "full", "full_like", "new_full", "scalar_tensor", "arange", "threshold"}
)
_INTS = range(-(2**63), 2**64)


def taken(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a record; OverflowError for an int that torch has no type for."""
    settled = name not in _AT_RUN_TIME
    return tuple(_taken(value, arg, settled) for value, arg in zip(args, OPS[name].schema.args, strict=True))


def _taken(value: Any, arg: Argument, settled: bool) -> Any:
    if arg.is_list or arg.base not in ("Tensor", "Scalar", "float"):
        return value
    if isinstance(value, Expr):  # in a tensor's place it is an operand: kernels take that
        return shapes.pinned(value) if settled and arg.base != "Tensor" else value
    if type(value) is int and value not in _INTS:
        raise OverflowError("int too big to convert" if value > 0 else "can't convert negative int to unsigned")
    return value
