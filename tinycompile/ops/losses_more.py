"""More losses: margins, embeddings, likelihoods. Half types are widened first; the mean or sum is rounded once, at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, meta_of, ops, widen
from tinycompile.ops.declare import composite
from tinycompile.ops.losses import REDUCTIONS, reduced
from tinycompile.ops.samples import FLOATS, call, t


def _common(*tensors: Any) -> torch.dtype:
    return rules.result_type([meta_of(x) for x in tensors])


def _known(reduction: str, *tensors: Any) -> bool:
    return reduction in REDUCTIONS and all(x.dtype.is_floating_point for x in tensors)


# ------------------------------------------------------------------------------------------------- margins of one score


def _soft_margin(x: Any, target: Any, reduction: str = "mean") -> Any:
    """log(1 + exp(-y x))."""
    if not _known(reduction, x) or x.dtype != target.dtype:
        return NotImplemented
    dtype = x.dtype
    grown = ops.exp(ops.mul(ops.neg(widen(target)), widen(x)))
    stored = cast(cast(grown, dtype), grown.dtype)  # ATen keeps it in a tensor, in which half types overflow
    return reduced(ops.log1p(stored), reduction, dtype)


def _margin_ranking(x1: Any, x2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    if not _known(reduction, x1, x2) or len(x1.shape) != len(x2.shape) or len(x1.shape) != len(target.shape):
        return NotImplemented
    off = ops.mul(ops.neg(widen(target)), ops.sub(widen(x1), widen(x2)))
    return reduced(ops.clamp(ops.add(off, margin), 0.0), reduction, _common(x1, x2, target))


def _hinge_embedding(x: Any, target: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    if not _known(reduction, x):
        return NotImplemented
    wide = widen(x)
    hinge = ops.clamp(ops.sub(margin, wide), 0.0)
    loss = ops.add(ops.where(ops.ne(target, 1), hinge, 0.0), ops.where(ops.ne(target, -1), wide, 0.0))
    return reduced(loss, reduction, x.dtype)


def _multilabel_soft_margin(x: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    if not _known(reduction, x) or not len(x.shape):
        return NotImplemented
    wide, y = widen(x), widen(target)
    loss = ops.neg(ops.add(ops.mul(y, ops.log_sigmoid(wide)), ops.mul(ops.sub(1, y), ops.log_sigmoid(ops.neg(wide)))))
    if weight is not None:
        loss = ops.mul(loss, widen(weight))
    mean = ops.div(ops.sum(loss, (len(x.shape) - 1,)), x.shape[-1])  # (which need not be the last of what they broadcast to)
    return reduced(mean, reduction, _common(x, target))


# -------------------------------------------------------------------------------------------------- margins of classes


def _multi_margin(x: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean") -> Any:
    """max(0, margin - x[y] + x[i])^p over the other classes i, over their number."""
    if not _known(reduction, x) or target.dtype != torch.int64 or p not in (1, 2) or len(x.shape) > 2:
        return NotImplemented
    rows = widen(x) if len(x.shape) == 2 else ops.reshape(widen(x), (1, -1))
    labels = ops.reshape(target, (-1, 1))
    classes = ops.arange(0, rows.shape[1], 1, dtype=torch.int64, device=x.device)
    right = ops.gather(rows, 1, labels)
    off = ops.clamp(ops.add(ops.sub(margin, right), rows), 0.0)
    off = off if p == 1 else ops.mul(off, off)
    if weight is not None:
        off = ops.mul(off, ops.index(widen(weight), (labels,)))
    loss = ops.div(ops.sum(ops.where(ops.eq(classes, labels), 0.0, off), (1,)), rows.shape[1])
    if reduction == "none" and not len(target.shape):
        loss = ops.reshape(loss, ())
    return reduced(loss, reduction, x.dtype)


# --------------------------------------------------------------------------------------------------------- embeddings


def _cosine_embedding(x1: Any, x2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """ATen's: the angle's cosine with 1e-12 added to the squared lengths."""
    if not _known(reduction, x1, x2) or len(target.shape) not in (0, 1) or len(x1.shape) != len(target.shape) + 1:
        return NotImplemented
    a, b = widen(x1), widen(x2)
    product = ops.sum(ops.mul(a, b), (-1,))
    sizes = [ops.add(ops.sum(ops.mul(x, x), (-1,)), 1e-12) for x in (a, b)]
    cosine = ops.div(product, ops.sqrt(ops.mul(*sizes)))
    near = ops.where(ops.eq(target, 1), ops.sub(1, cosine), 0.0)
    far = ops.where(ops.eq(target, -1), ops.clamp(ops.sub(cosine, margin), 0.0), 0.0)
    return reduced(ops.add(near, far), reduction, _common(x1, x2))


def _triplet_margin(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    if not _known(reduction, anchor, positive, negative) or margin <= 0:
        return NotImplemented
    if not len(anchor.shape) == len(positive.shape) == len(negative.shape):
        return NotImplemented
    a, near, far = widen(anchor), widen(positive), widen(negative)
    other = ops.pairwise_distance(a, far, p, eps)
    if swap:
        other = ops.minimum(other, ops.pairwise_distance(near, far, p, eps))
    loss = ops.clamp(ops.sub(ops.add(ops.pairwise_distance(a, near, p, eps), margin), other), 0.0)
    return reduced(loss, reduction, _common(anchor, positive, negative))


# -------------------------------------------------------------------------------------------------------- likelihoods


def _poisson(
    x: Any, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> Any:
    """exp(x) - y x, or x - y log(x + eps); ``full`` adds Stirling's approximation where y > 1."""
    if not _known(reduction, x, target):
        return NotImplemented
    wide, y = widen(x), widen(target)
    if log_input:
        loss = ops.sub(ops.exp(wide), ops.mul(y, wide))
    else:
        loss = ops.sub(wide, ops.mul(y, ops.log(ops.add(wide, eps))))
    if full:
        stirling = ops.add(ops.sub(ops.mul(y, ops.log(y)), y), ops.mul(ops.log(ops.mul(y, 2 * math.pi)), 0.5))
        loss = ops.add(loss, ops.where(ops.gt(y, 1), stirling, 0.0))
    return reduced(loss, reduction, _common(x, target))


_PAIR = "Tensor input, Tensor target"
_ONE = "str reduction='mean'"


def _pair_calls(fill: str = "normal", *rest: Any) -> Callable[[], Any]:
    return lambda: [call(t(4, 5, dtype=d), t(4, 5, dtype=d, fill=fill), *rest, reduction=r) for d in FLOATS for r in REDUCTIONS]


composite(
    f"soft_margin_loss({_PAIR}, {_ONE}) -> Tensor",
    _soft_margin,
    lambda x, y, r="mean": F.soft_margin_loss(x, y, reduction=r),
    (),
    _pair_calls(),
)
composite(
    f"margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, {_ONE}) -> Tensor",
    _margin_ranking,
    lambda a, b, y, m=0.0, r="mean": F.margin_ranking_loss(a, b, y, m, reduction=r),
    (),
    lambda: [call(t(4), t(4), t(4), 0.5, r) for r in REDUCTIONS],
)
composite(
    f"hinge_embedding_loss({_PAIR}, float margin=1.0, {_ONE}) -> Tensor",
    _hinge_embedding,
    lambda x, y, m=1.0, r="mean": F.hinge_embedding_loss(x, y, m, reduction=r),
    (),
    _pair_calls("integers", 0.5),
)
composite(
    f"multilabel_soft_margin_loss({_PAIR}, Tensor? weight=None, {_ONE}) -> Tensor",
    _multilabel_soft_margin,
    lambda x, y, w=None, r="mean": F.multilabel_soft_margin_loss(x, y, w, reduction=r),
    (),
    _pair_calls("index:2"),
)
composite(
    f"multi_margin_loss({_PAIR}, int p=1, float margin=1.0, Tensor? weight=None, {_ONE}) -> Tensor",
    _multi_margin,
    lambda x, y, p=1, m=1.0, w=None, r="mean": F.multi_margin_loss(x, y, p, m, w, reduction=r),
    (),
    lambda: [
        *(call(t(4, 5), t(4, dtype="int64", fill="index:5"), 2, reduction=r) for r in REDUCTIONS),
        call(t(4, 5), t(4, dtype="int64", fill="index:5"), 1, 0.5, t(5)),
    ],
)
composite(
    f"cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, {_ONE}) -> Tensor",
    _cosine_embedding,
    lambda a, b, y, m=0.0, r="mean": F.cosine_embedding_loss(a, b, y, m, reduction=r),
    (),
    lambda: [call(t(4, 5), t(4, 5), t(4, fill="integers"), 0.1, r) for r in REDUCTIONS],
    ulp=8.0,
)
composite(
    "triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1.0, float p=2.0, float eps=1e-06, "
    f"bool swap=False, {_ONE}) -> Tensor",
    _triplet_margin,
    lambda a, b, c, m=1.0, p=2.0, e=1e-6, s=False, r="mean": F.triplet_margin_loss(a, b, c, m, p, e, s, reduction=r),
    (),
    lambda: [call(t(4, 5), t(4, 5), t(4, 5), swap=s, reduction=r) for r in REDUCTIONS for s in (False, True)],
    ulp=8.0,
)
composite(
    f"poisson_nll_loss({_PAIR}, bool log_input=True, bool full=False, float eps=1e-08, {_ONE}) -> Tensor",
    _poisson,
    lambda x, y, log_input=True, full=False, eps=1e-8, r="mean": F.poisson_nll_loss(x, y, log_input, full, None, eps, None, r),
    (),
    _pair_calls("positive"),
    ulp=8.0,
)
