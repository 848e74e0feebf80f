"""Losses. Half types are widened first; the mean or sum is rounded once, at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.declare import declare
from tinycompile.ops.record import Decompose, Extern
from tinycompile.ops.samples import FLOATS, call, t

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(reduction: str) -> None:
    """torch.nn's check of the word."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction")


def reduced(loss: Any, reduction: str, dtype: torch.dtype) -> Any:
    """The losses as the word says, rounded to ``dtype``."""
    if reduction == "mean":
        loss = ops.mean(loss)
    elif reduction == "sum":
        loss = ops.sum(loss)
    return cast(loss, dtype)


# ------------------------------------------------------------------------------------------------------- of two tensors


def _pair_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean", *rest: Any) -> TensorMeta:
    check_reduction(reduction)
    full = rules.pointwise_default(x, target)
    return full if reduction == "none" else rules.fresh((), full.dtype, full.device)


def _smooth_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean", beta: float = 1.0) -> TensorMeta:
    if not beta >= 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    return _pair_meta(x, target, reduction)


def _huber_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean", delta: float = 1.0) -> TensorMeta:
    """The result is made like the input, of its dtype, and made anew where broadcasting needs it larger."""
    if not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    full = replace(_pair_meta(x, target, reduction), dtype=x.dtype)
    return rules.empty_like(x) if reduction == "none" and x.shape == full.shape else full


def _absolute_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean") -> TensorMeta:
    full = _pair_meta(x, target, reduction)
    if reduction == "none":
        return rules.like(full)
    return full if full.dtype.is_floating_point else replace(full, dtype=torch.int64)  # sums of integers are wide


def _elementwise(loss: Any) -> Any:
    """A decomposition: widen, the loss at each element, reduce."""

    def decompose(x: Any, target: Any, reduction: str = "mean", *rest: Any) -> Any:
        dtype = rules.promote_types(x.dtype, target.dtype)
        if not dtype.is_floating_point or (x.dtype != target.dtype and loss is _huber):
            return NotImplemented  # what torch rounds to, and when, is its own
        return reduced(loss(cast(x, rules.opmath(dtype)), cast(target, rules.opmath(dtype)), *rest), reduction, dtype)

    return decompose


def _squared(x: Any, target: Any) -> Any:
    return ops.square(ops.sub(x, target))


def _absolute(x: Any, target: Any) -> Any:
    return ops.abs(ops.sub(x, target))


def _smooth(x: Any, target: Any, beta: float = 1.0) -> Any:
    """Girshick, 2015: quadratic within ``beta``, linear outside."""
    size = ops.abs(ops.sub(x, target))
    if beta == 0:
        return size
    return ops.where(ops.lt(size, beta), ops.div(ops.mul(ops.mul(size, 0.5), size), beta), ops.sub(size, 0.5 * beta))


def _huber(x: Any, target: Any, delta: float = 1.0) -> Any:
    size = ops.abs(ops.sub(x, target))
    return ops.where(ops.lt(size, delta), ops.mul(ops.mul(size, size), 0.5), ops.mul(ops.sub(size, 0.5 * delta), delta))


def _divergence(x: Any, target: Any, log_target: bool = False) -> Any:
    if log_target:
        return ops.mul(ops.exp(target), ops.sub(target, x))
    return ops.sub(ops.xlogy(target, target), ops.mul(target, x))


def _pair_calls(*rest: Any, fill: str = "normal") -> Any:
    return lambda: [
        *(call(t(4, 5, dtype=d, fill=fill), t(4, 5, dtype=d, fill=fill), r, *rest) for d in FLOATS for r in REDUCTIONS),
        call(t(4, 6, layout="transposed", fill=fill), t(4, 6, fill=fill), "none", *rest),
        call(t(3), t(3), "median"),
    ]


declare(
    "mse_loss(Tensor self, Tensor target, str reduction='mean') -> Tensor",
    _pair_meta,
    Decompose(_elementwise(_squared)),
    lambda x, y, r="mean": F.mse_loss(x, y, reduction=r),
    (),
    _pair_calls(),
    ulp=4.0,
)
declare(
    "l1_loss(Tensor self, Tensor target, str reduction='mean') -> Tensor",
    _absolute_meta,
    Decompose(_elementwise(_absolute)),
    lambda x, y, r="mean": F.l1_loss(x, y, reduction=r),
    (),
    _pair_calls(),
    ulp=4.0,
)
declare(
    "smooth_l1_loss(Tensor self, Tensor target, str reduction='mean', float beta=1.0) -> Tensor",
    _smooth_meta,
    Decompose(_elementwise(_smooth)),
    lambda x, y, r="mean", beta=1.0: F.smooth_l1_loss(x, y, reduction=r, beta=beta),
    (),
    _pair_calls(0.5),
    ulp=4.0,
)
declare(
    "huber_loss(Tensor self, Tensor target, str reduction='mean', float delta=1.0) -> Tensor",
    _huber_meta,
    Decompose(_elementwise(_huber)),
    lambda x, y, r="mean", delta=1.0: F.huber_loss(x, y, reduction=r, delta=delta),
    (),
    _pair_calls(0.5),
    ulp=4.0,
)


def _divergence_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean", log_target: bool = False) -> TensorMeta:
    full = _pair_meta(x, target, "sum" if reduction == "batchmean" else reduction)
    if reduction != "none":
        return full
    own = target if log_target else rules.elementwise((target, target), full.dtype)  # exp(t) * (t - x), or xlogy(t, t) - t * x
    return rules.pointwise_default(own, rules.pointwise_default(target, x))


def _kl_div(x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    if reduction != "batchmean":
        return _elementwise(_divergence)(x, target, reduction, log_target)
    total = _elementwise(_divergence)(x, target, "sum", log_target)
    return ops.div(total, x.shape[0]) if len(x.shape) else total


declare(
    "kl_div(Tensor self, Tensor target, str reduction='mean', bool log_target=False) -> Tensor",
    _divergence_meta,
    Decompose(_kl_div),
    lambda x, y, r="mean", log_target=False: F.kl_div(x, y, reduction=r, log_target=log_target),
    (),
    lambda: [
        *(call(t(4, 5), t(4, 5, fill="positive"), r) for r in (*REDUCTIONS, "batchmean")),
        call(t(4, 5), t(4, 5), "sum", True),
    ],
    ulp=8.0,
)


# ------------------------------------------------------------------------------------------------------------ binary


def _binary_meta(
    x: TensorMeta, target: TensorMeta, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> TensorMeta:
    check_reduction(reduction)
    if x.shape != target.shape:
        raise ValueError(f"Target size ({_size(target)}) must be the same as input size ({_size(x)})")
    full = rules.empty_like(target)
    return full if reduction == "none" else rules.fresh((), full.dtype, full.device)


def _size(x: TensorMeta) -> str:
    return f"torch.Size({list(x.shape)})"


def _bce_meta(x: TensorMeta, target: TensorMeta, weight: Any = None, reduction: str = "mean") -> TensorMeta:
    check_reduction(reduction)
    if x.shape != target.shape:
        raise ValueError(
            f"Using a target size ({_size(target)}) that is different to the input size ({_size(x)}) is deprecated. "
            "Please ensure they have the same size."
        )
    if x.dtype != target.dtype:
        raise RuntimeError(f"Found dtype {rules.type_name(target.dtype)} but expected {rules.type_name(x.dtype)}")
    full = TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)
    return full if reduction == "none" else rules.fresh((), x.dtype, x.device)


def _weighted(loss: Any, weight: Any) -> Any:
    return loss if weight is None else ops.mul(loss, widen(weight))


def _bce_with_logits(x: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> Any:
    """(1 - y) x - logsigmoid(x), with the positive term weighted by ``pos_weight``."""
    if x.dtype != target.dtype:
        return NotImplemented  # torch computes in place of the target's complement
    wide, y = widen(x), widen(target)
    log_sigmoid = ops.log_sigmoid(wide)
    if pos_weight is not None:
        factor = ops.add(ops.mul(ops.sub(widen(pos_weight), 1), y), 1)
        log_sigmoid = ops.mul(log_sigmoid, factor)
    loss = ops.sub(ops.mul(ops.sub(1, y), wide), log_sigmoid)
    return reduced(_weighted(loss, weight), reduction, x.dtype)


declare(
    "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, str reduction='mean') -> Tensor",
    _bce_meta,
    Extern(),
    lambda x, y, w=None, r="mean": F.binary_cross_entropy(x, y, w, reduction=r),
    (),
    lambda: [call(t(4, 5, fill="index:2"), t(4, 5, fill="index:2"), None, r) for r in REDUCTIONS],
    ulp=4.0,
    doc="torch's kernel: that a probability lies outside [0, 1] is an error that only data can show.",
)
declare(
    "binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, str reduction='mean', "
    "Tensor? pos_weight=None) -> Tensor",
    _binary_meta,
    Decompose(_bce_with_logits),
    lambda x, y, w=None, r="mean", p=None: F.binary_cross_entropy_with_logits(x, y, w, reduction=r, pos_weight=p),
    (),
    lambda: [
        *(call(t(4, 5, dtype=d), t(4, 5, dtype=d), None, r) for d in FLOATS for r in REDUCTIONS),
        call(t(4, 5), t(4, 5), t(5), "mean", t(5)),
        call(t(4, 5), t(4, 6)),
    ],
    ulp=8.0,
)
