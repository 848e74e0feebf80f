"""Pools of integers under vmap: torch has no kernel for one dim, but its vmap takes that of two."""

from __future__ import annotations

from typing import Any

from tinycompile.eager.batching import UNCOVERED, Batch
from tinycompile.ops.calls import ops


def _max_pool1d(
    batch: Batch, x: Any, kernel: Any, stride: Any = None, padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> Any:
    if x.dtype.is_floating_point:
        return NotImplemented
    sizes = [_pair(*p) for p in ((1, kernel), (1, stride or kernel), (0, padding), (1, dilation))]
    return ops.squeeze(ops.max_pool2d(ops.unsqueeze(x, -2), *sizes, ceil_mode), (-2,))


def _pair(least: int, number: Any) -> tuple[Any, Any]:
    return least, number[0] if isinstance(number, (tuple, list)) else number


UNCOVERED["max_pool1d"] = _max_pool1d
