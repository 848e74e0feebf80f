"""Library ops that exist for gradients' sake: forward kernels that also give what their backward needs, and the backward
kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import attention_cudnn
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.attention import attention_meta, conv_strides, convolution, suggests_channels_last
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Extern, Metas
from tinycompile.ops.samples import FLOATS, call, one, t

aten = torch.ops.aten


# ------------------------------------------------------------------------------------------------------------- functions


def _polygamma_meta(x: TensorMeta, n: int) -> TensorMeta:
    return rules.like(x, rules.float_type(x.dtype))


declare(
    "polygamma(Tensor self, int n) -> Tensor",
    _polygamma_meta,
    Extern(),
    lambda x, n: torch.polygamma(n, x),
    spelled("polygamma", "m"),
    one(("float32", "float64"), "positive", 1),
    ulp=8.0,
    doc="The n-th derivative of digamma.",
)


# --------------------------------------------------------------------------------------------------------------- dropout


def _dropout_meta(x: TensorMeta, p: float, train: bool) -> Metas:
    mask = rules.empty_like(x, torch.bool)
    if any(rules.is_zero(n) for n in x.shape):
        return rules.empty_like(x), rules.empty_like(x) if x.device.type == "cpu" else mask
    return rules.elementwise((x, mask), x.dtype, x.dtype), mask


declare(
    "native_dropout(Tensor self, float p, bool train) -> (Tensor, Tensor)",
    _dropout_meta,
    Extern(),
    torch.native_dropout,
    spelled("native_dropout", "t"),
    lambda: [call(t(4, 5), 0.0, True), call(t(6, 4, layout="transposed"), 1.0, True)],
    doc="dropout, and which elements it kept.",
)


# ----------------------------------------------------------------------------------------------------------- convolution


def _convolution_meta(
    grad: TensorMeta,
    x: TensorMeta,
    weight: TensorMeta,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    needs_input: bool = True,
    needs_weight: bool = True,
) -> Metas:
    n = weight.rank - 2
    wanted = convolution(n, x, weight, None, tuple(stride), tuple(padding), tuple(dilation), groups).shape
    if not all(map(shapes.same, grad.shape, wanted)):
        raise RuntimeError(f"convolution_backward: expected a gradient of size {list(wanted)}, got {list(grad.shape)}")
    last = n > 1 and (suggests_channels_last(x, n) or suggests_channels_last(weight, n))

    def result(like: TensorMeta, needed: bool) -> TensorMeta:
        if not needed:
            return rules.fresh((0,), like.dtype, like.device)
        strides = conv_strides(like.shape, n) if last else rules.dense_strides(like.shape)
        return TensorMeta(like.shape, strides, like.dtype, like.device)

    return result(x, needs_input), result(weight, needs_weight)


def _eager_convolution(
    grad: Any,
    x: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    needs_input: bool = True,
    needs_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    still = [0] * len(stride)
    mask = [needs_input, needs_weight, False]
    found = aten.convolution_backward(
        grad, x, weight, None, list(stride), list(padding), list(dilation), False, still, groups, mask
    )
    return tuple(like.new_empty(0) if r is None else r for r, like in zip(found[:2], (x, weight), strict=True))


declare(
    "convolution_backward(Tensor grad, Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, "
    "bool needs_input=True, bool needs_weight=True) -> (Tensor, Tensor)",
    _convolution_meta,
    Extern(),
    _eager_convolution,
    (),
    lambda: [
        call(t(2, 6, 7), t(2, 4, 9), t(6, 4, 3), (1,), (0,), (1,), 1),
        call(t(2, 6, 5, 4), t(2, 4, 9, 8), t(6, 4, 3, 3), (2, 2), (1, 1), (1, 1), 1),
        call(t(2, 6, 7, 6), t(2, 4, 9, 8), t(6, 2, 3, 3), (1, 1), (0, 0), (1, 1), 2, True, False),
        call(t(2, 6, 7, 6), t(2, 4, 9, 8, layout="channels_last"), t(6, 4, 3, 3), (1, 1), (0, 0), (1, 1), 1),
        call(t(2, 6, 3, 4, 5), t(2, 4, 5, 6, 7), t(6, 4, 3, 3, 3), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1),
    ],
    ulp=16.0,
    doc="Gradients of a batched convolution's input and weight; what is not needed is an empty tensor.",
)


# ------------------------------------------------------------------------------------------------------------- attention


def _is_flash(query: Any, mask: Any) -> bool:
    """Which of CUDA's kernels: the flash kernel takes half types without a mask, the memory-efficient one the rest."""
    return query.dtype in rules.HALVES and mask is None


def _statistics_meta(query: TensorMeta, mask: Any) -> TensorMeta:
    """The log of each row's sum of exponentials, as each kernel lays it out."""
    batch, heads, length = query.shape[:3]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    if query.device.type == "cpu":
        return TensorMeta((batch, heads, length), (length * heads, 1, heads), dtype, query.device)
    if _is_flash(query, mask):
        return rules.fresh((batch, heads, length), dtype, query.device)
    return rules.fresh((batch, heads, ex.ceildiv(length, 32) * 32), dtype, query.device)


def _attention_forward_meta(
    query: TensorMeta, key: TensorMeta, value: TensorMeta, mask: Any, is_causal: bool, scale: float | None
) -> Metas:
    return attention_meta(query, key, value, mask, 0.0, is_causal, scale, enable_gqa=True), _statistics_meta(query, mask)


def _attention_backward_meta(
    grad: TensorMeta,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    mask: Any,
    out: TensorMeta,
    statistics: TensorMeta,
    is_causal: bool,
    scale: float | None,
) -> Metas:
    flash = query.device.type != "cpu" and _is_flash(query, mask)

    def like(x: TensorMeta) -> TensorMeta:
        strides = rules.preserved_strides(x) if flash else rules.strides_in_order(x.shape, (3, 1, 2, 0))
        return TensorMeta(x.shape, strides, x.dtype, x.device)

    return like(query), like(key), like(value)


def _eager_attention_forward(
    q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if q.device.type == "cpu":
        mask = mask if mask is None or mask.dtype != torch.bool else _additive(mask, q.dtype)
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale)
    if _is_flash(q, mask):
        if attention_cudnn.preferred(q, k, v, is_causal, scale):
            return attention_cudnn.forward(q, k, v, is_causal, scale)
        found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)
    else:
        bias = _bias(mask, q, k)
        found = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, is_causal, scale=scale)
    return found[0], found[1]


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)


def _bias(mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """A mask as the memory-efficient kernel reads it: added, of the scores' sizes, its rows beginning at multiples of 16."""
    if mask is None:
        return None
    mask = _additive(mask, q.dtype) if mask.dtype == torch.bool else mask
    length = k.shape[2]
    if mask.shape[-1] != length or mask.stride(-1) != 1 or any(s % 16 for s in mask.stride()[:-1]):
        rows = mask.new_empty((*mask.shape[:-1], -(-length // 16) * 16))[..., :length]
        mask = rows.copy_(mask)
    return mask.expand(*q.shape[:3], length)


def _eager_attention_backward(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, statistics: Any, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, ...]:
    if q.device.type == "cpu":
        mask = mask if mask is None or mask.dtype != torch.bool else _additive(mask, q.dtype)
        return tuple(
            aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, q, k, v, out, statistics, 0.0, is_causal, attn_mask=mask, scale=scale
            )
        )
    if _is_flash(q, mask):
        if attention_cudnn.preferred(q, k, v, is_causal, scale):
            return attention_cudnn.backward(grad, q, k, v, out, statistics, is_causal, scale)
        seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # read for dropout alone, which is not done here
        lengths = q.shape[2], k.shape[2]
        return tuple(
            aten._scaled_dot_product_flash_attention_backward(
                grad, q, k, v, out, statistics, None, None, *lengths, 0.0, is_causal, seed, seed, scale=scale
            )
        )
    seed = torch.empty((), dtype=torch.int64, device=q.device)
    needs = [True, True, True, False]
    return tuple(
        aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, _bias(mask, q, k), out, statistics, seed, seed, 0.0, needs, is_causal, scale=scale
        )[:3]
    )


declare(
    "attention_forward(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float? scale) -> (Tensor, Tensor)",
    _attention_forward_meta,
    Extern(),
    _eager_attention_forward,
    (),
    lambda: [
        *(call(t(2, 3, 5, 8, dtype=d), t(2, 3, 7, 8, dtype=d), t(2, 3, 7, 8, dtype=d), None, False, 0.35) for d in FLOATS),
        call(t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8), None, True, 0.35),
        call(t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 8), t(5, 7), False, 0.35),
        call(t(2, 4, 5, 8), t(2, 2, 7, 8), t(2, 2, 7, 8), t(2, 1, 5, 7, dtype="bool"), False, 0.35),
        call(t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 8), None, False, None),
    ],
    ulp=16.0,
    doc="Fused attention of [batch, heads, length, dim] without dropout; with the statistics that its backward needs. Keys and "
    "values may have fewer heads where the kernel reads them for groups of queries. No ``scale``: one over the root of dim.",
)
declare(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out, Tensor statistics, "
    "bool is_causal, float? scale) -> (Tensor, Tensor, Tensor)",
    _attention_backward_meta,
    Extern(),
    _eager_attention_backward,
    (),
    lambda: [
        call(t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8), None, t(2, 3, 5, 8), t(2, 3, 5), True, 0.35),
        call(t(2, 4, 5, 8), t(2, 4, 5, 8), t(2, 2, 7, 8), t(2, 2, 7, 8), t(5, 7), t(2, 4, 5, 8), t(2, 4, 5), False, 0.35),
        call(t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8), None, t(2, 3, 5, 8), t(2, 3, 5), False, None),
    ],
    ulp=16.0,
    doc="Gradients of the query, key and value of attention_forward.",
)
