"""Copies of views (``permute_copy``), tensors written into a part of another (``select_scatter``), and diagonals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import laid_out_as, meta_of, ops, positions
from tinycompile.ops.declare import composite, declare, spelled
from tinycompile.ops.record import Decompose
from tinycompile.ops.samples import call, t
from tinycompile.ops.view_parts import diagonal_meta, slice_bounds

# ---------------------------------------------------------------------------------------------------- copies of views


def _copy(x: Any) -> Any:
    return ops.clone(x, memory_format=torch.contiguous_format)


def _copied(view: str) -> Callable[..., Any]:
    return lambda x, *args: _copy(getattr(ops, view)(x, *args))


def _copied_parts(view: str) -> Callable[..., Any]:
    return lambda x, *args: tuple(_copy(part) for part in getattr(ops, view)(x, *args))


def _expand_copy(x: Any, size: Sequence[Dim]) -> Any:
    return _copy(ops.expand(x, size))


def _view_copy(x: Any, size: Sequence[Dim]) -> Any:
    """ATen's ``view_copy_symint``: what ``view`` refuses is reshaped."""
    return _copy(ops.reshape(x, size))


def _squeeze_copy(x: Any, dim: Sequence[int] | None = None) -> Any:
    return _copy(ops.squeeze(x) if dim is None else ops.squeeze(x, dim))


def _given(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` without the dims that nobody gave, for which it has another overload."""
    return lambda x, *rest: fn(x) if rest == (None,) else fn(x, *rest)


# name, the schema's arguments, what it is, samples
_COPIES: tuple[tuple[str, str, Callable[..., Any], Callable[[], Any]], ...] = (
    ("alias_copy", "", _copied("alias"), lambda: [call(t(3, 4)), call(t(4, 6, layout="transposed"))]),
    ("expand_copy", "SymInt[] size", _expand_copy, lambda: [call(t(3, 1), (3, 4)), call(t(), (2,))]),
    ("permute_copy", "int[] dims", _copied("permute"), lambda: [call(t(2, 3, 4), (2, 0, 1))]),
    ("transpose_copy", "int dim0, int dim1", _copied("transpose"), lambda: [call(t(2, 3), 0, 1)]),
    ("t_copy", "", _copied("t"), lambda: [call(t(2, 3)), call(t(3))]),
    ("squeeze_copy", "int[]? dim=None", _squeeze_copy, lambda: [call(t(1, 3, 1), (0,)), call(t(1, 3, 1))]),
    ("unsqueeze_copy", "int dim", _copied("unsqueeze"), lambda: [call(t(3, 4), 1)]),
    ("view_copy", "SymInt[] size", _view_copy, lambda: [call(t(4, 6), (8, 3)), call(t(4, 6, layout="transposed"), (24,))]),
    ("narrow_copy", "int dim, SymInt start, SymInt length", _copied("narrow"), lambda: [call(t(5, 6), 1, 2, 3)]),
    ("diagonal_copy", "int offset=0, int dim1=0, int dim2=1", _copied("diagonal"), lambda: [call(t(3, 4), 1)]),
    ("unfold_copy", "int dimension, int size, int step", _copied("unfold"), lambda: [call(t(3, 7), 1, 3, 2)]),
)
for _name, _args, _fn, _calls in _COPIES:
    composite(
        f"{_name}(Tensor self{_args and ', '}{_args}) -> Tensor",
        _fn,
        _given(getattr(torch, _name)),
        spelled(_name, "tm" if _name == "narrow_copy" else "t"),
        _calls,
        doc="A fresh row-major tensor with what the view shows.",
    )
composite(
    "split_with_sizes_copy(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
    _copied_parts("split_with_sizes"),
    lambda x, sizes, dim=0: tuple(torch.ops.aten.split_with_sizes_copy(x, sizes, dim)),
    spelled("split_with_sizes_copy", "t"),
    lambda: [call(t(5, 6), (2, 3)), call(t(5, 6), (1, 5), 1)],
)
composite(
    "unbind_copy(Tensor self, int dim=0) -> Tensor[]",
    _copied_parts("unbind"),
    lambda x, dim=0: tuple(torch.ops.aten.unbind_copy(x, dim)),
    spelled("unbind_copy", "t"),
    lambda: [call(t(3, 4)), call(t(3, 4), 1)],
)
composite(
    "ravel(Tensor self) -> Tensor",
    lambda x: ops.view(_copy(x), (-1,)),
    lambda x: x.contiguous().view(-1),
    (),
    lambda: [call(t(4, 6, layout="transposed")), call(t(6, layout="strided"))],
    doc="Of what is not row-major: else it is a view.",
)
composite(
    "sum_to_size(Tensor self, SymInt[] size) -> Tensor",
    lambda x, size: _sum_to(x, tuple(size)),
    lambda x, size: x.sum_to_size(tuple(size)),
    (),
    lambda: [call(t(4, 5), (1, 5)), call(t(2, 4, 5), (4, 1)), call(t(4, 5), (5,))],
)


def _sum_to(x: Any, size: tuple[Dim, ...]) -> Any:
    """ATen's ``sum_to``: over the dims that broadcasting would add or grow."""
    lead = len(x.shape) - len(size)
    shape = tuple(x.shape)
    if not size:
        return ops.sum(x)
    if lead < 0 or shapes.broadcast_shapes(shape, size) != shape:
        return NotImplemented
    grown = [d for d, n in enumerate(shape) if d < lead or (rules.is_one(size[d - lead]) and not rules.is_one(n))]
    total = ops.sum(x, tuple(grown), True) if grown else x
    return ops.view(total, size) if lead else total


# ------------------------------------------------------------------------------------------------- written into a part


def _is_plain(x: Any) -> bool:
    """ATen clones with the strides as they are, also of tensors that overlap or have gaps; those are left to it."""
    meta = meta_of(x)
    return rules.is_non_overlapping_and_dense(meta)


def _select_scatter(x: Any, src: Any, dim: int, index: Dim) -> Any:
    rank = len(x.shape)
    at = shapes.normalize_dim(dim, rank)
    size = x.shape[at]
    if not _is_plain(x) or not shapes.same_shape(src.shape, (*x.shape[:at], *x.shape[at + 1 :])) or src.dtype != x.dtype:
        return NotImplemented
    if not shapes.at_least(index, 0):
        index = index + size
    if not shapes.at_least(size - 1, index) or not shapes.at_least(index, 0):
        return NotImplemented
    here = ops.eq(positions(size, rank, at, x.device), index)
    return laid_out_as(ops.where(here, ops.unsqueeze(src, at), x), x)


def _slice_scatter(x: Any, src: Any, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Dim = 1) -> Any:
    rank = len(x.shape)
    at = shapes.normalize_dim(dim, rank)
    first, length = slice_bounds(x.shape[at], start, end, step)
    part = rules.replaced(tuple(x.shape), at, length)
    if not _is_plain(x) or src.dtype != x.dtype or not shapes.same_shape(tuple(src.shape), part):
        return NotImplemented
    placed = ops.slice_backward(src, tuple(x.shape), at, first, step)
    off = ops.sub(positions(x.shape[at], rank, at, x.device), first)
    inside = ops.logical_and(ops.ge(off, 0), ops.lt(off, length * step))
    if not rules.is_one(step):
        inside = ops.logical_and(inside, ops.eq(ops.remainder(off, step), 0))
    return laid_out_as(ops.where(inside, placed, x), x)


def _diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(x.shape)
    row, col = shapes.normalize_dim(dim1, rank), shapes.normalize_dim(dim2, rank)
    if (
        not _is_plain(x)
        or src.dtype != x.dtype
        or not shapes.same_shape(src.shape, diagonal_meta(meta_of(x), offset, dim1, dim2).shape)
    ):
        return NotImplemented
    placed = ops.diagonal_backward(src, tuple(x.shape), offset, row, col)
    rows, cols = (positions(x.shape[d], rank, d, x.device) for d in (row, col))
    return laid_out_as(ops.where(ops.eq(ops.add(rows, offset), cols), placed, x), x)


composite(
    "select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor",
    _select_scatter,
    torch.select_scatter,
    spelled("select_scatter"),
    lambda: [call(t(4, 5), t(5), 0, 2), call(t(4, 5), t(4), 1, -1), call(t(4, 6, layout="transposed"), t(4), 1, 3)],
)
composite(
    "slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
    _slice_scatter,
    torch.slice_scatter,
    spelled("slice_scatter"),
    lambda: [
        call(t(5, 6), t(2, 6), 0, 1, 3),
        call(t(5, 6), t(5, 3), 1, 0, 6, 2),
        call(t(5, 6), t(5, 6)),
        call(t(4, 6, layout="transposed"), t(4, 2), 1, -2),
    ],
)
composite(
    "diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
    _diagonal_scatter,
    torch.diagonal_scatter,
    spelled("diagonal_scatter"),
    lambda: [call(t(3, 4), t(3)), call(t(3, 4), t(2), -1), call(t(2, 3, 4), t(2, 3), 1, 1, 2)],
)


# ------------------------------------------------------------------------------------------------------- under no_grad


class _WithData(torch.autograd.Function):
    """What a write under ``no_grad`` makes of a tensor: its history stays."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return x.new_empty_strided(x.shape, x.stride()).copy_(data)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _with_data_meta(x: TensorMeta, data: TensorMeta) -> TensorMeta:
    return TensorMeta(x.shape, x.strides, x.dtype, x.device)


declare(
    "with_data(Tensor self, Tensor data) -> Tensor",
    _with_data_meta,
    Decompose(lambda x, data: ops.restride(data, meta_of(x).strides)),
    _WithData.apply,
    (),
    lambda: [call(t(3, 4), t(3, 4)), call(t(4, 6, layout="transposed"), t(4, 6))],
    doc="The values of ``data`` with the history of ``self``: a write in place that gradients don't see.",
)


# --------------------------------------------------------------------------------------------------------- diagonals


def _diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank = len(x.shape) + 1
    a, b = shapes.normalize_dim(dim1, rank), shapes.normalize_dim(dim2, rank)
    if a == b:
        return NotImplemented
    side = x.shape[-1] + abs(offset)
    rest = iter(x.shape[:-1])
    size = tuple(side if d in (a, b) else next(rest) for d in range(rank))
    return ops.diagonal_backward(x, size, offset, a, b)


def _diag(x: Any, diagonal: int = 0) -> Any:
    if len(x.shape) == 1:
        return ops.diag_embed(x, diagonal)
    return ops.diagonal_copy(x, diagonal) if len(x.shape) == 2 else NotImplemented


composite(
    "diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
    _diag_embed,
    torch.diag_embed,
    spelled("diag_embed"),
    lambda: [call(t(3)), call(t(2, 3), 1), call(t(2, 3), -1, 0, 2)],
)
composite(
    "diag(Tensor self, int diagonal=0) -> Tensor",
    _diag,
    torch.diag,
    spelled("diag"),
    lambda: [call(t(3)), call(t(3), -2), call(t(3, 4), 1)],
)
composite(
    "diagflat(Tensor self, int offset=0) -> Tensor",
    lambda x, offset=0: ops.diag_embed(ops.reshape(x, (-1,)), offset),
    torch.diagflat,
    spelled("diagflat"),
    lambda: [call(t(3)), call(t(2, 2), 1)],
)
composite(
    "trace(Tensor self) -> Tensor",
    lambda x: ops.sum(ops.diagonal(x)) if len(x.shape) == 2 else NotImplemented,
    torch.trace,
    spelled("trace"),
    lambda: [call(t(3, 4)), call(t(3, 3, dtype="int32"))],
)
