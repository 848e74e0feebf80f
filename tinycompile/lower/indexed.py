"""Lowering of Indexed records: the formula places its own reads."""

from __future__ import annotations

from typing import Any

from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.lower.program import Program
from tinycompile.lower.values import TensorValue
from tinycompile.ops.record import Indexed
from tinycompile.ops.scalar import Operand


def lower_indexed(program: Program, node: Node, spec: Indexed) -> TensorValue:
    """One value at each output coordinate, from tensors read wherever the formula says."""
    meta: TensorMeta = node.meta
    result = program.new_buffer(node.name, meta)
    if program.empty(result):
        return result
    b = program.nest(node.name, meta.shape, meta.device)
    args = [operand(program, a) for a in node.args]
    b.store(node.name, meta.dtype, b.coords, spec.formula(b, b.coords, meta, *args), program.result_name(node.name))
    program.steps.append(b.finish(node.name))
    return result


def operand(program: Program, arg: Any) -> Any:
    """Tensors as Operands, tuples with tensors as lists of them, other arguments as they are."""
    if isinstance(arg, Ref):
        value = program.values[arg.name]
        return Operand(value.meta, value) if isinstance(value, TensorValue) else value
    if isinstance(arg, tuple) and any(isinstance(a, Ref) for a in arg):
        return [operand(program, a) for a in arg]
    return program.number(arg)
