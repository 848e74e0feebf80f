"""Writes to inputs become nests that store into the inputs' own memory: fusion joins them to what computes the data."""

from __future__ import annotations

from tinycompile.base import shapes
from tinycompile.ir.effects import COPY
from tinycompile.ir.graph import Node
from tinycompile.lower.program import COMPUTABLE, Program
from tinycompile.lower.values import TensorValue


def is_plain_write(program: Program, node: Node) -> bool:
    """Whether a node copies data of the same shape, dtype and device into an input's memory: all of it, or a view."""
    if node.target != COPY or node.kwargs:
        return False
    target, source = (program.values[a.name] for a in node.args[:2])
    if not isinstance(target, TensorValue) or not isinstance(source, TensorValue) or target.copy_of:
        return False
    a, b = target.meta, source.meta
    alike = (a.dtype, a.device, a.rank) == (b.dtype, b.device, b.rank) and a.dtype in COMPUTABLE
    return alike and program.roles[target.buffer] == "input" and all(map(shapes.same, a.shape, b.shape))


def lower_write(program: Program, node: Node) -> TensorValue:
    """One nest that loads the data and stores it."""
    target, source = program.value(node.args[0]), program.value(node.args[1])
    program.before_write((target.buffer,))
    if not any(isinstance(n, int) and n == 0 for n in target.meta.shape):
        b = program.nest(node.name, target.meta.shape, target.meta.device)
        b.store(target.buffer, target.meta.dtype, target.coords(b.coords), b.read(source, b.coords), node.name)
        program.steps.append(b.finish(node.name))
    return target
