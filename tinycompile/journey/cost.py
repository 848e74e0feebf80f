"""Bytes and operations of one call, from its operands' metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.dispatch.dispatcher import tensors_in
from tinycompile.ops.record import OPS, Pointwise, Reduction, Scan, View

_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


def told(values: Any) -> str:
    """Tensors as ``f32[64, 128]``, separated by commas."""
    return ", ".join(f"{_SHORT.get(t.dtype, str(t.dtype))}[{', '.join(map(str, t.shape))}]" for t in tensors_in((values,)))


def span(tensor: Any) -> int:
    """Bytes of the elements that it reaches, each once: an expanded dim costs nothing."""
    count = math.prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s != 0)
    return count * tensor.dtype.itemsize


def moved(name: str, args: Any, result: Any) -> int:
    """Operands read once and results written once; nothing for a view."""
    op = OPS.get(name)
    if op is not None and isinstance(op.lowering, View) and any(r.alias for r in op.schema.returns):
        return 0
    return sum(map(span, tensors_in((args, result))))


def _product(args: Sequence[Any], result: Any) -> int:
    a = args[0]
    return 2 * int(result.numel()) * int(a.shape[-1])


def _addmm(args: Sequence[Any], result: Any) -> int:
    return 2 * int(result.numel()) * int(args[1].shape[-1]) + int(result.numel())


def _attention(args: Sequence[Any], result: Any) -> int:
    q, k = args[0], args[1]
    return 4 * math.prod(q.shape) * int(k.shape[-2])


def _convolution(args: Sequence[Any], result: Any) -> int:
    return 2 * int(result.numel()) * math.prod(args[1].shape[1:])


# Operations of library ops: a multiplication and an addition for each term of a sum.
_FLOPS: dict[str, Callable[[Sequence[Any], Any], int]] = {
    "mm": _product,
    "bmm": _product,
    "matmul": _product,
    "mv": _product,
    "dot": lambda args, result: 2 * int(args[0].numel()),
    "linear": _product,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "convolution": _convolution,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
}


def flops(name: str, args: Sequence[Any], result: Any) -> int | None:
    """Operations of a call: of matrix products by their sizes, one an element for pointwise ops and reductions, else None."""
    found = _FLOPS.get(name)
    if found is not None:
        return found(args, result)
    op = OPS.get(name)
    if op is None:
        return None
    if isinstance(op.lowering, View):
        return 0
    if isinstance(op.lowering, (Pointwise, Reduction, Scan)):
        of = tensors_in((result,)) if isinstance(op.lowering, Pointwise) else tensors_in((args,))
        return max((int(t.numel()) for t in of), default=0)
    return None
