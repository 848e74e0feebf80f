"""Tensors made of others: concatenation, flips, rolls and repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Indexed
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value

ANY = (*FLOATS, *INTS, "bool")
Coords = tuple[Dim, ...]
_INDEX_DTYPES = (torch.int64, torch.int32)


# ------------------------------------------------------------------------------------------------------------ cat, stack


def _cat_dim(tensors: Sequence[TensorMeta], dim: int) -> int:
    return shapes.normalize_dim(dim, max(x.rank for x in tensors))


def _skipped(x: TensorMeta) -> bool:
    """ATen's legacy rule: a 1-d empty tensor joins anything."""
    return x.rank == 1 and rules.is_zero(x.shape[0])


def _cat_meta(tensors: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    if not tensors:
        raise ValueError("expected a non-empty list of Tensors")
    for i, x in enumerate(tensors):
        if not x.rank:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    dtype = rules.result_type(tensors)
    kept = [(i, x) for i, x in enumerate(tensors) if not _skipped(x)]
    device = rules.common_device(list(tensors))
    if not kept:
        return rules.fresh((0,), dtype, device)
    first = kept[0][1]
    at = shapes.normalize_dim(dim, first.rank)
    total: Dim = 0
    for i, x in kept:
        _check_cat(first, x, at, i)
        total = total + x.shape[at]
    shape = rules.replaced(first.shape, at, total)
    return TensorMeta(shape, _cat_strides([x for _, x in kept], shape), dtype, device)


def _check_cat(first: TensorMeta, x: TensorMeta, at: int, position: int) -> None:
    if x.rank != first.rank:
        raise RuntimeError(f"Tensors must have same number of dimensions: got {first.rank} and {x.rank}")
    for d in range(x.rank):
        if d != at and not shapes.same(first.shape[d], x.shape[d]):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {at}. Expected size {first.shape[d]} but got "
                f"size {x.shape[d]} for tensor number {position} in the list."
            )


def _cat_strides(tensors: Sequence[TensorMeta], shape: Coords) -> Coords:
    """Channels-last when all are (ATen's ``cat_compute_output_memory_format``), else row-major."""
    rank = len(shape)
    if rank in rules.CHANNELS_LAST and all(rules.suggests_channels_last(x) for x in tensors):
        return rules.channels_last_strides(shape)
    return rules.dense_strides(shape)


def _cat(b: Builder, coords: Coords, meta_out: TensorMeta, tensors: Sequence[Operand], dim: int = 0) -> Value:
    """Each input is read where it lies, and the pieces are chosen by position."""
    kept = [x for x in tensors if not _skipped(x.meta)]
    at = shapes.normalize_dim(dim, meta_out.rank)
    compute = rules.opmath(meta_out.dtype)
    pieces = [(x, x.meta.shape[at]) for x in kept if not rules.is_zero(x.meta.shape[at])]
    if len(pieces) == 1:
        return b.load(pieces[0][0], coords)
    value: Value | None = None
    start: Dim = 0
    for x, length in pieces:
        here = coords[at] - start
        mask = (*((here,) if value is not None else ()), *((length - 1 - here,) if x is not pieces[-1][0] else ()))
        piece = b.cast(b.cast(b.load(x, rules.replaced(coords, at, here), mask, 0), meta_out.dtype), compute)
        value = piece if value is None else b.where(b.index(here) < 0, value, piece)
        start = start + length
    assert value is not None
    return value


MOST_PIECES = 4
"""Pieces that a kernel chooses among at each of its points; what it costs grows with their square. For more, one copying call
of torch's and a kernel of what follows is faster: measured on a core with AVX-512, rows of 16 and 64 numbers a piece, alone,
scaled and summed, one kernel took 0.2 to 3.8 times as long for 4 pieces, 1.4 to 25 times for 8 and 4 to 49 times for 24."""


def _too_many_pieces(tensors: Sequence[Any], dim: int = 0) -> str:
    return f"a kernel would choose among {len(tensors)} pieces at each point" if len(tensors) > MOST_PIECES else ""


def _stack_meta(tensors: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    at = shapes.normalize_dim(dim, tensors[0].rank + 1)
    for i, x in enumerate(tensors):
        if not shapes.same_shape(x.shape, tensors[0].shape):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(x.shape)} at "
                f"entry {i}"
            )
    if at == tensors[0].rank:
        widened = [TensorMeta((*x.shape, 1), (*x.strides, 1), x.dtype, x.device) for x in tensors]
        return _cat_meta(widened, at)
    found = _cat_meta(tensors, at)
    shape = (*tensors[0].shape[:at], len(tensors), *tensors[0].shape[at:])
    strides = shapes.view_strides(found.shape, found.strides, shape)
    assert strides is not None  # a dim can always be split
    return TensorMeta(shape, strides, found.dtype, found.device)


def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """As ATen: joined along ``dim``, which is then split; so the layout is that of ``cat``."""
    rank = len(tensors[0].shape)
    at = shapes.normalize_dim(dim, rank + 1)
    if at == rank:
        return ops.cat(tuple(ops.unsqueeze(x, at) for x in tensors), at)
    return ops.view(ops.cat(tuple(tensors), at), (*tensors[0].shape[:at], len(tensors), *tensors[0].shape[at:]))


declare(
    "cat(Tensor[] tensors, int dim=0) -> Tensor",
    _cat_meta,
    Indexed(_cat, _too_many_pieces),
    lambda tensors, dim=0: torch.cat(tensors, dim),
    (*spelled("cat", "t"), *spelled("concat", "t"), *spelled("concatenate", "t")),
    lambda: [
        *(call((t(2, 3, dtype=d), t(4, 3, dtype=d))) for d in ANY),
        call((t(2, 3), t(2, 1), t(2, 4)), 1),
        call((t(2, 3), t(2, 3)), -1),
        call((t(2, 3, dtype="float16"), t(2, 3))),
        call((t(2, dtype="int32"), t(3))),
        call((t(0), t(2, 3))),
        call((t(0, 3), t(2, 3))),
        call((t(4, 6, layout="transposed"), t(4, 6, layout="strided"))),
        call((t(2, 3),)),
        call((t(2, 3), t(2, 4))),
        call((t(2, 3), t(2))),
        call((t(2, 3, 4, 5, layout="channels_last"), t(2, 3, 4, 5, layout="channels_last")), 1),
        call((t(), t())),
    ],
)
declare(
    "stack(Tensor[] tensors, int dim=0) -> Tensor",
    _stack_meta,
    Decompose(_stack),
    lambda tensors, dim=0: torch.stack(tensors, dim),
    spelled("stack", "t"),
    lambda: [
        *(call((t(2, 3, dtype=d), t(2, 3, dtype=d)), 1) for d in ANY),
        call((t(2, 3), t(2, 3))),
        call((t(2, 3), t(2, 3)), -1),
        call((t(), t())),
        call((t(2, 3), t(2, 4))),
        call((t(4, 6, layout="transposed"), t(4, 6))),
        *(call((t(2, 3, 4, 5, layout="channels_last"),) * 2, d) for d in range(5)),
        *(call((t(2, 3, 5, layout="transposed"),) * 2, d) for d in range(4)),
    ],
)


# -------------------------------------------------------------------------------------------------- flip, roll, repeat


def _flip_meta(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    if dims:
        shapes.normalize_dims(dims, x.rank)
    return TensorMeta(x.shape, rules.preserved_strides(x), x.dtype, x.device)


def _flip(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, dims: Sequence[int]) -> Value:
    turned = shapes.normalize_dims(dims, x.meta.rank) if dims else ()
    return b.load(x, tuple(x.meta.shape[d] - 1 - c if d in turned else c for d, c in enumerate(coords)))


def _roll_meta(x: TensorMeta, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> TensorMeta:
    if not shifts:
        raise RuntimeError("`shifts` required")
    if dims and len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    if not dims and len(shifts) != 1:
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:0")
    if not dims:
        return rules.fresh(x.shape, x.dtype, x.device)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(x, shift, dim)
    return x


def _rolled(x: TensorMeta, shift: Dim, dim: int) -> TensorMeta:
    """Torch clones what is empty, and joins the two parts of the rest: channels-last where both parts are."""
    if any(rules.is_zero(n) for n in x.shape):
        return rules.empty_like(x)
    if not x.rank:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    at = shapes.normalize_dim(dim, x.rank)
    if not rules.suggests_channels_last(x):
        return rules.fresh(x.shape, x.dtype, x.device)
    start = ex.mod(-shift, x.shape[at])
    lengths = (x.shape[at] - start, start)
    parts = [TensorMeta(rules.replaced(x.shape, at, n), x.strides, x.dtype, x.device) for n in lengths]
    return TensorMeta(x.shape, _cat_strides(parts, x.shape), x.dtype, x.device)


def _roll(x: Any, shifts: Sequence[Dim], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return ops.reshape(ops.roll_dim(ops.reshape(x, (-1,)), shifts[0], 0), tuple(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        x = ops.roll_dim(x, shift, dim)
    return x


def _roll_dim(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, shift: Dim, dim: int) -> Value:
    if not x.meta.rank:
        return b.load(x, ())
    at = shapes.normalize_dim(dim, x.meta.rank)
    size = x.meta.shape[at]
    return b.load(x, rules.replaced(coords, at, ex.mod(coords[at] + ex.mod(-shift, size), size)))


def _repeat_meta(x: TensorMeta, repeats: Sequence[Dim]) -> TensorMeta:
    lead = len(repeats) - x.rank
    if lead < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    for r in repeats:
        if isinstance(r, int) and r < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {r}: {list(repeats)}")
    grown = (1,) * lead + x.shape
    return rules.fresh(tuple(s * r for s, r in zip(grown, repeats, strict=True)), x.dtype, x.device)


def _repeat(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, repeats: Sequence[Dim]) -> Value:
    lead = meta_out.rank - x.meta.rank
    return b.load(x, tuple(ex.mod(c, s) for c, s in zip(coords[lead:], x.meta.shape, strict=True)))


def _repeat_interleave_meta(x: TensorMeta, repeats: Dim, dim: int | None = None) -> TensorMeta:
    if not shapes.at_least(repeats, 0):
        raise RuntimeError("repeats can not be negative")
    if dim is None:
        return rules.fresh((x.numel * repeats,), x.dtype, x.device)
    at = shapes.normalize_dim(dim, x.rank)
    return rules.fresh(
        rules.replaced(x.shape if x.rank else (1,), at, (x.shape[at] if x.rank else 1) * repeats), x.dtype, x.device
    )


def _repeat_interleave(x: Any, repeats: Dim, dim: int | None = None) -> Any:
    if dim is None or not len(x.shape):
        x, dim = ops.reshape(x, (-1,)), 0
    at = shapes.normalize_dim(dim, len(x.shape))
    shape = tuple(x.shape)
    wide = ops.expand(ops.unsqueeze(x, at + 1), (*shape[: at + 1], repeats, *shape[at + 1 :]))
    return ops.clone(ops.reshape(wide, rules.replaced(shape, at, shape[at] * repeats)))


declare(
    "flip(Tensor self, int[] dims) -> Tensor",
    _flip_meta,
    Indexed(_flip),
    torch.flip,
    spelled("flip"),
    lambda: [
        *(call(t(4, 5, dtype=d), (1,)) for d in ANY),
        call(t(3, 4, 5), (0, -1)),
        call(t(4, 6, layout="transposed"), (0,)),
        call(t(3), ()),
        call(t(3), (2,)),
        call(t(), ()),
        *(call(t(4, 6, layout=lay), (1,)) for lay in LAYOUTS),
    ],
)
declare(
    "roll_dim(Tensor self, SymInt shift, int dim) -> Tensor",
    _rolled,
    Indexed(_roll_dim),
    torch.roll,
    (),
    lambda: [call(t(4, 5), 2, 1), call(t(4, 5), -7, 0)],
    doc="roll along one dim.",
)
declare(
    "roll(Tensor self, SymInt[1] shifts, int[] dims=[]) -> Tensor",
    _roll_meta,
    Decompose(_roll),
    torch.roll,
    spelled("roll"),
    lambda: [
        *(call(t(4, 5, dtype=d), (1,), (1,)) for d in ANY),
        call(t(4, 5), (1, -2), (0, 1)),
        call(t(4, 5), (3,)),
        call(t(4, 6, layout="transposed"), (2,), (0,)),
        call(t(4, 5), (1, 2), (0,)),
        call(t(2, 3, 4, 5, layout="channels_last"), (1, -1), (2, 3)),
        call(t(2, 3, 4, 5, layout="channels_last"), (0,), (1,)),
    ],
)
declare(
    "repeat(Tensor self, SymInt[] repeats) -> Tensor",
    _repeat_meta,
    Indexed(_repeat),
    lambda x, r: x.repeat(r),
    spelled("repeat", "m"),
    lambda: [
        *(call(t(2, 3, dtype=d), (2, 1)) for d in ANY),
        call(t(3), (2, 2)),
        call(t(), (3,)),
        call(t(2, 3), (0, 1)),
        call(t(2, 3), (2,)),
        call(t(4, 6, layout="transposed"), (1, 2)),
    ],
)
declare(
    "repeat_interleave(Tensor self, SymInt repeats, int? dim=None) -> Tensor",
    _repeat_interleave_meta,
    Decompose(_repeat_interleave),
    lambda x, n, dim=None: torch.repeat_interleave(x, n, dim),
    (),
    lambda: [call(t(2, 3), 2), call(t(2, 3), 2, 1), call(t(2, 3), 3, 0), call(t(2, 3, 4), 2, -2), call(t(3), 1, 0)],
)
