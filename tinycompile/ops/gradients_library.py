"""Derivatives of what library kernels do: convolutions, attention, dropout, maximum pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.ops import meta_rules as rules
from tinycompile.ops.attention import numbers
from tinycompile.ops.calls import cast, ops, widen
from tinycompile.ops.gradients import Gradients, form, positions, vjp
from tinycompile.ops.pooling import adaptive_maximum, maximum_pool, one_maximum
from tinycompile.ops.record import OPS

Args = Sequence[Any]


# --------------------------------------------------------------------------------------------------------------- dropout


@form("dropout")
def _dropout(x: Any, p: float, train: bool) -> Any:
    if train and p == 1:  # torch draws nothing, and multiplies: what is infinite becomes nan
        return ops.mul(x, 0.0)
    return ops.native_dropout(x, p, train)[0]


@vjp("native_dropout", "result1")
def _native_dropout(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    _, p, train = args
    if not train:
        return grads[0], None, None
    return ops.mul(ops.mul(grads[0], results[1]), 0.0 if p == 1 else 1 / (1 - p)), None, None


# --------------------------------------------------------------------------------------------------------------- pooling

for _n in (1, 2, 3):
    for _indices in (False, True):
        _suffix = f"max_pool{_n}d{'_with_indices' * _indices}"
        form(_suffix)(maximum_pool(_n, _indices, one_maximum))
        form(f"adaptive_{_suffix}")(adaptive_maximum(_n, _indices, one_maximum))


# ----------------------------------------------------------------------------------------------------------- convolution


def _convolution(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    x, weight, bias, stride, padding, dilation, groups = args
    n = len(weight.shape) - 2
    g = grads[0]
    batched = len(x.shape) == n + 2
    if not batched:
        g, x = ops.unsqueeze(g, 0), ops.unsqueeze(x, 0)
    steps, gaps = numbers(stride, n), numbers(dilation, n)
    around, more = _paddings(padding, weight.shape[2:], gaps)
    if any(more):  # an odd "same": one side gets one more
        extra = tuple(p for m in reversed(more) for p in (0, m))
        x = ops.pad(x, extra)
    first = second = None
    if needs[0] or needs[1]:
        first, second = ops.convolution_backward(g, x, weight, steps, around, gaps, groups, bool(needs[0]), bool(needs[1]))
        if any(more) and needs[0]:
            first = ops.pad(first, tuple(-p for p in extra))
    third = ops.sum(g, (0, *range(2, n + 2))) if bias is not None and needs[2] else None
    first = first if batched or not needs[0] else ops.squeeze(first, (0,))
    return first if needs[0] else None, second if needs[1] else None, third, None, None, None, None


def _paddings(padding: Any, kernel: Sequence[Any], dilation: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """On both sides, and how much more after the end."""
    if isinstance(padding, (tuple, list)) and padding and isinstance(padding[0], str):
        padding = padding[0]
    n = len(kernel)
    if not isinstance(padding, str):
        return numbers(padding, n), (0,) * n
    total = [(k - 1) * d if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    return tuple(s // 2 for s in total), tuple(s % 2 for s in total)


for _name in ("conv1d", "conv2d", "conv3d"):
    vjp(_name, "self", "weight")(_convolution)


@vjp("convolution_backward", "grad", "input", "weight")
def _convolution_backward(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """Convolution is linear in its input and in its weight: the same three products, once more."""
    g_input, g_weight = grads
    grad, x, weight, *attrs, has_input, has_weight = args
    g_input, g_weight = g_input if has_input else None, g_weight if has_weight else None
    convolve = (ops.conv1d, ops.conv2d, ops.conv3d)[len(weight.shape) - 3]
    parts = []
    if g_input is not None:
        parts.append(convolve(g_input, weight, None, *attrs))
    if g_weight is not None:
        parts.append(convolve(x, g_weight, None, *attrs))
    first = (ops.add(*parts) if len(parts) == 2 else parts[0]) if parts and needs[0] else None
    second = ops.convolution_backward(grad, x, g_weight, *attrs, True, False)[0] if g_weight is not None and needs[1] else None
    third = (
        ops.convolution_backward(grad, g_input, weight, *attrs, False, True)[1] if g_input is not None and needs[2] else None
    )
    return first, second, third, None, None, None, None, None, None


# ------------------------------------------------------------------------------------------------------------- attention


@form("scaled_dot_product_attention")
def _attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    scale = _scale_of(q.shape[-1]) if scale is None else scale
    groups = _groups(q, k) if enable_gqa else 1
    if groups != 1 and not _takes_groups(q, mask) and q.dtype in rules.HALVES:
        k, v, groups = _repeated(k, groups), _repeated(v, groups), 1
    if not dropout_p and (groups == 1 or _takes_groups(q, mask)) and _fuses(q, k, v, mask, groups):
        return ops.attention_forward(q, k, v, mask, is_causal, scale)[0]
    if q.device.type == "cuda" and len(q.shape) == 4 and q.dtype != torch.float64:
        return NotImplemented  # with dropout, masks that learn, odd sizes: torch's fused kernels, which torch differentiates
    p = _probabilities(widen(q), _repeated(widen(k), groups), mask, is_causal, scale)
    if dropout_p:
        p = ops.dropout(p, dropout_p, True)
    return cast(ops.matmul(p, _repeated(widen(v), groups)), q.dtype)


def _scale_of(width: Any) -> float | None:
    """One over the root of the width; of none, what C++ makes of it. None where the width is a symbol: kernels know it."""
    if not isinstance(width, int):
        return None
    return 1 / math.sqrt(width) if width else math.inf


def _roots(scale: float | None, x: Any) -> tuple[Any, Any]:
    """Two factors whose product is the scale: numbers, or of a symbolic width one that kernels compute."""
    if scale is None:
        root = ops.sqrt(ops.rsqrt(ops.full((), x.shape[-1], dtype=torch.float64, device=x.device)))
        return root, root
    root = math.sqrt(abs(scale))
    return math.copysign(root, scale), root


def _groups(q: Any, k: Any) -> Any:
    """How many heads of queries share a head of keys."""
    return 1 if rules.shapes.same(q.shape[-3], k.shape[-3]) else q.shape[-3] // k.shape[-3]


def _repeated(x: Any, groups: Any) -> Any:
    return x if groups == 1 else ops.repeat_interleave(x, groups, -3)


def _takes_groups(q: Any, mask: Any) -> bool:
    """Whether the fused kernel reads shared heads where they are: a CPU's and CUDA's flash kernel do."""
    return q.device.type == "cpu" or (mask is None and q.dtype in rules.HALVES)


def _fuses(q: Any, k: Any, v: Any, mask: Any, groups: Any) -> bool:
    """Whether a fused kernel takes these in both directions."""
    same = rules.shapes.same
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        return False
    sizes_fit = all(same(q.shape[d], x.shape[d]) for x in (k, v) for d in (0, 3)) and same(k.shape[1], v.shape[1])
    sizes_fit = sizes_fit and same(q.shape[1], k.shape[1] * groups)
    if not sizes_fit or any(rules.is_zero(s) for x in (q, k, v) for s in x.shape) or not all(_dense(x) for x in (q, k, v)):
        return False
    mask_fits = mask is None or (not _has_grad(mask) and len(mask.shape) in (2, 4))
    if q.device.type == "cpu":
        return mask_fits
    width = q.shape[3]
    mask_fits = mask_fits and (mask is None or mask.dtype in (torch.bool, q.dtype))
    return mask_fits and isinstance(width, int) and width % 8 == 0 and width <= 256


def _dense(x: Any) -> bool:
    return bool(rules.shapes.same(x.stride()[-1], 1))


def _has_grad(x: Any) -> bool:
    return bool(getattr(x, "requires_grad", False))


def _probabilities(q: Any, k: Any, mask: Any, is_causal: bool, scale: float | None) -> Any:
    """softmax(scale q k + mask), where each factor gets a root of the scale, as in torch; a row that sees nothing is zeros."""
    first, second = _roots(scale, q)
    scores = ops.matmul(ops.mul(q, first), ops.mul(ops.transpose(k, -2, -1), second))
    if is_causal:
        rows, cols = (positions(scores.shape[d], 2, d, q.device) for d in (-2, -1))
        scores = ops.where(ops.ge(rows, cols), scores, -math.inf)
    if mask is None:
        return ops.softmax(scores, -1)
    scores = ops.where(mask, scores, -math.inf) if not mask.dtype.is_floating_point else ops.add(scores, mask)
    blind = ops.eq(ops.amax(scores, (-1,), True), -math.inf)
    return ops.where(blind, 0.0, ops.softmax(ops.where(blind, 0.0, scores), -1))


@vjp("attention_forward", "query", "key", "value", "mask", "result0", "result1")
def _attention_forward(grads: Args, args: Args, results: Args, needs: Args) -> Gradients:
    """The statistics are there for this alone: their own gradient is never defined."""
    q, k, v, mask, is_causal, scale = args
    if grads[0] is None:
        return (None,) * 6
    return (*ops.attention_backward(grads[0], q, k, v, mask, *results, is_causal, scale), None, None, None)


@form("attention_backward")
def _attention_backward(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, statistics: Any, is_causal: bool, scale: float | None
) -> Any:
    """From the inputs alone, so that it can be differentiated once more. Dao et al., 2022, appendix B."""
    groups = _groups(q, k)
    g, wide_q, wide_k, wide_v = widen(grad), widen(q), _repeated(widen(k), groups), _repeated(widen(v), groups)
    p = _probabilities(wide_q, wide_k, mask, is_causal, scale)
    turned = ops.transpose(p, -2, -1)
    inner = ops.matmul(g, ops.transpose(wide_v, -2, -1))
    slope = ops.mul(p, ops.sub(inner, ops.sum(ops.mul(inner, p), (-1,), True)))
    for factor in (scale,) if scale is not None else _roots(scale, q):
        slope = ops.mul(slope, factor)
    first = ops.matmul(slope, wide_k)
    second = _summed(ops.matmul(ops.transpose(slope, -2, -1), wide_q), k, groups)
    third = _summed(ops.matmul(turned, g), v, groups)
    given = grad, q, k, v, mask, out, statistics, is_causal, scale
    metas = OPS["attention_backward"].meta(*(getattr(a, "meta", a) for a in given))
    assert isinstance(metas, tuple)
    return tuple(ops.restride(cast(x, m.dtype), m.strides) for x, m in zip((first, second, third), metas, strict=True))


def _summed(grad: Any, like: Any, groups: Any) -> Any:
    """The gradient of heads that groups of queries share."""
    if groups == 1:
        return grad
    batch, heads, length, width = like.shape
    return ops.sum(ops.reshape(grad, (batch, heads, groups, length, width)), (2,))
