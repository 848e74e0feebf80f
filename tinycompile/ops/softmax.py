"""Softmax and log_softmax along one dim.

Both are written over one reduction, the running maximum and sum of exponentials (Milakov and Gimelshein, 2018), so that a fused
kernel reads a row once. Half types are widened first and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_reductions
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops, row_major, widen
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Metas, Reduction
from tinycompile.ops.samples import FLOATS, LAYOUTS, call, t
from tinycompile.ops.scalar import Builder, Value


def _stats_meta(x: TensorMeta, dim: int) -> Metas:
    found = meta_reductions.reduction(x, dim, True, x.dtype)
    return found, found


def _stats(b: Builder, top: Value, total: Value, count: Value, **attrs: Any) -> tuple[Value, Value]:
    return top, total


def _eager_stats(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    top = torch.amax(x, dim, keepdim=True)
    return top, torch.exp(x - top).sum(dim, keepdim=True)


def _meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: int, dtype: torch.dtype | None = None) -> TensorMeta:
        shapes.normalize_dim(dim, x.rank)
        chosen = dtype or x.dtype
        if not chosen.is_floating_point and not any(rules.is_zero(s) for s in x.shape):  # (ATen calls no kernel then)
            raise NotImplementedError(f"\"{name}_lastdim_kernel_impl\" not implemented for '{rules.type_name(chosen)}'")
        return rules.fresh(x.shape, chosen, x.device)

    return meta


def shifted(x: Any, dim: int) -> tuple[Any, Any]:
    """``x - max`` and the sum of its exponentials along ``dim``, kept as size 1; ``x`` is in its opmath dtype."""
    top, total = ops.softmax_stats(x, dim)
    return ops.sub(x, top), total


def _softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    out = dtype or x.dtype
    if any(rules.is_zero(s) for s in x.shape):
        return ops.full(tuple(x.shape), 0.0, dtype=out, device=x.device)
    below, total = shifted(widen(cast(x, out)), dim)
    # one division a row: the sum is at least 1, so its reciprocal costs half a unit in the last place and nothing else
    return row_major(cast(ops.mul(ops.exp(below), ops.reciprocal(total)), out))


def _log_softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    out = dtype or x.dtype
    if any(rules.is_zero(s) for s in x.shape):
        return ops.full(tuple(x.shape), 0.0, dtype=out, device=x.device)
    below, total = shifted(widen(cast(x, out)), dim)
    return row_major(cast(ops.sub(below, ops.log(total)), out))


def _calls() -> Any:
    return [
        *(call(t(4, 5, dtype=d), 1) for d in FLOATS),
        call(t(4, 5), 0),
        call(t(3, 4, 5), 1),
        call(t(3, 4, 5), -3),
        call(t(), 0),
        *(call(t(4, 6, layout=lay), d) for lay in LAYOUTS for d in (0, 1)),
        call(t(6, 6, fill="special"), 1),
        call(t(0, 3), 1),
        call(t(3, 0), 1),
        call(t(4, 5, dtype="float16"), 1, torch.float32),
        call(t(4, 5, dtype="int32"), 1),
        call(t(4, 5), 2),
        call(t(2, 3, 4, 5, layout="channels_last"), 1),
        call(t(4, 1), 1),
    ]


declare(
    "softmax_stats(Tensor self, int dim) -> (Tensor max, Tensor sum)",
    _stats_meta,
    Reduction("online_softmax", None, _stats),
    _eager_stats,
    (),
    lambda: [*(call(t(4, 5, dtype=d), 1) for d in ("float32", "float64")), call(t(3, 4, 5), 1)],
    doc="The maximum and the sum of exp(x - max) along a dim, kept as size 1.",
)
declare(
    "softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
    _meta("softmax"),
    Decompose(_softmax),
    lambda x, dim, dtype=None: torch.softmax(x, dim, dtype=dtype),
    spelled("softmax", "tmfs"),
    _calls,
    ulp=4.0,
)
declare(
    "log_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
    _meta("log_softmax"),
    Decompose(_log_softmax),
    lambda x, dim, dtype=None: torch.log_softmax(x, dim, dtype=dtype),
    spelled("log_softmax", "tmfs"),
    _calls,
    ulp=4.0,
)
