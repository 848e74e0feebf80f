"""Lowering of Pointwise records: one value at each output coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.dtypes import HALF
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.lower.arguments import signature
from tinycompile.lower.nest import NestBuilder
from tinycompile.lower.program import Program
from tinycompile.lower.values import TensorValue
from tinycompile.ops.meta_rules import input_dtypes, opmath, result_type
from tinycompile.ops.record import Op, Pointwise
from tinycompile.ops.scalar import Value

_OF_RESULT = ("default", "int_to_float", "no_opmath")  # kinds whose result has the common dtype
_SUMS = ("add", "sub")
_PRODUCTS = ("mul", "div", "div_trunc", "div_floor", "floor_divide")
_WIDE_NUMBERS = (*_PRODUCTS, "lerp")  # these take a Python number in float32; of lerp the weight
_EXACT_IN_HALF = (torch.bool, torch.uint8, torch.int8)


def lower_pointwise(program: Program, node: Node, op: Op, spec: Pointwise) -> TensorValue:
    """Inputs are cast to the compute dtype, the formula runs, the result is cast to the node's dtype."""
    meta: TensorMeta = node.meta
    result = program.new_buffer(node.name, meta)
    if program.empty(result):
        return result
    sig = signature(op)
    inputs = [program.values[a.name] if isinstance(a, Ref) else a for a in (node.args[i] for i in sig.tensors)]
    b = program.nest(node.name, meta.shape, meta.device)
    values = _Inputs(b, op.name, spec.promote, meta).read(inputs)
    attrs = {name: program.number(node.args[i]) for i, name in sig.attrs}
    b.store(node.name, meta.dtype, b.coords, spec.formula(b, *values, **attrs), program.result_name(node.name))
    program.steps.append(b.finish(node.name))
    return result


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Reads a call's tensors and numbers as Values of the dtypes that ``promote`` asks for.

    Torch casts operands to the common dtype before it widens that to the dtype in which it computes: an integer or a number
    that a half type can't hold is rounded, or infinite. The exceptions are ATen's: products, quotients and ``lerp`` take a
    number in float32, and so do sums on a GPU. (On a CPU sums round it; we keep its digits and take over only the infinity.)"""

    b: NestBuilder
    op: str
    promote: str
    meta: TensorMeta

    def read(self, inputs: list[Any]) -> list[Value | None]:
        """One Value an input; None stays None."""
        present = [x.meta if isinstance(x, TensorValue) else x for x in inputs if x is not None]
        wanted, common = self._dtypes(present)
        dtypes = iter(wanted)
        values: list[Value | None] = []
        for position, x in enumerate(inputs):
            if x is None:
                values.append(None)
            elif isinstance(x, TensorValue):
                values.append(self._tensor(x, position, next(dtypes), common))
            else:
                values.append(self._number(x, next(dtypes), common))
        return values

    def _dtypes(self, present: list[Any]) -> tuple[list[torch.dtype], torch.dtype | None]:
        """What each input is computed in, and the common dtype, if there is one. Where the result has the common dtype, the
        result's own says it, also when an attribute took part in promotion."""
        if self.promote in _OF_RESULT:
            return [opmath(self.meta.dtype)] * len(present), self.meta.dtype
        return input_dtypes(self.promote, present), result_type(present) if self.promote == "bool_out" else None

    def _tensor(self, x: TensorValue, position: int, dtype: torch.dtype, common: torch.dtype | None) -> Value:
        value = self.b.read(x, self.b.broadcast_coords(self.meta.rank, x.meta.shape))
        if common in HALF and value.dtype not in _EXACT_IN_HALF and not self._is_number(x.meta, position):
            value = self.b.cast(value, common)
        return self.b.cast(value, dtype)

    def _is_number(self, x: TensorMeta, position: int) -> bool:
        """Whether ATen takes a tensor as a number in float32."""
        if x.rank or x.device.type != "cpu":
            return False
        if self.meta.device.type != "cpu":
            return self.op in _SUMS or self.op in _PRODUCTS
        return self.op in _PRODUCTS and position == 1

    def _number(self, x: Any, dtype: torch.dtype, common: torch.dtype | None) -> Value:
        if self.promote == "none" and isinstance(x, float) and x.is_integer() and not self.meta.dtype.is_floating_point:
            return self.b.const(int(x), torch.int64)  # to fill integers with: float32 doesn't hold them all
        if common not in HALF or self.op in _WIDE_NUMBERS:
            return self.b.const(x, dtype)
        if isinstance(x, Expr):
            return self.b.cast(self.b.cast(self.b.const(x, torch.int64), common), dtype)
        rounded = torch.tensor(x, dtype=torch.float64, device="cpu").to(common).item()
        if self.op in _SUMS:
            finite = self.meta.device.type != "cpu" or abs(rounded) != float("inf")
            return self.b.const(x if finite else rounded, dtype)
        return self.b.const(rounded, dtype)
