"""Faster reductions and scans in Triton's interpreter, which combines element by element in Python unless it knows the function.

Our combine functions work on whole blocks, so a block is halved (or, for a scan, shifted) and combined in log2(n) steps. The
combine functions themselves still run, so the interpreter still checks them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """Replace the slow loops of the interpreter's private classes, where they are as we know them."""
    for cls, method, fast in ((interpreter.ReduceOps, "generic_reduce", _reduce), (interpreter.ScanOps, "generic_scan", _scan)):
        if hasattr(cls, method):
            setattr(cls, method, fast)


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
    shift = 1
    while shift < data[0].shape[-1]:
        combined = _combine(op, [d[..., :-shift] for d in data], [d[..., shift:] for d in data], inputs)
        data = [np.concatenate([d[..., :shift], c], axis=-1) for c, d in zip(combined, data, strict=True)]
        shift *= 2
    return [op.to_tensor(np.moveaxis(d, -1, op.axis), t.dtype) for d, t in zip(data, inputs, strict=True)]
