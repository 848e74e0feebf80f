"""Lowering to library calls: tensors go in as strided views of buffers, results are buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinycompile.base.meta import TensorMeta
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Node, Ref
from tinycompile.ir.loops import ExternCall
from tinycompile.lower.products import product_nest
from tinycompile.lower.program import Program, results_of
from tinycompile.lower.values import TensorValue


def lower_extern(program: Program, node: Node) -> Any:
    """A call of an op's eager kernel, or of a torch function by path."""
    changed = written(node)
    if changed:
        program.before_write(program.value(r).buffer for r in changed)
    args = tuple(_argument(program, a) for a in node.args)
    kwargs = tuple((k, _argument(program, v)) for k, v in node.kwargs)
    outputs = tuple(_result(program, node, i, meta) for i, meta in enumerate(results_of(node)))
    names = tuple(None if t is None else t.buffer for t in outputs)
    several = isinstance(node.meta, tuple)
    body = product_nest(program, node) if program.products else None
    program.steps.append(ExternCall(node.name, node.kind, node.target, args, kwargs, names, (node.name,), several, body))
    return outputs if several else outputs[0]


def _argument(program: Program, arg: Any) -> Any:
    if isinstance(arg, Ref):
        return as_views(program, program.values[arg.name])
    return tuple(_argument(program, a) for a in arg) if isinstance(arg, tuple) else arg


def as_views(program: Program, value: Any) -> Any:
    """A value as library calls take it and as the program returns it: tensors as strided views, numbers as they are."""
    if isinstance(value, TensorValue):
        return program.tensor(value)
    return tuple(as_views(program, v) for v in value) if isinstance(value, tuple) else value


def as_output(program: Program, value: Any) -> Any:
    """A value as the program returns it: a view is another tensor object than what it views."""
    returned = as_views(program, value)
    if not isinstance(value, TensorValue) or not value.steps or value.copy_of is not None:
        return returned
    return replace(returned, alias="detach" if value.detached else "view")


def _result(program: Program, node: Node, at: int, meta: Any) -> TensorValue | None:
    if not isinstance(meta, TensorMeta):
        return None
    if not isinstance(node.meta, tuple):
        return program.new_buffer(node.name, meta)
    name = program.items.get((node.name, at))
    if name is None and node.name in program.whole:
        name = program.name_of(f"{node.name}_{at}")
    return None if name is None else program.new_buffer(name, meta)
