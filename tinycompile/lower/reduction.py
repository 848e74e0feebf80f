"""Lowering of Reduction and Scan records. A nest has its input's dims as axes, in order, so that consumers share them."""

from __future__ import annotations

import math
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim, as_sym
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node
from tinycompile.lower.arguments import signature
from tinycompile.lower.nest import NestBuilder
from tinycompile.lower.program import Program, results_of
from tinycompile.lower.values import TensorValue
from tinycompile.ops.meta_rules import opmath
from tinycompile.ops.record import Op, Reduction, Scan
from tinycompile.ops.scalar import REDUCTIONS, Value

_INDEX_KINDS = ("argmax", "argmin")


def lower_reduction(program: Program, node: Node, op: Op, spec: Reduction) -> Any:
    """One nest: prologue at each input element, the reduction, the epilogue, one store a result that is used."""
    sig = signature(op)
    source = program.value(node.args[sig.tensors[0]])
    outputs = _outputs(program, node)
    live = [t for t in outputs if t is not None and not program.empty(t)]
    if live:
        dims = shapes.normalize_dims(program.number(sig.named(node.args, "dim")), source.meta.rank)
        b = program.nest(node.name, source.meta.shape, source.meta.device)
        attrs = {name: program.number(node.args[i]) for i, name in sig.reduction_attrs()}
        x = b.read(source, b.coords)
        given = sig.named(node.args, "dtype")
        x = b.widen(x if given is None else b.cast(x, given))
        x = x if spec.prologue is None else spec.prologue(b, x, **attrs)
        x = b.cast(x, accumulation_dtype(spec.kind, x.dtype))
        reduced: Any = _reduce(b, spec.kind, x, dims, source.meta.shape)
        if spec.epilogue is not None:
            count = ex.product(source.meta.shape[d] for d in dims) if source.meta.rank else 1
            reduced = spec.epilogue(
                b, *reduced, b.const(count, x.dtype if spec.kind not in _INDEX_KINDS else torch.int64), **attrs
            )
        values = reduced if isinstance(reduced, tuple) else (reduced,)
        for target, value in zip(outputs, values, strict=True):
            if target is not None:
                coords = _kept_coords(b.coords, dims, target.meta.rank)
                b.store(target.buffer, target.meta.dtype, coords, value, program.result_name(target.buffer))
        program.steps.append(b.finish(node.name))
    return outputs if isinstance(node.meta, tuple) else outputs[0]


def lower_scan(program: Program, node: Node, op: Op, spec: Scan) -> TensorValue:
    """One nest with the scanned dim as a reduction axis."""
    meta: TensorMeta = node.meta
    result = program.new_buffer(node.name, meta)
    if program.empty(result):
        return result
    sig = signature(op)
    source = program.value(node.args[sig.tensors[0]])
    b = program.nest(node.name, meta.shape, meta.device)
    x = b.cast(b.widen(b.read(source, b.coords)), opmath(meta.dtype))
    if meta.rank:
        if spec.kind == "sum" and x.dtype.is_floating_point and meta.device.type == "cpu":
            x = x + 0.0  # ATen's CPU kernel starts from 0, so that no running sum is -0
        along = as_sym(b.coords[shapes.normalize_dim(sig.named(node.args, "dim"), meta.rank)])
        x = x if along is None else b.scan(spec.kind, x, along.name)
    b.store(node.name, meta.dtype, b.coords, x, program.result_name(node.name))
    program.steps.append(b.finish(node.name))
    return result


def accumulation_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    """Integer sums and products accumulate in int64, any and all in bool, the rest in the dtype given."""
    if kind in ("any", "all"):
        return torch.bool
    if kind in ("sum", "prod") and not dtype.is_floating_point:
        return torch.int64
    return dtype


def _outputs(program: Program, node: Node) -> tuple[TensorValue | None, ...]:
    """A buffer a result, named after the item that takes it; None where nobody does."""
    if isinstance(node.meta, TensorMeta):
        return (program.new_buffer(node.name, node.meta),)
    found: list[TensorValue | None] = []
    for i, meta in enumerate(results_of(node)):
        name = program.items.get((node.name, i)) or (
            program.name_of(f"{node.name}_{i}") if node.name in program.whole else None
        )
        found.append(None if name is None else program.new_buffer(name, meta))
    return tuple(found)


def _reduce(b: NestBuilder, kind: str, x: Value, dims: tuple[int, ...], shape: tuple[Dim, ...]) -> tuple[Value, ...]:
    """The reduced values; without a statement where there is one element or none to reduce."""
    if any(isinstance(shape[d], int) and shape[d] == 0 for d in dims if shape):
        return tuple(b.const(v, x.dtype) for v in _identity(kind, x.dtype))
    axes = tuple(s.name for d in dims if shape and (s := as_sym(b.coords[d])) is not None)
    if not axes:
        return _of_one(b, kind, x)
    dtypes = (torch.int64,) if kind in _INDEX_KINDS else (x.dtype,) * REDUCTIONS[kind]
    return b.reduce(kind, x, axes, dtypes)


def _identity(kind: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """The result over no elements."""
    floating = dtype.is_floating_point
    lowest, highest = (-math.inf, math.inf) if floating else (0, 0) if dtype == torch.bool else _integer_range(dtype)
    return {
        "sum": (0,), "prod": (1,), "any": (False,), "all": (True,), "max": (lowest,), "min": (highest,),
        "welford": (math.nan, 0.0), "online_softmax": (-math.inf, 0.0),
    }[kind]  # fmt: skip


def _integer_range(dtype: torch.dtype) -> tuple[int, int]:
    info = torch.iinfo(dtype)
    return info.min, info.max


def _of_one(b: NestBuilder, kind: str, x: Value) -> tuple[Value, ...]:
    """The result over one element."""
    if kind in _INDEX_KINDS:
        return (b.const(0, torch.int64),)
    if kind == "welford":
        off = x - x  # NaN for what has no finite mean
        return x + 0.0, off * off
    if kind == "sum" and x.dtype.is_floating_point:
        return (x + 0.0,)  # a sum starts from 0: that of one -0 is 0
    if kind == "online_softmax":
        return x, b.where(x.eq(-math.inf), 0.0, b("exp", x - x))
    return (x,)


def _kept_coords(coords: tuple[Dim, ...], dims: tuple[int, ...], rank: int) -> tuple[Dim, ...]:
    """Coordinates of the result: without the reduced dims, or with 0 there (keepdim)."""
    if rank == len(coords):
        return tuple(0 if d in dims else c for d, c in enumerate(coords))
    return tuple(c for d, c in enumerate(coords) if d not in dims)
