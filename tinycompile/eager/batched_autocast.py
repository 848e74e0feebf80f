"""Regions of autocast on a CPU under vmap: torch composes these functions of parts, each of which the region sees alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tinycompile.eager import autocast
from tinycompile.eager.autocast import outside
from tinycompile.eager.batched import EXTERN_RULES, level_of
from tinycompile.ops.calls import ops


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """``beta * x + alpha * product``; of ``x`` also where ``beta`` is zero, as torch's vmap."""
    return ops.add(x if beta == 1 else ops.mul(x, beta), product, alpha=alpha)


def _addmm(x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _sum(x, ops.matmul(a, b), beta, alpha)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = ops.matmul(x, ops.transpose(weight, 0, 1))
    return product if bias is None else ops.add(product, bias)


def _trace(x: Any) -> Any:
    return ops.sum(ops.diagonal(x, 0, 0, 1), (0,))


def _addbmm(x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _sum(x, ops.sum(ops.bmm(a, b), (0,)), beta, alpha)


def _in_parts(ranks: tuple[int, ...], parts: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for a function without a record, of tensors of these ranks; what else is given is torch's to judge."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        given = [len(a.shape) if hasattr(a, "shape") else None for a in args]
        cast = torch.is_autocast_enabled("cpu") and level_of(args)
        return parts(*args, **kwargs) if cast and tuple(given) == ranks and "out" not in kwargs else NotImplemented

    return rule


def _as_given(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for a function whose parts have no policy."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_autocast_enabled("cpu") and level_of(args) and args[0].device.type == "cpu"):
            return NotImplemented
        with outside():
            return fn(*args, **kwargs)

    return rule


autocast.parts_under_vmap.update({"addmm": _addmm, "baddbmm": _addmm, "linear": _linear, "trace": _trace})
for _name, _ranks, _parts in (
    ("mv", (2, 1), ops.matmul),
    ("addmv", (1, 2, 1), _addmm),
    ("addbmm", (2, 3, 3), _addbmm),
):
    for _fn in (getattr(torch, _name), getattr(torch.Tensor, _name)):
        EXTERN_RULES[_fn] = _in_parts(_ranks, _parts)
for _fn in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    EXTERN_RULES[_fn] = _as_given(_fn)
