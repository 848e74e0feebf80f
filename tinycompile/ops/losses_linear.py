"""Cross-entropy of a linear layer's result that never lies in memory whole: chunks of it are made, used and dropped.

The layer's rows come from the library, rounded to their dtype as eager rounds them. One pass over a chunk of rows gives each
row's maximum, its sum of exponentials and the entry of its class; these and the loss are left. The backward computes the same
chunks again by the same calls (one product more than eager does), so that their bits agree with what was kept: a row that is
all one class has a slope of nearly nothing, which a last bit would drown. The rows of the input's gradient are each one
complete product; those of the weight are summed over chunks, in float32 or wider. Chunks of rows as in Liger Kernel (Hsu et
al., 2024), which computes the gradient in the forward: here a forward alone does no more than it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, positions, widen
from tinycompile.ops.declare import declare
from tinycompile.ops.linalg import linear_meta
from tinycompile.ops.losses import REDUCTIONS
from tinycompile.ops.losses_classes import class_reduced, picked
from tinycompile.ops.meta_rules import opmath
from tinycompile.ops.record import Extern, Metas
from tinycompile.ops.samples import FLOATS, call, t

TILE, ALIGNED = 128, 16  # chunks are whole tiles of rows; at the least their numbers begin where vector loads can


def rows_into_(target: torch.Tensor, start: int, part: torch.Tensor) -> torch.Tensor:
    """``part`` as the rows of ``target`` from ``start`` on."""
    target[start : start + part.shape[0]] = part
    return target


def mm_into_(target: torch.Tensor, start: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` as the rows of ``target`` from ``start`` on."""
    torch.mm(a, b, out=target[start : start + a.shape[0]])
    return target


def add_mm_(target: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``target + a @ b``; a product of half types is rounded before it is added to a wider target."""
    return target.addmm_(a, b) if target.dtype == a.dtype else target.add_(torch.mm(a, b))


def chunks(length: int, other: int, elements: int) -> Iterator[tuple[int, int]]:
    """Begin and end of pieces of ``length``, each with about ``elements`` elements over ``other`` ones of the other dim."""
    most = elements // max(other, 1)
    size = most // TILE * TILE or max(most // ALIGNED * ALIGNED, ALIGNED)
    for start in range(0, length, size):
        yield start, min(start + size, length)


# --- in terms of ops ---------------------------------------------------------------------------------------------------------


def chunked_loss(
    x: Any, weight: Any, bias: Any, target: Any, ignore_index: int, reduction: str, smoothing: float, wide: bool, elements: int
) -> Any:
    """The loss, and each row's maximum and sum of exponentials. ``wide``: the logits are cast to float32 before the loss."""
    dtype = opmath(x.dtype)
    losses, tops, sums = (_memory("empty", x, tuple(target.shape), dtype) for _ in range(3))
    for start, end in chunks(x.shape[0], weight.shape[0], elements):
        logits = _logits(ops.slice(x, 0, start, end), weight, bias)
        value, _ = picked(logits, _part(target, start, end), ignore_index)
        values = widen(logits)
        top, total = ops.softmax_stats(values, 1)
        top, total = ops.squeeze(top, (1,)), ops.squeeze(total, (1,))
        loss = ops.add(ops.log(total), ops.sub(top, widen(value)))
        if smoothing:
            even = ops.add(ops.log(total), ops.sub(top, ops.mean(values, (1,))))
            loss = ops.add(ops.mul(loss, 1.0 - smoothing), ops.mul(even, smoothing))
        losses, tops, sums = (
            _write(rows_into_, whole, start, part) for whole, part in ((losses, loss), (tops, top), (sums, total))
        )
    return class_reduced(losses, ops.ne(target, ignore_index), None, reduction, dtype if wide else x.dtype), tops, sums


def chunked_gradients(
    grad: Any, x: Any, weight: Any, bias: Any, target: Any, top: Any, total: Any, ignore_index: int, reduction: str,
    smoothing: float, elements: int, needs_input: bool, needs_weight: bool, needs_bias: bool,
) -> Any:  # fmt: skip
    """Gradients of the input, the weight and the bias; empty tensors for those that nobody needs."""
    scale = widen(grad)
    if reduction == "mean":
        scale = ops.div(scale, ops.to(ops.sum(ops.ne(target, ignore_index)), scale.dtype))
    columns = weight.shape[0]
    place = positions(columns, 2, 1, x.device)
    for_x = _memory("empty", x, tuple(x.shape) if needs_input else (0,), x.dtype)
    for_weight = _sum_of(weight, needs_weight)
    for_bias = _sum_of(weight if bias is None else bias, needs_bias)
    for start, end in chunks(x.shape[0], columns, elements):
        part = ops.slice(x, 0, start, end)
        label, most, sums = (ops.unsqueeze(_part(r, start, end), 1) for r in (target, top, total))
        p = ops.mul(ops.exp(ops.sub(widen(_logits(part, weight, bias)), most)), ops.reciprocal(sums))
        factor = scale if reduction != "none" else ops.unsqueeze(_part(scale, start, end), 1)
        factor = ops.where(ops.ne(label, ignore_index), factor, 0.0)
        slope = ops.sub(p, ops.mul(ops.to(ops.eq(place, label), p.dtype), 1.0 - smoothing))
        slope = ops.sub(slope, smoothing / columns) if smoothing else slope
        slope = cast(ops.mul(slope, factor), x.dtype)
        if needs_input:
            for_x = _write(mm_into_, for_x, start, slope, weight)
        if needs_weight:
            for_weight = _write(add_mm_, for_weight, ops.transpose(slope, 0, 1), part)
        if needs_bias:
            for_bias = _write(torch.Tensor.add_, for_bias, ops.sum(widen(slope), (0,)))
    return for_x, cast(for_weight, x.dtype), cast(for_bias, x.dtype)


def _sum_of(like: Any, needed: bool) -> Any:
    """Where a gradient is summed; nothing for one that nobody needs."""
    return _memory("zeros", like, tuple(like.shape) if needed else (0,), opmath(like.dtype) if needed else like.dtype)


def _logits(x: Any, weight: Any, bias: Any) -> Any:
    """The layer, as a call of which fusion knows nothing: such calls stay in order, so that a chunk is made when the one before
    is done, and the kernels of two chunks never become one."""
    recorder = getattr(x, "recorder", None)
    if recorder is None:
        return F.linear(x, weight, bias)
    meta = linear_meta(x.meta, weight.meta, None if bias is None else bias.meta)
    return recorder.extern("torch.nn.functional.linear", (x, weight, bias), {}, meta)


def _part(x: Any, start: int, end: int) -> Any:
    """Some of the elements, as a tensor of its own: then the kernels of all chunks are the same, and compiled once."""
    recorder = getattr(x, "recorder", None)
    if recorder is None:
        return x[start:end]
    meta = rules.fresh((end - start,), x.dtype, x.meta.device)
    return recorder.extern("torch.Tensor.narrow", (x, 0, start, end - start), {}, meta)


def _memory(make: str, like: Any, shape: tuple[Any, ...], dtype: torch.dtype) -> Any:
    """Memory that is written part by part: made by torch's own call, for equal calls of records may become one."""
    recorder = getattr(like, "recorder", None)
    if recorder is None:
        return getattr(torch, make)(shape, dtype=dtype, device=like.device)
    meta = rules.fresh(shape, dtype, like.meta.device)
    return recorder.extern(f"torch.{make}", (shape,), {"dtype": dtype, "device": meta.device}, meta)


def _write(write: Callable[..., torch.Tensor], target: Any, *args: Any) -> Any:
    """``write(target, *args)``: as a library call, so that what it takes is in memory then, and no later kernel needs the
    chunk."""
    recorder = getattr(target, "recorder", None)
    if recorder is None:
        return write(target, *args)
    where = "torch.Tensor" if write is torch.Tensor.add_ else __name__
    return recorder.extern(f"{where}.{write.__name__}", (target, *args), {}, target.meta)


# --- records -----------------------------------------------------------------------------------------------------------------


def _loss_meta(
    x: TensorMeta, weight: TensorMeta, bias: Any, target: TensorMeta, ignore_index: int, reduction: str, smoothing: float,
    wide: bool, elements: int,
) -> Metas:  # fmt: skip
    linear_meta(x, weight, bias)
    dtype = opmath(x.dtype)
    loss = rules.fresh(target.shape if reduction == "none" else (), dtype if wide else x.dtype, x.device)
    return loss, *(rules.fresh(target.shape, dtype, x.device) for _ in range(2))


def _eager_loss(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, target: torch.Tensor, ignore_index: int, reduction: str, smoothing: float,
    wide: bool, elements: int,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Whole: what the chunks are to equal. Autocast has had its say when the call is made."""
    with torch.autocast(x.device.type, enabled=False):
        logits = F.linear(x, weight, bias)
        logits = logits.to(opmath(x.dtype)) if wide else logits
        loss = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)
    values = logits.detach().to(opmath(x.dtype))
    top = values.amax(1)
    return loss, top, (values - top[:, None]).exp().sum(1)


def _gradients_meta(
    grad: TensorMeta, x: TensorMeta, weight: TensorMeta, bias: Any, target: TensorMeta, top: TensorMeta,
    total: TensorMeta, ignore_index: int, reduction: str, smoothing: float, elements: int, *needs: bool,
) -> Metas:  # fmt: skip
    shapes = (x.shape, weight.shape, weight.shape[:1])
    return tuple(rules.fresh(s if n else (0,), x.dtype, x.device) for s, n in zip(shapes, needs, strict=True))


def _eager_gradients(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Any, target: torch.Tensor, top: torch.Tensor,
    total: torch.Tensor,
    ignore_index: int, reduction: str, smoothing: float, elements: int, *needs: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        made: tuple[torch.Tensor, ...] = chunked_gradients(
            grad, x, weight, bias, target, top, total, ignore_index, reduction, smoothing, elements, *needs
        )
    return made


def _loss_calls() -> Any:
    def one(dtype: str, *rest: Any, bias: bool = True) -> Any:
        return call(
            t(6, 4, dtype=dtype), t(5, 4, dtype=dtype), t(5, dtype=dtype) if bias else None,
            t(6, dtype="int64", fill="index:5"), *rest,
        )  # fmt: skip

    return [
        *(one(d, 1, r, 0.0, False, 15) for d in FLOATS for r in REDUCTIONS),
        one("bfloat16", -100, "mean", 0.1, True, 10, bias=False),
        one("float32", 2, "mean", 0.1, False, 100),
    ]


def _gradient_calls() -> Any:
    def one(dtype: str, reduction: str, *needs: bool, smoothing: float = 0.0, bias: bool = True, elements: int = 15) -> Any:
        wide = dtype if dtype == "float64" else "float32"
        grad = t(6, dtype=dtype) if reduction == "none" else t(dtype=dtype)
        return call(
            grad, t(6, 4, dtype=dtype), t(5, 4, dtype=dtype), t(5, dtype=dtype) if bias else None,
            t(6, dtype="int64", fill="index:5"), t(6, dtype=wide), t(6, dtype=wide, fill="positive"),
            1, reduction, smoothing, elements, *needs,
        )  # fmt: skip

    return [
        *(one(d, r, True, True, True) for d in FLOATS for r in REDUCTIONS),
        *(one("float32", "mean", *needs) for needs in ((True, False, False), (False, True, False), (False, False, True))),
        one("bfloat16", "sum", True, True, False, smoothing=0.1, bias=False, elements=10),
        one("float32", "mean", True, True, True, smoothing=0.1, elements=100),
    ]


declare(
    "cross_entropy_of_linear(Tensor self, Tensor weight, Tensor? bias, Tensor target, int ignore_index, str reduction, "
    "float label_smoothing, bool wide, int elements) -> (Tensor, Tensor, Tensor)",
    _loss_meta,
    Extern(),
    _eager_loss,
    (),
    _loss_calls,
    ulp=8.0,
    doc="cross_entropy of a linear layer's result, of which at most ``elements`` are in memory; each row's maximum and sum.",
)
declare(
    "cross_entropy_of_linear_backward(Tensor grad, Tensor self, Tensor weight, Tensor? bias, Tensor target, Tensor top, "
    "Tensor total, int ignore_index, str reduction, float label_smoothing, int elements, bool needs_input, bool needs_weight, "
    "bool needs_bias) -> (Tensor, Tensor, Tensor)",
    _gradients_meta,
    Extern(),
    _eager_gradients,
    (),
    _gradient_calls,
    ulp=8.0,
    doc="Gradients of the input, the weight and the bias of cross_entropy_of_linear.",
)

CHUNKED: dict[str, Callable[..., Any]] = {
    "cross_entropy_of_linear": chunked_loss,
    "cross_entropy_of_linear_backward": chunked_gradients,
}
