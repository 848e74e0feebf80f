"""Derivatives of losses that are one call, and of those of two tensors' difference, as torch's kernels have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.gradients import Gradients, form, positions, sum_to, vjp
from tinycompile.ops.losses_classes import class_dim

Args = Sequence[Any]


# --------------------------------------------------------------------------------------------------------- of a difference


def _of_difference(name: str, slope: Callable[..., Any]) -> None:
    """Formula of a loss at each ``off = self - target``: ``slope(g, off, *rest)``. The target's is the same of
    ``target - self``, not minus the input's: a zero has torch's sign."""

    def fn(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
        x, target, reduction, *rest = args
        wide = [cast(v, rules.opmath(grads[0].dtype)) for v in (x, target)]
        g = widen(grads[0])
        if reduction == "mean":
            g = ops.div(g, rules.shapes.numel(rules.shapes.broadcast_shapes(tuple(x.shape), tuple(target.shape))))
        first = sum_to(slope(g, ops.sub(*wide), *rest), x) if needs[0] else None
        second = None
        if needs[1] and rest == [0]:  # smooth_l1_loss of no width is l1_loss, which is no kernel of its own
            second = sum_to(ops.neg(slope(g, ops.sub(*wide), *rest)), target)
        elif needs[1]:
            second = sum_to(slope(g, ops.sub(*reversed(wide)), *rest), target)
        return (first, second, *(None for _ in args[2:]))

    vjp(name, "self", "target")(fn)


def _linear_beyond(bound: float, off: Any, inside: Any, beyond: Any) -> Any:
    """Plus or minus ``beyond`` from the bounds on: of a far or infinite difference nothing is left in the slope."""
    outside = ops.where(ops.ge(off, bound), beyond, inside)
    return ops.where(ops.le(off, -bound), ops.neg(beyond), outside)


def _smooth(g: Any, off: Any, beta: float = 1.0) -> Any:
    return ops.mul(g, ops.sign(off)) if beta == 0 else _linear_beyond(beta, off, ops.div(ops.mul(off, g), beta), g)


def _huber(g: Any, off: Any, delta: float = 1.0) -> Any:
    return _linear_beyond(delta, off, ops.mul(off, g), ops.mul(g, delta))


_of_difference("mse_loss", lambda g, off: ops.mul(ops.mul(off, 2.0), g))
_of_difference("smooth_l1_loss", _smooth)
_of_difference("huber_loss", _huber)


@vjp("multi_margin_loss", "input", "target", "weight")
def _multi_margin(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """The row's gradient comes last, so that zeros get its sign, as in ATen."""
    x, target, p, margin, weight, reduction = args
    rows = widen(x) if len(x.shape) == 2 else ops.reshape(widen(x), (1, -1))
    labels = ops.reshape(target, (-1, 1))
    here = ops.eq(positions(rows.shape[1], 2, 1, x.device), labels)
    off = ops.add(ops.sub(margin, ops.gather(rows, 1, labels)), rows)
    counts = ops.logical_and(ops.gt(off, 0), ops.logical_not(here))
    slope = ops.to(counts, off.dtype) if p == 1 else ops.where(counts, ops.mul(off, 2.0), 0.0)
    if weight is not None:
        slope = ops.mul(slope, ops.index(widen(weight), (labels,)))
    slope = ops.where(here, ops.sub(0.0, ops.sum(slope, (1,), True)), slope)
    slope = ops.div(slope, rows.shape[1] * rows.shape[0] if reduction == "mean" else rows.shape[1])
    g = ops.reshape(widen(grads[0]), (-1, 1)) if reduction == "none" else widen(grads[0])
    first = cast(ops.reshape(ops.mul(slope, g), tuple(x.shape)), x.dtype)
    return (first, *(None for _ in args[1:]))


# --------------------------------------------------------------------------------------------------------- cross entropy


@form("cross_entropy")
def _of_log_probabilities(x: Any, target: Any, weight: Any, ignore_index: int, reduction: str, smoothing: float) -> Any:
    """torch keeps the logarithms, and not ``x``, which may be written to."""
    at = class_dim(len(x.shape))
    if target.dtype.is_floating_point:
        return _of_soft_target(x, target, weight, reduction, max(smoothing, 0.0), at)
    logs = ops.log_softmax(x, at)
    loss = ops.nll_loss(logs, target, weight, ignore_index, reduction)
    if smoothing <= 0:
        return loss
    counts = ops.ne(target, ignore_index)
    even = ops.where(counts, ops.neg(ops.sum(_weighted_classes(logs, weight, at), (at,))), 0.0)
    if reduction == "mean":
        shares = counts if weight is None else ops.where(counts, ops.index(weight, (ops.where(counts, target, 0),)), 0.0)
        even = ops.div(ops.sum(even), ops.sum(shares))
    elif reduction == "sum":
        even = ops.sum(even)
    return ops.add(ops.mul(loss, 1.0 - smoothing), ops.mul(even, smoothing / x.shape[at]))


def _of_soft_target(x: Any, target: Any, weight: Any, reduction: str, smoothing: float, at: int) -> Any:
    if tuple(x.shape) != tuple(target.shape) or any(rules.is_zero(s) for s in x.shape):
        return NotImplemented
    if smoothing:
        target = ops.add(ops.mul(target, 1.0 - smoothing), smoothing / x.shape[at])
    loss = ops.neg(_weighted_classes(ops.mul(ops.log_softmax(x, at), target), weight, at))
    if reduction == "none":
        return ops.sum(loss, (at,))
    total = ops.sum(loss)
    return ops.div(total, rules.shapes.numel(tuple(x.shape)) // x.shape[at]) if reduction == "mean" else total


def _weighted_classes(rows: Any, weight: Any, at: int) -> Any:
    if weight is None:
        return rows
    return ops.mul(rows, ops.reshape(weight, tuple(-1 if d == at else 1 for d in range(len(rows.shape)))))


# -------------------------------------------------------------------------------------------------------------- one call


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
