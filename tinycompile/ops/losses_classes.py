"""Losses over classes: negative log-likelihood and cross-entropy, of class indices and of probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.declare import declare
from tinycompile.ops.losses import REDUCTIONS, check_reduction, reduced
from tinycompile.ops.record import Decompose
from tinycompile.ops.samples import FLOATS, call, t


def class_dim(rank: int) -> int:
    """Where the classes are: dim 1, or 0 of one row."""
    return 0 if rank == 1 else 1


def _nll_meta(
    x: TensorMeta, target: TensorMeta, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> TensorMeta:
    check_reduction(reduction)
    at = class_dim(x.rank)
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    if not shapes.same_shape(shape, target.shape):
        if x.rank <= 2 and x.rank and target.rank and not shapes.same(x.shape[0], target.shape[0]):
            raise ValueError(f"Expected input batch_size ({x.shape[0]}) to match target batch_size ({target.shape[0]}).")
        raise RuntimeError(f"size mismatch (got input: {list(x.shape)}, target: {list(target.shape)})")
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected scalar type Long but found {rules.type_name(target.dtype)}")
    return rules.fresh(shape if reduction == "none" else (), x.dtype, x.device)


def picked(x: Any, target: Any, ignore_index: int) -> tuple[Any, Any]:
    """The class entry of each row (class 0 where ignored), and which rows count."""
    at = class_dim(len(x.shape))
    counts = ops.ne(target, ignore_index)
    safe = ops.where(counts, target, 0)
    return ops.squeeze(ops.gather(x, at, ops.unsqueeze(safe, at)), (at,)), counts


def class_reduced(loss: Any, counts: Any, share: Any, reduction: str, dtype: torch.dtype) -> Any:
    """Ignored rows are zero, and are left out of the mean (which is NaN when nothing counts). ``share``: the rows' weights."""
    loss = ops.where(counts, loss, 0.0)
    if reduction == "none":
        return cast(loss, dtype)
    total = ops.sum(loss)
    if reduction == "mean":
        total = ops.div(total, _total_share(counts, share, loss.dtype))
    return cast(total, dtype)


def _total_share(counts: Any, share: Any, dtype: torch.dtype) -> Any:
    return ops.to(ops.sum(counts), dtype) if share is None else ops.sum(ops.where(counts, share, 0.0))


def _row_weights(weight: Any, target: Any, counts: Any) -> Any:
    """Each row's class weight, in its opmath dtype."""
    return None if weight is None else ops.index(widen(weight), (ops.where(counts, target, 0),))


def _nll_loss(x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    if target.dtype != torch.int64:
        return NotImplemented
    value, counts = picked(x, target, ignore_index)
    share = _row_weights(weight, target, counts)
    loss = ops.neg(widen(value))
    return class_reduced(loss if share is None else ops.mul(loss, share), counts, share, reduction, x.dtype)


def _cross_entropy_meta(
    x: TensorMeta,
    target: TensorMeta,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> TensorMeta:
    if label_smoothing > 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing:g}")
    if target.dtype.is_floating_point:
        at = class_dim(x.rank)
        shape = (*x.shape[:at], *x.shape[at + 1 :])
        return rules.fresh(shape if reduction == "none" else (), x.dtype, x.device)
    return _nll_meta(x, target, weight, ignore_index, reduction)


def _cross_entropy(
    x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
) -> Any:
    """log(sum(exp(x - max))) - (x[class] - max): the log-probabilities of the other classes are never written."""
    if target.dtype.is_floating_point:
        return _soft_cross_entropy(x, target, weight, reduction, label_smoothing)
    if target.dtype != torch.int64:
        return NotImplemented
    at = class_dim(len(x.shape))
    wide = widen(x)
    top, total = ops.softmax_stats(wide, at)
    value, counts = picked(x, target, ignore_index)
    loss = ops.add(ops.log(ops.squeeze(total, (at,))), ops.sub(ops.squeeze(top, (at,)), widen(value)))
    share = _row_weights(weight, target, counts)
    loss = loss if share is None else ops.mul(loss, share)
    if label_smoothing > 0:  # torch takes a negative one for none
        even = ops.sub(ops.add(ops.log(total), top), wide)
        even = ops.sum(even if weight is None else ops.mul(even, _over_classes(weight, len(x.shape), at)), (at,))
        loss = ops.add(ops.mul(loss, 1.0 - label_smoothing), ops.mul(even, ops.div(label_smoothing, _length(x, at))))
    return class_reduced(loss, counts, share, reduction, x.dtype)


def _soft_cross_entropy(x: Any, target: Any, weight: Any, reduction: str, label_smoothing: float) -> Any:
    """The target gives each class's probability."""
    at, rank = class_dim(len(x.shape)), len(x.shape)
    if tuple(x.shape) != tuple(target.shape) or any(rules.is_zero(s) for s in x.shape):
        return NotImplemented
    wide, q = widen(x), widen(target)
    top, total = ops.softmax_stats(wide, at)
    if label_smoothing > 0:  # torch takes a negative one for none
        q = ops.add(ops.mul(q, 1.0 - label_smoothing), ops.div(label_smoothing, _length(x, at)))
    loss = ops.mul(ops.sub(ops.add(ops.log(total), top), wide), q)
    loss = ops.sum(loss if weight is None else ops.mul(loss, _over_classes(weight, rank, at)), (at,))
    if reduction == "mean":
        rows = rules.shapes.numel((*x.shape[:at], *x.shape[at + 1 :]))
        return cast(ops.div(ops.sum(loss), rows), x.dtype)
    return reduced(loss, reduction, x.dtype)


def _over_classes(weight: Any, rank: int, at: int) -> Any:
    return ops.reshape(widen(weight), tuple(-1 if d == at else 1 for d in range(rank)))


def _length(x: Any, at: int) -> Any:
    """The number of classes as a 0-d tensor, for a symbolic one too."""
    return ops.full((), x.shape[at], dtype=torch.float32 if x.dtype != torch.float64 else torch.float64, device=x.device)


def _eager_nll(x: Any, y: Any, w: Any = None, ignore_index: int = -100, reduction: str = "mean") -> torch.Tensor:
    return F.nll_loss(x, y, w, ignore_index=ignore_index, reduction=reduction)


def _eager_cross_entropy(
    x: Any, y: Any, w: Any = None, ignore_index: int = -100, reduction: str = "mean", smoothing: float = 0.0
) -> torch.Tensor:
    return F.cross_entropy(x, y, w, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)


def _class_calls() -> Any:
    def index(*shape: int) -> Any:
        return t(*shape, dtype="int64", fill="index:5")

    return [
        *(call(t(4, 5, dtype=d), index(4), None, -100, r) for d in FLOATS for r in REDUCTIONS),
        call(t(4, 5), index(4), None, 2, "mean"),
        call(t(5), index()),
        call(t(2, 5, 3, 4), index(2, 3, 4)),
        call(t(2, 5, 3), index(2, 3), None, 1, "none"),
        call(t(6, 5, layout="transposed"), index(6)),
        call(t(4, 5), index(3)),
        call(t(4, 5), index(4), t(5)),
        call(t(0, 5), index(0)),
    ]


declare(
    "nll_loss(Tensor self, Tensor target, Tensor? weight=None, int ignore_index=-100, str reduction='mean') -> Tensor",
    _nll_meta,
    Decompose(_nll_loss),
    _eager_nll,
    (),
    _class_calls,
    ulp=4.0,
)
declare(
    "cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int ignore_index=-100, str "
    "reduction='mean', float label_smoothing=0.0) -> Tensor",
    _cross_entropy_meta,
    Decompose(_cross_entropy),
    _eager_cross_entropy,
    (),
    lambda: [
        *_class_calls(),
        *(call(t(4, 5), t(4, dtype="int64", fill="index:5"), None, 1, r, 0.1) for r in REDUCTIONS),
        *(call(t(4, 5), t(4, 5), w, -100, r, e) for r in REDUCTIONS for e in (0.0, 0.2) for w in (None, t(5, fill="positive"))),
    ],
    ulp=8.0,
)
