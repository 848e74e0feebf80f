"""Normalisations: layer, RMS, group and batch (inference). Half types are widened first and rounded once, at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, row_major, widen
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose
from tinycompile.ops.samples import FLOATS, LAYOUTS, call, t


def _scaled(y: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        y = ops.mul(y, widen(weight))
    return y if bias is None else ops.add(y, widen(bias))


def _shifted(y: Any, bias: Any) -> Any:
    """With the bias, or 0 where ATen's CPU kernel adds that, so that no result is -0."""
    if bias is None:
        return ops.add(y, 0.0) if y.device.type == "cpu" else y
    return ops.add(y, widen(bias))


# -------------------------------------------------------------------------------------------------------- layer, RMS


def check_normalized(
    x: TensorMeta, normalized_shape: Sequence[Dim], weight: Any, bias: Any = None, between: str = ", "
) -> None:
    """ATen's ``_check_layer_norm_inputs``."""
    n = len(normalized_shape)
    shape = tuple(normalized_shape)
    if n < 1:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            f"normalized_shape = {list(shape)}"
        )
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and not shapes.same_shape(given.shape, shape):
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(given.shape)} and "
                f"normalized_shape = {list(shape)}"
            )
    if x.rank < n or not shapes.same_shape(x.shape[x.rank - n :], shape):
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*{between}{', '.join(map(str, shape))}], but got input of size{list(x.shape)}"
        )


def _last_dims(n: int) -> tuple[int, ...]:
    return tuple(range(-n, 0))


def _layer_norm_meta(
    x: TensorMeta, normalized_shape: Sequence[Dim], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> TensorMeta:
    check_normalized(x, normalized_shape, weight, bias)
    return rules.fresh(x.shape, x.dtype, x.device)


def _layer_norm(x: Any, normalized_shape: Sequence[Dim], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Ba, Kiros and Hinton, 2016: (x - mean) / sqrt(var + eps) * weight + bias."""
    wide = widen(x)
    var, mean = ops.var_mean(wide, _last_dims(len(normalized_shape)), correction=0, keepdim=True)
    y = ops.mul(ops.sub(wide, mean), ops.rsqrt(ops.add(var, eps)))
    return row_major(cast(_shifted(_scaled(y, weight, None), bias), x.dtype))


def _rms_norm_meta(x: TensorMeta, normalized_shape: Sequence[Dim], weight: Any = None, eps: float | None = None) -> TensorMeta:
    check_normalized(x, normalized_shape, weight, between="")  # so torch words it
    made = rules.fresh(x.shape, x.dtype, x.device)
    if not any(map(rules.is_zero, x.shape)):
        return made
    lead = x.rank - len(normalized_shape)
    scale = rules.fresh((*x.shape[:lead], *([1] * len(normalized_shape))), x.dtype, x.device)
    for factor in (scale, weight):  # an empty result's strides show that it is a product of products
        if factor is not None:
            made = replace(made, strides=rules.iterator_strides(x.shape, (made, factor), False))
    return made


def _rms_norm(x: Any, normalized_shape: Sequence[Dim], weight: Any = None, eps: float | None = None) -> Any:
    """Zhang and Sennrich, 2019: x / sqrt(mean(x^2) + eps) * weight. The default eps is the input dtype's."""
    wide = widen(x)
    mean = ops.mean(ops.square(wide), _last_dims(len(normalized_shape)), True)
    scale = ops.rsqrt(ops.add(mean, torch.finfo(wide.dtype).eps if eps is None else eps))
    return row_major(cast(_scaled(ops.mul(wide, scale), weight, None), x.dtype))


def _eager_layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    return F.layer_norm(x, tuple(shape), weight, bias, eps)


def _eager_rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> torch.Tensor:
    return F.rms_norm(x, tuple(shape), weight, eps)


declare(
    "layer_norm(Tensor self, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor",
    _layer_norm_meta,
    Decompose(_layer_norm),
    _eager_layer_norm,
    spelled("layer_norm", "tf"),
    lambda: [
        *(call(t(4, 6, dtype=d), (6,), t(6, dtype=d), t(6, dtype=d)) for d in FLOATS),
        call(t(4, 6), (6,)),
        call(t(2, 3, 4), (3, 4), t(3, 4)),
        *(call(t(4, 6, layout=lay), (6,), t(6), t(6), 1e-3) for lay in LAYOUTS),
        call(t(4, 6), (5,)),
        call(t(4, 6), (6,), t(5)),
        call(t(0, 6), (6,)),
        call(t(4, 6, dtype="bfloat16"), (6,), t(6), t(6)),
    ],
    ulp=8.0,
)
declare(
    "rms_norm(Tensor self, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
    _rms_norm_meta,
    Decompose(_rms_norm),
    _eager_rms_norm,
    spelled("rms_norm", "tf"),
    lambda: [
        *(call(t(4, 6, dtype=d), (6,), t(6, dtype=d)) for d in FLOATS),
        call(t(4, 6), (6,)),
        call(t(2, 3, 4), (3, 4), t(3, 4), 1e-3),
        *(call(t(4, 6, layout=lay), (6,), t(6)) for lay in LAYOUTS),
        call(t(4, 6), (5,)),
    ],
    ulp=8.0,
)


# ----------------------------------------------------------------------------------------------------- group, batch


def _group_norm_meta(x: TensorMeta, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> TensorMeta:
    if x.rank < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {x.rank}")
    if num_groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {num_groups}")
    channels = x.shape[1]
    if not shapes.same(channels % num_groups, 0):
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(x.shape)} and num_groups={num_groups}"
        )
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and (given.rank != 1 or not shapes.same(given.numel, channels)):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of shape "
                f"{list(given.shape)} and input of shape {list(x.shape)}"
            )
    if rules.suggests_channels_last(x):
        return TensorMeta(x.shape, rules.channels_last_strides(x.shape), x.dtype, x.device)
    return rules.fresh(x.shape, x.dtype, x.device)


def _per_channel(v: Any, rank: int) -> Any:
    return None if v is None else ops.view(v, (1, -1, *([1] * (rank - 2))))


def _group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Wu and He, 2018: statistics over [channels of a group, space], then one scale and shift a channel."""
    shape = tuple(x.shape)
    grouped = ops.reshape(widen(x), (shape[0], num_groups, shape[1] // num_groups, *shape[2:]))
    var, mean = ops.var_mean(grouped, tuple(range(2, len(shape) + 1)), correction=0, keepdim=True)
    y = ops.reshape(ops.mul(ops.sub(grouped, mean), ops.rsqrt(ops.add(var, eps))), shape)
    scale, shift = _per_channel(weight, len(shape)), _per_channel(bias, len(shape))
    return cast(_scaled(y, None, shift) if weight is None else _shifted(_scaled(y, scale, None), shift), x.dtype)


def _batch_norm_meta(
    x: TensorMeta, running_mean: TensorMeta, running_var: TensorMeta, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> TensorMeta:
    if x.rank < 2:
        raise IndexError("Dimension out of range (expected to be in range of [-1, 0], but got 1)")
    channels = x.shape[1]
    for name, given in (("running_mean", running_mean), ("running_var", running_var), ("weight", weight), ("bias", bias)):
        if given is not None and not (given.rank == 1 and shapes.same(given.numel, channels)):
            raise RuntimeError(f"{name} should contain {channels} elements not {given.numel}")
    if rules.suggests_channels_last(x):
        return TensorMeta(x.shape, rules.channels_last_strides(x.shape), x.dtype, x.device)
    return rules.fresh(x.shape, x.dtype, x.device)


def _batch_norm(x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Ioffe and Szegedy, 2015, with the running statistics."""
    rank = len(x.shape)
    mean, var = widen(running_mean), widen(running_var)
    scale = ops.rsqrt(ops.add(var, eps))
    if weight is not None:
        scale = ops.mul(scale, widen(weight))
    shift = ops.neg(ops.mul(mean, scale))
    shift = ops.add(shift, 0.0 if bias is None else widen(bias))  # never -0 without a bias
    y = ops.add(ops.mul(widen(x), _per_channel(scale, rank)), _per_channel(shift, rank))
    return cast(y, x.dtype)


def _eager_batch_norm(x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.1, eps)


declare(
    "group_norm(Tensor self, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor",
    _group_norm_meta,
    Decompose(_group_norm),
    lambda x, n, w=None, b=None, eps=1e-5: F.group_norm(x, n, w, b, eps),
    spelled("group_norm", "tf"),
    lambda: [
        *(call(t(2, 6, 3, 4, dtype=d), 3, t(6, dtype=d), t(6, dtype=d)) for d in FLOATS),
        call(t(2, 6), 2),
        call(t(2, 6, 5), 6, t(6)),
        call(t(2, 6, 3, 4, layout="channels_last"), 3, t(6), t(6)),
        call(t(2, 6, 3), 4),
    ],
    ulp=8.0,
)
declare(
    "batch_norm(Tensor self, Tensor running_mean, Tensor running_var, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-05) -> Tensor",
    _batch_norm_meta,
    Decompose(_batch_norm),
    _eager_batch_norm,
    ("torch.nn.functional.batch_norm",),
    lambda: [
        *(
            call(t(2, 6, 3, 4, dtype=d), t(6, dtype=d), t(6, dtype=d, fill="positive"), t(6, dtype=d), t(6, dtype=d))
            for d in FLOATS
        ),
        call(t(4, 6), t(6), t(6, fill="positive")),
        call(t(2, 6, 5), t(6), t(6, fill="positive"), t(6)),
        call(t(2, 6, 3, 4, layout="channels_last"), t(6), t(6, fill="positive"), None, t(6), 1e-3),
        call(t(2, 5, 3), t(6), t(6, fill="positive")),
    ],
    ulp=8.0,
    doc="Inference: training updates the statistics and stays a torch call.",
)
