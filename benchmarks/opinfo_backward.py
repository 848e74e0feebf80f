"""Gradients of the op database's samples: forward and backward of the compiled joint graph against torch's autograd.

The gradient of every float argument, of the sum of all float results with fixed weights. Values, shapes and dtypes are
compared, as results are (float64 judges); where eager has no gradient, zeros will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare_values, leaves


def same_leaves(call: Call) -> tuple[Call, list[torch.Tensor]]:
    """The call with every float tensor a leaf that requires grad, and those leaves in order."""
    inputs: list[torch.Tensor] = []

    def leaf(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        inputs.append(t.detach().requires_grad_())
        return inputs[-1]

    return call.mapped(leaf), inputs


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``fn``'s arguments that returns their gradients, in order; None where nothing depends on them."""

    def pull_back(*args: Any, **kwargs: Any) -> Any:
        call, inputs = same_leaves(Call(args, kwargs))
        results = [r for r in leaves(fn(*call.args, **call.kwargs)) if isinstance(r, torch.Tensor) and r.requires_grad]
        results = [r for r in results if r.is_floating_point()]
        if not results or not inputs:
            return ()
        return torch.autograd.grad(results, inputs, [_weights(r) for r in results], allow_unused=True)

    return pull_back


def _weights(result: torch.Tensor) -> torch.Tensor:
    """Fixed numbers of a result's shape and dtype. They are bfloat16's, so that the judge in float64 gets the very same."""
    numbers = torch.arange(result.numel(), dtype=torch.float64, device=result.device)
    return torch.cos(numbers).to(torch.bfloat16).reshape(result.shape).to(result.dtype)


def compare_gradients(got: Any, want: Any, judge: Judge) -> None:
    """Raise DifferenceError unless the gradients are as good as eager's."""
    if isinstance(got, Exception):
        raise DifferenceError("gradient", f"{type(got).__name__}: {got}")
    if len(got) != len(want):
        raise DifferenceError("gradient", f"{len(got)} gradients, eager {len(want)}")
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if g is None and w is None:
            continue
        like = w if g is None else g
        g, w = (torch.zeros_like(like) if v is None else v for v in (g, w))
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            raise DifferenceError("gradient", f"of argument {i}: {g.dtype}{list(g.shape)}, eager {w.dtype}{list(w.shape)}")
        compare_values(g, w, judge, i)
