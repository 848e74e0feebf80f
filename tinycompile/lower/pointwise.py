"""Lowering of Pointwise records: one value at each output coordinate."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.lower.arguments import signature
from tinycompile.lower.nest import HALF, NestBuilder
from tinycompile.lower.program import Program
from tinycompile.lower.values import TensorValue
from tinycompile.ops.meta_rules import input_dtypes, opmath, result_type
from tinycompile.ops.record import Op, Pointwise
from tinycompile.ops.scalar import Value

_OF_RESULT = ("default", "int_to_float", "no_opmath")  # kinds whose result has the common dtype


def lower_pointwise(program: Program, node: Node, op: Op, spec: Pointwise) -> TensorValue:
    """Inputs are cast to the compute dtype, the formula runs, the result is cast to the node's dtype."""
    meta: TensorMeta = node.meta
    result = program.new_buffer(node.name, meta)
    if program.empty(result):
        return result
    sig = signature(op)
    inputs = [program.values[a.name] if isinstance(a, Ref) else a for a in (node.args[i] for i in sig.tensors)]
    b = program.nest(node.name, meta.shape, meta.device)
    values = _read_inputs(b, inputs, spec.promote, meta)
    attrs = {name: program.number(node.args[i]) for i, name in sig.attrs}
    b.store(node.name, meta.dtype, b.coords, spec.formula(b, *values, **attrs), program.result_name(node.name))
    program.steps.append(b.finish(node.name))
    return result


def _read_inputs(b: NestBuilder, inputs: list[Any], promote: str, meta: TensorMeta) -> list[Value | None]:
    """Tensors and numbers as Values of the dtypes that ``promote`` asks for; None stays None.

    Where the result has the common dtype, the result's own dtype says it, also when an attribute took part in promotion."""
    operands = [x.meta if isinstance(x, TensorValue) else x for x in inputs]
    present = [o for o in operands if o is not None]
    common = result_type(present) if promote == "bool_out" else None
    wanted = [opmath(meta.dtype)] * len(present) if promote in _OF_RESULT else input_dtypes(promote, present)
    dtypes = iter(wanted)
    values: list[Value | None] = []
    for x in inputs:
        if x is None:
            values.append(None)
        elif isinstance(x, TensorValue):
            values.append(_read(b, x, next(dtypes), common, meta.rank))
        else:
            dtype = next(dtypes)
            values.append(b.const(x, common if common in HALF else dtype))
    return values


def _read(b: NestBuilder, x: TensorValue, dtype: torch.dtype, common: torch.dtype | None, rank: int) -> Value:
    """A predicate compares values of the common dtype: what is wider is rounded to a half type before it is widened again."""
    value = b.read(x, b.broadcast_coords(rank, x.meta.shape))
    if common in HALF:
        value = b.cast(value, common)
    return b.cast(value, dtype)
