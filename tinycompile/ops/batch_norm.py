"""Batch normalisation in training: the result, and the statistics of the batch from which running ones are updated.

Half types are widened first and rounded once, at the end. The update itself is arithmetic on the statistics: see
:func:`running` and :func:`unbiased`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.declare import declare
from tinycompile.ops.record import Decompose, Metas
from tinycompile.ops.samples import FLOATS, call, t


def reduced_dims(rank: int) -> tuple[int, ...]:
    """All dims but that of the channels."""
    return tuple(d for d in range(rank) if d != 1)


def per_channel(v: Any, rank: int) -> Any:
    """A value a channel, shaped to broadcast over ``[batch, channels, ...]``."""
    return ops.reshape(v, (1, -1, *([1] * (rank - 2))))


def _meta(x: TensorMeta, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Metas:
    if x.rank < 2:
        raise IndexError("Dimension out of range (expected to be in range of [-1, 0], but got 1)")
    channels = x.shape[1]
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and not (given.rank == 1 and shapes.same(given.numel, channels)):
            raise RuntimeError(f"{name} should contain {channels} elements not {given.numel}")
    last = rules.suggests_channels_last(x)
    strides = rules.channels_last_strides(x.shape) if last else rules.fresh(x.shape, x.dtype, x.device).strides
    of_batch = rules.fresh((channels,), rules.opmath(x.dtype), x.device)
    return TensorMeta(x.shape, strides, x.dtype, x.device), of_batch, of_batch


def _decomposed(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Ioffe and Szegedy, 2015: (x - mean) / sqrt(var + eps) * weight + bias, by the batch's mean and biased variance."""
    rank, wide = len(x.shape), widen(x)
    var, mean = ops.var_mean(wide, reduced_dims(rank), correction=0)
    scale = ops.rsqrt(ops.add(var, eps))
    if weight is not None:
        scale = ops.mul(scale, widen(weight))
    y = ops.mul(ops.sub(wide, per_channel(mean, rank)), per_channel(scale, rank))
    if bias is not None:
        y = ops.add(y, per_channel(widen(bias), rank))
    elif x.device.type == "cpu":  # as ATen's kernel there, whose results are never -0 then
        y = ops.add(y, 0.0)
    return cast(y, x.dtype), mean, var


def _eager(x: torch.Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[torch.Tensor, ...]:
    wide = x.to(rules.opmath(x.dtype))
    var, mean = torch.var_mean(wide, reduced_dims(x.dim()), correction=0)
    if weight is None and bias is not None:  # torch has no second derivative of a shift alone
        weight = torch.ones_like(bias)
    return torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.0, eps), mean, var


declare(
    "batch_norm_training(Tensor self, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor, Tensor)",
    _meta,
    Decompose(_decomposed),
    _eager,
    (),
    lambda: [
        *(call(t(2, 6, 3, 4, dtype=d), t(6, dtype=d), t(6, dtype=d)) for d in FLOATS),
        call(t(4, 6)),
        call(t(2, 6, 5), t(6)),
        call(t(2, 6, 3, 4, layout="channels_last"), None, t(6), 1e-3),
        call(t(2, 6, 3, 4, dtype="bfloat16"), t(6), t(6)),
        call(t(2, 5, 3), t(6)),
    ],
    ulp=16.0,
    doc="The normalised batch, its mean and its biased variance over all dims but the second.",
)


def running(batch: Any, before: Any, momentum: float) -> Any:
    """A running statistic after a batch: ``momentum`` of the batch's and the rest of what it was."""
    return cast(ops.add(ops.mul(batch, momentum), ops.mul(widen(before), 1 - momentum)), before.dtype)


def unbiased(var: Any, shape: Sequence[Dim]) -> Any:
    """The batch's variance with Bessel's correction, n / (n - 1), as torch keeps it."""
    count = shapes.numel(tuple(shape[d] for d in reduced_dims(len(shape))))
    return ops.mul(var, count / (count - 1)) if isinstance(count, int) else ops.div(ops.mul(var, count), count - 1)
