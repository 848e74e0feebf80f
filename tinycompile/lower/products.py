"""Matrix products as loops: what a library call computes, stated for targets that can generate it too (``ExternCall.body``).

The sum runs over widened products, as tensor cores make them, and is rounded once, where the library rounds it: behind the
bias or the addend, behind the activation of ``linear_activation``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base.dtypes import FLOAT8, HALF
from tinycompile.base.expr import Dim, as_sym
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.ir.loops import Nest
from tinycompile.ir.products import WIDENED
from tinycompile.lower.nest import NestBuilder
from tinycompile.lower.program import Program
from tinycompile.lower.values import TensorValue
from tinycompile.ops.record import OPS, Pointwise
from tinycompile.ops.scalar import Value

INT8_PRODUCT, FLOAT8_PRODUCT = "torch._int_mm", "torch._scaled_mm"
Coords = Sequence[Dim]


def product_nest(program: Program, node: Node) -> Nest | None:
    """The loops of a call that multiplies matrices; None for other calls, and for products that are no work for tensor cores:
    vectors, empty sums, dtypes that they don't take."""
    maker = _MAKERS.get(node.target) if node.kind in ("call", "extern") else None
    meta = node.meta
    if maker is None or not isinstance(meta, TensorMeta) or meta.rank < 2:
        return None
    return maker(_Maker(program, node, meta), *node.args, **dict(node.kwargs))


class _Maker:
    """Writes the nest of one call. ``wanted``: the dtype of the operands."""

    def __init__(self, program: Program, node: Node, meta: TensorMeta) -> None:
        self.program, self.node, self.meta = program, node, meta

    def operand(self, ref: Ref) -> TensorValue:
        """A tensor as the call is given it: where a view had to be copied, the copy, whatever happens to what it viewed."""
        value = self.program.value(ref)
        if value.copy_of is None:
            return value
        copied = self.program.values[value.copy_of]
        return TensorValue(value.meta, value.copy_of, value.steps[: len(value.steps) - len(copied.steps)])

    def begin(self, left: TensorValue, right: TensorValue, inner: Dim, scaled: bool = False) -> NestBuilder | None:
        """A nest over the result and the sum; None where the operands are not for it. ``scaled``: the result has a dtype of its
        own."""
        dtype = left.meta.dtype
        result = self.meta.dtype if scaled else torch.int32 if dtype == torch.int8 else dtype
        if right.meta.dtype != dtype or self.meta.dtype != result or dtype not in (*WIDENED, torch.float32):
            return None
        if any(isinstance(n, int) and n == 0 for n in (*self.meta.shape, inner)) or inner == 1:
            return None
        return self.program.nest(self.node.name, (*self.meta.shape, inner), self.meta.device)

    def total(self, b: NestBuilder, left: TensorValue, at: Coords, right: TensorValue, there: Coords) -> Value:
        """The sum of products of elements at these coordinates."""
        x, y = b.read(left, tuple(at)), b.read(right, tuple(there))
        x, y = (b.cast(v, WIDENED.get(v.dtype, v.dtype)) for v in (x, y))
        along = as_sym(b.coords[-1])
        assert along is not None
        return b.reduce("sum", x * y, (along.name,), (x.dtype,))[0]

    def end(self, b: NestBuilder, value: Value) -> Nest:
        """Round once, and store."""
        if self.meta.dtype in HALF:
            value = b.cast(value, self.meta.dtype)
        b.store(self.node.name, self.meta.dtype, b.coords[:-1], value, self.program.result_name(self.node.name))
        return b.finish(self.node.name)


def _linear(m: _Maker, x: Any, weight: Any, bias: Any = None, activation: str = "") -> Nest | None:
    left, right = m.operand(x), m.operand(weight)
    if right.meta.rank != 2:
        return None
    b = m.begin(left, right, right.meta.shape[1])
    if b is None:
        return None
    *rows, column, inner = b.coords
    value = m.total(b, left, (*rows, inner), right, (column, inner))
    if bias is not None:
        value = value + b.widen(b.read(m.operand(bias), (column,)))
    if activation:
        value = _formula(activation)(b, value, **({"approximate": "tanh"} if activation == "gelu" else {}))
    return m.end(b, value)


def _formula(name: str) -> Callable[..., Value]:
    lowering = OPS[name].lowering
    assert isinstance(lowering, Pointwise)
    return lowering.formula


def _matmul(m: _Maker, x: Any, y: Any) -> Nest | None:
    return _product(m, m.operand(x), m.operand(y), None, 1, 1)


def _addmm(m: _Maker, added: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Nest | None:
    numbers = all(isinstance(n, (int, float)) for n in (beta, alpha))
    given = None if beta == 0 else m.operand(added)
    return _product(m, m.operand(x), m.operand(y), given, beta, alpha) if numbers else None


def _product(m: _Maker, left: TensorValue, right: TensorValue, added: TensorValue | None, beta: Any, alpha: Any) -> Nest | None:
    """``alpha * left @ right + beta * added``; leading dims broadcast."""
    if left.meta.rank < 2 or right.meta.rank < 2:
        return None
    b = m.begin(left, right, left.meta.shape[-1])
    if b is None:
        return None
    *lead, row, column, inner = b.coords
    value = m.total(
        b, left, (*_broadcast(lead, left.meta.shape[:-2]), row, inner), right,
        (*_broadcast(lead, right.meta.shape[:-2]), inner, column),
    )  # fmt: skip
    if alpha != 1:
        value = value * b.const(alpha, value.dtype)
    if added is not None:
        more = b.cast(b.read(added, _broadcast(b.coords[:-1], added.meta.shape)), value.dtype)
        value = value + (more if beta == 1 else more * b.const(beta, value.dtype))
    return m.end(b, value)


def _scaled(
    m: _Maker, x: Any, y: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None, out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Nest | None:  # fmt: skip
    """``(x @ y) * scale_a * scale_b + bias`` of float8, with a scale for all, or for each row of ``x`` and column of ``y``."""
    left, right, *scales = (m.operand(a) for a in (x, y, scale_a, scale_b))
    suits = scale_result is None and m.meta.dtype in (*HALF, torch.float32) and left.meta.dtype in FLOAT8
    if not suits or any(s.meta.dtype != torch.float32 or s.meta.rank not in (0, m.meta.rank) for s in scales):
        return None
    b = m.begin(left, right, left.meta.shape[-1], scaled=True)
    if b is None:
        return None
    row, column, inner = b.coords
    value = m.total(b, left, (row, inner), right, (inner, column))
    for scale in scales:
        value = value * b.read(scale, _broadcast((row, column), scale.meta.shape))
    if bias is not None:
        value = value + b.widen(b.read(m.operand(bias), (column,)))
    return m.end(b, value)


def _broadcast(coords: Coords, shape: Coords) -> tuple[Dim, ...]:
    """The coordinates of a tensor that broadcasts to those given."""
    own = list(coords)[len(coords) - len(shape) :]
    return tuple(0 if isinstance(n, int) and n == 1 else c for c, n in zip(own, shape, strict=True))


_MAKERS: dict[str, Callable[..., Nest | None]] = {
    "linear": _linear,
    "linear_activation": _linear,
    "mm": _matmul,
    "bmm": _matmul,
    "matmul": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    INT8_PRODUCT: _matmul,
    FLOAT8_PRODUCT: _scaled,
}
