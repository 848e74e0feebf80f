"""Convolutions and attention: library kernels, with metadata rules written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import Shape
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Extern
from tinycompile.ops.samples import FLOATS, call, t

# ---------------------------------------------------------------------------------------------------------- convolution


def numbers(value: Any, n: int) -> tuple[int, ...]:
    """A number a spatial dim."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * n if len(given) == 1 else given


def convolution(
    n: int, x: TensorMeta, weight: TensorMeta, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> TensorMeta:
    """Sizes of an n-d convolution; channels-last where the input or the weight suggests it, as cuDNN and oneDNN give it."""
    if x.rank not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to conv{n}d, but got input of size: {list(x.shape)}"
        )
    batched = x.rank == n + 2
    channels = x.shape[-n - 1]
    if not shapes.same(channels, weight.shape[1] * groups):
        full = x.shape if batched else (1, *x.shape)
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(full)} to have "
            f"{weight.shape[1] * groups} channels, but got {channels} channels instead"
        )
    if bias is not None and not (bias.rank == 1 and shapes.same(bias.shape[0], weight.shape[0])):
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {weight.shape[0]} elements, "
            f"but got bias of size {list(bias.shape)} instead"
        )
    if weight.dtype != x.dtype:
        kinds = [f"{_legacy_type(m)}" for m in (x, weight)]
        raise RuntimeError(f"Input type ({kinds[0]}) and weight type ({kinds[1]}) should be the same")
    steps, gaps = numbers(stride, n), numbers(dilation, n)
    space: list[Dim] = []
    for d in range(n):
        kernel, size = weight.shape[2 + d], x.shape[x.rank - n + d]
        reach = gaps[d] * (kernel - 1) + 1
        if isinstance(padding, str):
            space.append(size if padding == "same" else size - reach + 1)
        else:
            space.append(ex.floordiv(size + 2 * numbers(padding, n)[d] - reach, steps[d]) + 1)
    lead = (x.shape[0],) if batched else ()
    if rules.is_zero(channels) or (batched and rules.is_zero(x.shape[0])):  # torch computes none of these, and shapes them so
        shape = (*lead, 0 if rules.is_zero(channels) else weight.shape[0], *space)
        return TensorMeta(shape, rules.dense_strides(shape), x.dtype, rules.common_device([x, weight]))
    shape = (*lead, weight.shape[0], *space)
    last = n > 1 and (suggests_channels_last(x, n) or suggests_channels_last(weight, n))
    return TensorMeta(
        shape, conv_strides(shape, n) if last else rules.dense_strides(shape), x.dtype, rules.common_device([x, weight])
    )


def suggests_channels_last(x: TensorMeta, n: int) -> bool:
    """Whether a (possibly unbatched) n-d image asks for channels-last results."""
    if x.rank == n + 1:
        x = TensorMeta((1, *x.shape), (x.shape[0] * x.strides[0], *x.strides), x.dtype, x.device)
    return rules.suggests_channels_last(x)


def conv_strides(shape: Shape, n: int) -> Shape:
    """Channels-last strides of a batched or unbatched n-d image."""
    return rules.channels_last_strides(shape) if len(shape) == n + 2 else rules.channels_last_strides((1, *shape))[1:]


def _legacy_type(x: TensorMeta) -> str:
    return f"torch.{'cuda.' if x.device.type == 'cuda' else ''}{rules.type_name(x.dtype)}Tensor"


def _conv_meta(n: int) -> Any:
    def meta(
        x: TensorMeta,
        weight: TensorMeta,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> TensorMeta:
        return convolution(n, x, weight, bias, stride, padding, dilation, groups)

    return meta


def _eager_conv(fn: Any) -> Any:
    def eager(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> torch.Tensor:
        pad = padding[0] if isinstance(padding, tuple) and padding and isinstance(padding[0], str) else padding
        return fn(x, weight, bias, stride, pad, dilation, groups)

    return eager


_CONV_SPACE = {1: (9,), 2: (9, 8), 3: (5, 6, 7)}
for _n in (1, 2, 3):
    _space, _kernel = _CONV_SPACE[_n], (3,) * _n
    declare(
        f"conv{_n}d(Tensor self, Tensor weight, Tensor? bias=None, int[{_n}] stride=1, int[{_n}] padding=0, "
        f"int[{_n}] dilation=1, int groups=1) -> Tensor",
        _conv_meta(_n),
        Extern(),
        _eager_conv(getattr(F, f"conv{_n}d")),
        spelled(f"conv{_n}d", "tf"),
        lambda space=_space, kernel=_kernel: [  # type: ignore[misc]
            call(t(2, 4, *space), t(6, 4, *kernel), t(6)),
            call(t(2, 4, *space), t(6, 4, *kernel), None, 2, 1),
            call(t(4, *space), t(6, 4, *kernel)),
            call(t(2, 4, *space), t(6, 2, *kernel), t(6), 1, 1, 1, 2),
            call(t(2, 4, *space), t(6, 4, *kernel), t(6), 1, 2, 2),
            call(t(2, 4, *space), t(6, 5, *kernel)),
            call(t(2, 4, *space), t(6, 4, *kernel), t(5)),
            call(t(2, 4, *space), t(6, 4, *kernel), t(1)),
            *([call(t(2, 4, *space, layout="channels_last"), t(6, 4, *kernel), t(6))] if len(space) == 2 else []),
        ],
        ulp=16.0,
    )


# ------------------------------------------------------------------------------------------------------------- attention


def attention_meta(
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorMeta:
    """Flash kernels lay the result out as the query; CUDA's memory-efficient one (float32, masks) writes [batch, length,
    heads, dim]; the plain one is row-major."""
    shape = (
        *shapes.broadcast_shapes(query.shape[:-2], *(() if enable_gqa else (key.shape[:-2], value.shape[:-2]))),
        query.shape[-2],
        value.shape[-1],
    )
    if not (query.dtype == key.dtype == value.dtype):
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {rules.c_type(query.dtype)} "
            f"key.dtype: {rules.c_type(key.dtype)} and value.dtype: {rules.c_type(value.dtype)} instead."
        )
    if enable_gqa and query.rank == key.rank == value.rank == 4:  # kernels below torch's own check would read past the end
        given = [x.shape[1] for x in (key, value) if not rules.is_zero(x.shape[1])]
        if not all(shapes.same(ex.mod(query.shape[1], heads), 0) for heads in given):
            raise RuntimeError("Number of heads in key and value must divide the number of heads in ")
    if not is_fused(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
        return rules.fresh(shape, query.dtype, query.device)
    if query.device.type == "cuda" and (query.dtype not in rules.HALVES or attn_mask is not None):
        return TensorMeta(shape, rules.strides_in_order(shape, (3, 1, 2, 0)), query.dtype, query.device)
    return TensorMeta(shape, rules.preserved_strides(query), query.dtype, query.device)


def is_fused(
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    """Whether torch has one kernel for a call."""
    if not query.rank == key.rank == value.rank == 4:
        return False
    if query.device.type != "cpu":
        return query.dtype in rules.HALVES or not dropout_p
    same_heads = shapes.same(query.shape[1], key.shape[1]) or enable_gqa
    plain = all(shapes.same(x.strides[-1], 1) for x in (query, key, value)) and not dropout_p and same_heads
    sized = not any(rules.is_zero(s) for x in (query, key, value) for s in x.shape)
    mask_fits = mask is None or (mask.rank in (2, 4) and mask.dtype in (torch.bool, query.dtype))
    return plain and sized and mask_fits and shapes.same(query.shape[-1], value.shape[-1])


def _eager_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


declare(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
    "dropout_p=0.0, bool is_causal=False, *, "
    "float? scale=None, bool enable_gqa=False) -> Tensor",
    attention_meta,
    Extern(),
    _eager_attention,
    spelled("scaled_dot_product_attention", "f"),
    lambda: [
        *(call(t(2, 3, 5, 8, dtype=d), t(2, 3, 7, 8, dtype=d), t(2, 3, 7, 8, dtype=d)) for d in FLOATS),
        call(t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 8), is_causal=True),
        call(t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 8), t(5, 7, dtype="bool")),
        call(t(2, 3, 5, 8, layout="transposed"), t(2, 3, 7, 8), t(2, 3, 7, 8)),
        call(t(3, 5, 8), t(3, 7, 8), t(3, 7, 8)),
        call(t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 4)),
        call(t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 8), scale=1 / math.sqrt(3)),
    ],
    ulp=16.0,
)
