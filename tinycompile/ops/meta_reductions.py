"""Shapes of what reductions give, and when there is nothing to reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import Shape
from tinycompile.ops import meta_rules as rules


def reduced_shape(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    """``shape`` with ``dims`` (normalised) removed, or kept as 1."""
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(shape))
    return tuple(s for d, s in enumerate(shape) if d not in dims)


def reduction(x: TensorMeta, dim: int | Sequence[int] | None, keepdim: bool, dtype: torch.dtype) -> TensorMeta:
    """The row-major result of a reduction over ``dim`` (None or () means all)."""
    dims = shapes.normalize_dims(dim, x.rank)
    return rules.fresh(reduced_shape(x.shape, dims, keepdim), dtype, x.device)


def require_nonempty(name: str, x: TensorMeta, dim: int | Sequence[int] | None) -> None:
    """Raise torch's errors for a reduction without identity over no elements."""
    if not any(rules.is_zero(s) for s in x.shape):
        return
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        raise IndexError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
            "with the 'dim' argument."
        )
    for d in shapes.normalize_dims(dim, x.rank):
        if x.shape and rules.is_zero(x.shape[d]):
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
