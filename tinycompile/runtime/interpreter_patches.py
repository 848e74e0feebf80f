"""Faults of Triton's interpreter, mended in the child process that runs it.

Slow: reductions and scans with a combine function that it doesn't know run element by element in Python. Our combine functions
work on whole blocks, so a block is halved (for a scan: shifted) and combined in log2(n) steps. The combine functions themselves
still run, so the interpreter still checks them. Wrong: it truncates float32 to bfloat16, where GPUs round to nearest even, and
takes subnormal bfloat16 for 0; it remembers the result of a comparison under the operands' dtype, so that a scalar one becomes
a block of numbers; and it multiplies blocks of bfloat16 by their bits. In Triton 3.6 minima and maxima propagate NaN where GPUs
take the number, a fused multiply-add rounds twice, unsigned integers have no ``~``, and scalars, arrays of one element, are no
bounds of a ``range`` for numpy 2.4 and later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """Replace private parts of the interpreter, where they are as we know them."""
    for owner, name, replacement in (
        (interpreter.ReduceOps, "generic_reduce", _reduce),
        (interpreter.ScanOps, "generic_scan", _scan),
        (interpreter, "_convert_float", _rounding(interpreter._convert_float)),
        (interpreter.InterpreterBuilder, "binary_op", _comparing(interpreter.InterpreterBuilder.binary_op)),
        (interpreter.InterpreterBuilder, "create_minnumf", lambda builder, lhs, rhs: builder.binary_op(lhs, rhs, np.fmin)),
        (interpreter.InterpreterBuilder, "create_maxnumf", lambda builder, lhs, rhs: builder.binary_op(lhs, rhs, np.fmax)),
        (interpreter.InterpreterBuilder, "get_all_ones_value", _all_ones),
        (interpreter.InterpreterBuilder, "create_fma", _fused(interpreter.InterpreterBuilder.create_fma)),
        (interpreter.InterpreterBuilder, "create_dot", _widening(interpreter.InterpreterBuilder.create_dot)),
        (interpreter, "_patch_lang_tensor", _counting(getattr(interpreter, "_patch_lang_tensor", None))),
    ):
        if hasattr(owner, name):
            setattr(owner, name, replacement)
    # Assertions exist in debug builds only; integer overflow stays as in C.
    options = replace(interpreter.interpreter_builder.options, debug=True, sanitize_overflow=False)
    interpreter.interpreter_builder.options = options


def _rounding(convert: Callable[..., Any]) -> Callable[..., Any]:
    """The conversion, with float32 to bfloat16 rounded to nearest even; the way back only moves the bits."""

    def rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source == tl.bfloat16 and target == tl.float32:
            return (np.asarray(data).view(np.uint16).astype(np.uint32) << 16).reshape(np.shape(data))
        if not (source == tl.float32 and target == tl.bfloat16):
            return convert(data, source, target, mode)
        bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(data), 0x7FC0, near).astype(np.uint16).reshape(np.shape(data))

    return rounded


def _comparing(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Binary operations, with comparisons giving bools."""

    def compared(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        result = apply(builder, lhs, rhs, op)
        return interpreter.TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    return compared


def _all_ones(builder: Any, type: Any) -> Any:
    return interpreter.TensorHandle(np.invert(np.zeros(1, interpreter._get_np_dtype(type))), type.scalar)


def _fused(multiply_add: Callable[..., Any]) -> Callable[..., Any]:
    """``x * y + z`` with the product of floats exact, where the interpreter has no C function for it."""
    if hasattr(getattr(interpreter, "_interpreter", None), "fma_fp32"):
        return multiply_add

    def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype != np.float32:
            return multiply_add(builder, x, y, z)
        wide = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(wide.astype(np.float32), z.dtype.scalar)

    return fused


def _widening(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """The product of two blocks, with bfloat16 as float32: exact."""

    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(builder, *(builder.cast_impl(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in (a, b)), *rest)

    return dot


def _counting(patch: Any) -> Callable[..., None]:
    """The interpreter's preparation of ``tl.tensor``, with scalars that count."""

    def prepared(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    return prepared


def _combine(op: Any, left: list[Any], right: list[Any], like: tuple[Any, ...]) -> list[Any]:
    """Apply the combine function to arrays."""
    tensors = [op.to_tensor(a, t.dtype) for group in (left, right) for a, t in zip(group, like, strict=True)]
    result = op.combine_fn.fn(*tensors)
    results = result if isinstance(result, tuple) else (result,)
    return [r.handle.data if isinstance(r, tl.core.tensor) else np.asarray(r) for r in results]


def _reduce(op: Any, inputs: tuple[Any, ...]) -> list[Any]:
    inputs, axis = op.unravel(inputs, op.axis)
    data = [np.moveaxis(t.handle.data, axis, -1) for t in inputs]
    while (n := data[0].shape[-1]) > 1:
        pairs = [d[..., : n // 2 * 2] for d in data]
        combined = _combine(op, [p[..., 0::2] for p in pairs], [p[..., 1::2] for p in pairs], inputs)
        data = [np.concatenate([c, d[..., n // 2 * 2 :]], axis=-1) for c, d in zip(combined, data, strict=True)]
    shaped = [np.moveaxis(d, -1, axis) if op.keep_dims else d[..., 0] for d in data]
    return [op.to_tensor(d if d.shape else d.item(), t.dtype) for d, t in zip(shaped, inputs, strict=True)]


def _scan(op: Any, inputs: tuple[Any, ...]) -> list[Any]:
    data = [np.moveaxis(t.handle.data, op.axis, -1) for t in inputs]
    position = np.arange(data[0].shape[-1])
    shift = 1
    while shift < len(position):  # whole blocks, as shapes must stay powers of two
        combined = _combine(op, [np.roll(d, shift, axis=-1) for d in data], data, inputs)
        data = [np.where(position < shift, d, c) for c, d in zip(combined, data, strict=True)]
        shift *= 2
    return [op.to_tensor(np.moveaxis(d, -1, op.axis), t.dtype) for d, t in zip(data, inputs, strict=True)]
