"""Parts put back into zeros: the adjoints of slices and diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import declare
from tinycompile.ops.record import Indexed
from tinycompile.ops.samples import FLOATS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value
from tinycompile.ops.view_parts import diagonal_meta

Coords = tuple[Dim, ...]


# ------------------------------------------------------------------------------------------------------ parts put back


def _require_same(name: str, found: Coords, wanted: Coords) -> None:
    if not shapes.same_shape(found, wanted):
        raise RuntimeError(f"{name}: expected a gradient of size {list(wanted)}, got {list(found)}")


def _slice_backward_meta(grad: TensorMeta, size: Sequence[Dim], dim: int, start: Dim, step: Dim = 1) -> TensorMeta:
    at = shapes.normalize_dim(dim, grad.rank)
    _require_same("slice_backward", grad.shape, rules.replaced(tuple(size), at, grad.shape[at]))
    if not shapes.at_least(size[at] - 1, start + (grad.shape[at] - 1) * step):
        raise RuntimeError(f"slice_backward: {grad.shape[at]} elements from {start} do not fit into {size[at]}")
    return rules.fresh(tuple(size), grad.dtype, grad.device)


def _slice_backward(
    b: Builder, coords: Coords, meta_out: TensorMeta, grad: Operand, size: Any, dim: int, start: Dim, step: Dim = 1
) -> Value:
    at = shapes.normalize_dim(dim, meta_out.rank)
    here = coords[at] - start
    length = grad.meta.shape[at]
    mask: list[Dim] = [] if rules.is_zero(start) else [here]
    if not rules.is_one(step):
        mask.append(-ex.mod(here, step))
        here = ex.floordiv(here, step)
    if length != meta_out.shape[at]:  # where that is so for some sizes only, the mask costs less than a recompile
        mask.append(length - 1 - here)
    return b.load(grad, rules.replaced(coords, at, here), tuple(mask), 0)


def _eager_slice_backward(grad: torch.Tensor, size: Any, dim: int, start: int, step: int = 1) -> torch.Tensor:
    whole = grad.new_zeros(tuple(size))
    end = start + (grad.shape[dim] - 1) * step + 1
    if grad.shape[dim]:
        whole[(slice(None),) * (dim % grad.dim()) + (slice(start, end, step),)] = grad
    return whole


def _diagonal_backward_meta(grad: TensorMeta, size: Sequence[Dim], offset: int, dim1: int, dim2: int) -> TensorMeta:
    whole = rules.fresh(tuple(size), grad.dtype, grad.device)
    _require_same("diagonal_backward", grad.shape, diagonal_meta(whole, offset, dim1, dim2).shape)
    return rules.fresh(tuple(size), grad.dtype, grad.device)


def _diagonal_backward(
    b: Builder, coords: Coords, meta_out: TensorMeta, grad: Operand, size: Any, offset: int, dim1: int, dim2: int
) -> Value:
    row, col = shapes.normalize_dim(dim1, meta_out.rank), shapes.normalize_dim(dim2, meta_out.rank)
    apart = coords[col] - coords[row] - offset
    rest = tuple(c for d, c in enumerate(coords) if d not in (row, col))
    along = coords[row] if offset >= 0 else coords[col]
    return b.load(grad, (*rest, along), (apart, -apart), 0)


def _eager_diagonal_backward(grad: torch.Tensor, size: Any, offset: int, dim1: int, dim2: int) -> torch.Tensor:
    whole = grad.new_zeros(tuple(size))
    torch.diagonal(whole, offset, dim1, dim2).copy_(grad)
    return whole


declare(
    "slice_backward(Tensor grad, SymInt[] size, int dim, SymInt start, SymInt step=1) -> Tensor",
    _slice_backward_meta,
    Indexed(_slice_backward),
    _eager_slice_backward,
    (),
    lambda: [
        *(call(t(2, 6, dtype=d), (5, 6), 0, 1) for d in FLOATS),
        call(t(5, 3), (5, 6), 1, 3),
        call(t(5, 3), (5, 6), 1, 0, 2),
        call(t(5, 2), (5, 7), -1, 1, 3),
        call(t(5, 6), (5, 6), 0, 0),
        call(t(0, 6), (5, 6), 0, 2),
        call(t(6, 2, layout="transposed"), (6, 4), 1, 2),
    ],
    doc="Zeros of ``size`` with ``grad`` at start, start + step, ... of a dim: the adjoint of slice.",
)
declare(
    "diagonal_backward(Tensor grad, SymInt[] size, int offset, int dim1, int dim2) -> Tensor",
    _diagonal_backward_meta,
    Indexed(_diagonal_backward),
    _eager_diagonal_backward,
    (),
    lambda: [
        call(t(3), (3, 4), 0, 0, 1),
        call(t(3), (3, 4), 1, 0, 1),
        call(t(2), (3, 4), -1, 0, 1),
        call(t(2, 3), (2, 3, 4), 0, -2, -1),
        call(t(3, 2), (2, 3, 2), 0, 0, 2),
    ],
    doc="Zeros of ``size`` with ``grad`` on a diagonal: the adjoint of diagonal.",
)
