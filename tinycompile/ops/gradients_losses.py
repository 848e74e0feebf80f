"""Derivatives of losses that are one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinycompile.ops.calls import ops
from tinycompile.ops.gradients import Gradients, vjp

Args = Sequence[Any]


@vjp("cross_entropy_of_linear", "self", "weight", "bias", "target", "result1", "result2")
def _cross_entropy_of_linear(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """The rows' maxima and sums are there for this alone: their own gradients are never defined."""
    x, weight, bias, target, ignore_index, reduction, smoothing, _, elements = args
    wanted = [bool(n) for n in needs[:3]]
    if grads[0] is None or not any(wanted):
        return (None,) * len(args)
    made = ops.cross_entropy_of_linear_backward(
        grads[0], x, weight, bias, target, *results[1:], ignore_index, reduction, smoothing, elements, *wanted
    )
    return (*(g if n else None for g, n in zip(made, wanted, strict=True)), *(None,) * (len(args) - 3))
