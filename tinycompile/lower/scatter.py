"""Lowering of Scatter records: the old content is copied, values go to their places, and sums are rounded at the end.

Sums of half types are kept in float32 until all values have been added, sums of narrow integers and bools in int32: what a GPU
can add to atomically. Integers wrap in the end as they would have on the way.
"""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node
from tinycompile.lower.indexed import operand
from tinycompile.lower.program import Program
from tinycompile.lower.values import TensorValue
from tinycompile.ops.meta_rules import fresh
from tinycompile.ops.record import Scatter

_WIDER = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.int32,
    torch.int8: torch.int32, torch.uint8: torch.int32, torch.int16: torch.int32,
}  # fmt: skip


def is_lowered(node: Node, spec: Scatter) -> bool:
    """Whether generated code may do it. A GPU's atomics add up in any order: the library's kernel runs where it doesn't need
    them, and wherever the program wants algorithms that repeat."""
    if node.meta.device.type == "cpu":
        return True
    return not torch.are_deterministic_algorithms_enabled() and not (spec.in_order and spec.adds(*node.args))


def lower_scatter(program: Program, node: Node, spec: Scatter) -> TensorValue:
    """Two nests, or three where sums are kept in a wider type."""
    meta: TensorMeta = node.meta
    result = program.new_buffer(node.name, meta)
    if program.empty(result):
        return result
    args = [operand(program, a) for a in node.args]
    points = spec.points(meta, *args)
    adds = spec.adds(*args)
    held = _WIDER.get(meta.dtype, meta.dtype) if adds else meta.dtype
    place = result if held == meta.dtype else program.new_buffer(program.name_of(f"{node.name}_sums"), _held(meta, held))
    _start(program, node, spec, place)
    if not any(isinstance(n, int) and n == 0 for n in points):
        _bring(program, node, spec, place, points, args, "atomic_add" if adds else "replace")
    if place is not result:
        _finish(program, node, place, result)
    return result


def _held(meta: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    return fresh(meta.shape, dtype, meta.device)


def _start(program: Program, node: Node, spec: Scatter, place: TensorValue) -> None:
    """The old content, or zeros."""
    b = program.nest(node.name, place.meta.shape, place.meta.device)
    old = b.const(0, place.meta.dtype) if spec.from_zeros else b.read(program.value(node.args[0]), b.coords)
    name = program.name_of(f"{node.name}_start")
    b.store(place.buffer, place.meta.dtype, b.coords, b.cast(old, place.meta.dtype), name)
    program.steps.append(b.finish(name))


def _bring(
    program: Program, node: Node, spec: Scatter, place: TensorValue, points: tuple[Dim, ...], args: list[Any], mode: str
) -> None:
    """Each value to its place."""
    b = program.nest(node.name, points, place.meta.device)
    where, value = spec.formula(b, b.coords, node.meta, *args)
    name = program.name_of(f"{node.name}_brought")
    b.store(place.buffer, place.meta.dtype, where, b.cast(value, place.meta.dtype), name, mode)
    program.steps.append(b.finish(name if place.buffer != node.name else node.name))


def _finish(program: Program, node: Node, sums: TensorValue, result: TensorValue) -> None:
    b = program.nest(node.name, result.meta.shape, result.meta.device)
    value = b.read(sums, b.coords)
    value = value if result.meta.dtype != torch.bool else value.ne(0)
    b.store(result.buffer, result.meta.dtype, b.coords, b.cast(value, result.meta.dtype), program.result_name(node.name))
    program.steps.append(b.finish(node.name))
