"""Ops that draw random numbers: torch's own kernels and generators."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Extern
from tinycompile.ops.samples import call, t


def _dropout_meta(x: TensorMeta, p: float, train: bool) -> TensorMeta:
    """The noise is made as a copy is; the product with it is an elementwise kernel's."""
    if any(rules.is_zero(n) for n in x.shape):
        return rules.empty_like(x)
    return rules.elementwise((x, rules.empty_like(x)), x.dtype)


def _like_meta(x: TensorMeta, dtype: Any = None) -> TensorMeta:
    return TensorMeta(x.shape, rules.preserved_strides(x), dtype or x.dtype, x.device)


def _eager_like(fn: Any) -> Any:
    return lambda x, dtype=None: fn(x, dtype=dtype)


declare(
    "dropout(Tensor self, float p, bool train) -> Tensor",
    _dropout_meta,
    Extern(),
    torch.dropout,
    (),
    lambda: [call(t(4, 5), 0.5, True)],
    doc="Training only: in evaluation, and for p = 0, binding gives the identity.",
)
for _name in ("rand_like", "randn_like"):
    declare(
        f"{_name}(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        _like_meta,
        Extern(),
        _eager_like(getattr(torch, _name)),
        spelled(_name, "t"),
        lambda: [call(t(4, 5))],
    )
