"""Losses. Half types are widened first; the mean or sum is rounded once, at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
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


def _huber_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean", *rest: Any) -> TensorMeta:
    """The result is made like the input, and made anew where broadcasting needs it larger."""
    full = _pair_meta(x, target, reduction)
    return rules.empty_like(x, full.dtype) if reduction == "none" and x.shape == full.shape else full


def _absolute_meta(x: TensorMeta, target: TensorMeta, reduction: str = "mean") -> TensorMeta:
    full = _pair_meta(x, target, reduction)
    return rules.like(full) if reduction == "none" else full


def _elementwise(loss: Any) -> Any:
    """A decomposition: widen, the loss at each element, reduce."""

    def decompose(x: Any, target: Any, reduction: str = "mean", *rest: Any) -> Any:
        dtype = rules.promote_types(x.dtype, target.dtype)
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
    _pair_meta,
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
    return ops.div(total, x.shape[0])


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
    full = rules.empty_like(target, x.dtype)
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


# ----------------------------------------------------------------------------------------------------- over classes


def class_dim(rank: int) -> int:
    """Where the classes are: dim 1, or 0 of one row."""
    return 0 if rank == 1 else 1


def _nll_meta(
    x: TensorMeta, target: TensorMeta, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> TensorMeta:
    check_reduction(reduction)
    at = class_dim(x.rank)
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    if len(shape) != target.rank or not all(map(shapes.same, shape, target.shape)):
        if x.rank <= 2 and x.rank and target.rank and not shapes.same(x.shape[0], target.shape[0]):
            raise ValueError(f"Expected input batch_size ({x.shape[0]}) to match target batch_size ({target.shape[0]}).")
        raise RuntimeError(f"size mismatch (got input: {list(x.shape)}, target: {list(target.shape)})")
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected scalar type Long but found {rules.type_name(target.dtype)}")
    return rules.fresh(shape if reduction == "none" else (), x.dtype, x.device)


def _picked(x: Any, target: Any, ignore_index: int) -> tuple[Any, Any]:
    """The class entry of each row (class 0 where ignored), and which rows count."""
    at = class_dim(len(x.shape))
    counts = ops.ne(target, ignore_index)
    safe = ops.where(counts, target, 0)
    return ops.squeeze(ops.gather(x, at, ops.unsqueeze(safe, at)), (at,)), counts


def _class_reduced(loss: Any, counts: Any, share: Any, reduction: str, dtype: torch.dtype) -> Any:
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
    value, counts = _picked(x, target, ignore_index)
    share = _row_weights(weight, target, counts)
    loss = ops.neg(widen(value))
    return _class_reduced(loss if share is None else ops.mul(loss, share), counts, share, reduction, x.dtype)


def _cross_entropy_meta(
    x: TensorMeta,
    target: TensorMeta,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> TensorMeta:
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
    value, counts = _picked(x, target, ignore_index)
    loss = ops.add(ops.log(ops.squeeze(total, (at,))), ops.sub(ops.squeeze(top, (at,)), widen(value)))
    share = _row_weights(weight, target, counts)
    loss = loss if share is None else ops.mul(loss, share)
    if label_smoothing:
        even = ops.sub(ops.add(ops.log(total), top), wide)
        even = ops.sum(even if weight is None else ops.mul(even, _over_classes(weight, len(x.shape), at)), (at,))
        loss = ops.add(ops.mul(loss, 1.0 - label_smoothing), ops.mul(even, ops.div(label_smoothing, _length(x, at))))
    return _class_reduced(loss, counts, share, reduction, x.dtype)


def _soft_cross_entropy(x: Any, target: Any, weight: Any, reduction: str, label_smoothing: float) -> Any:
    """The target gives each class's probability."""
    at, rank = class_dim(len(x.shape)), len(x.shape)
    if tuple(x.shape) != tuple(target.shape) or any(rules.is_zero(s) for s in x.shape):
        return NotImplemented
    wide, q = widen(x), widen(target)
    top, total = ops.softmax_stats(wide, at)
    if label_smoothing:
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
        *(call(t(4, 5), t(4, 5), None, -100, r, e) for r in REDUCTIONS for e in (0.0, 0.2)),
    ],
    ulp=8.0,
)
