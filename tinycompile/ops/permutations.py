"""Views in another order of the dims: permute, transpose, movedim."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import View
from tinycompile.ops.samples import call, t
from tinycompile.ops.views import Coords, viewed


def _permutation(rank: int, dims: Sequence[int]) -> tuple[int, ...]:
    if len(dims) != rank:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            "ordering of dimensions "
            f"i.e. input.dim() = {rank} is not equal to len(dims) = {len(dims)}"
        )
    order = tuple(shapes.normalize_dim(d, rank) for d in dims)
    if len(set(order)) != rank:
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return order


def _permute_meta(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    order = _permutation(x.rank, dims)
    return viewed(x, [x.shape[d] for d in order], [x.strides[d] for d in order])


def _permute_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dims: Sequence[int]) -> Coords:
    order = _permutation(meta_in.rank, dims)
    return tuple(coords[order.index(d)] for d in range(len(order)))


def swapped(rank: int, dim0: int, dim1: int) -> tuple[int, ...]:
    """The permutation that swaps two dims."""
    a, b = shapes.normalize_dim(dim0, rank), shapes.normalize_dim(dim1, rank)
    order = list(range(rank))
    if rank:
        order[a], order[b] = order[b], order[a]
    return tuple(order)


def _transpose_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta, dim0: int, dim1: int) -> Coords:
    return _permute_index(coords, meta_in, meta_out, swapped(meta_in.rank, dim0, dim1))


def _t_meta(x: TensorMeta) -> TensorMeta:
    if x.rank > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.rank}D")
    return _permute_meta(x, tuple(reversed(range(x.rank))))


def _t_index(coords: Coords, meta_in: TensorMeta, meta_out: TensorMeta) -> Coords:
    return tuple(reversed(coords))


def moved(rank: int, source: int | Sequence[int], destination: int | Sequence[int]) -> tuple[int, ...]:
    """The permutation of ``movedim``."""
    src = [shapes.normalize_dim(d, rank) for d in ((source,) if isinstance(source, int) else source)]
    dst = [shapes.normalize_dim(d, rank) for d in ((destination,) if isinstance(destination, int) else destination)]
    if len(src) != len(dst):
        raise RuntimeError(
            "movedim: Invalid source or destination dims: source "
            f"({list(src)} dims) should contain the same number of dims as destination ({list(dst)} dims)"
        )
    if len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise RuntimeError("movedim: repeated dim in `source` or `destination`")
    if rank == 0:  # has dims 0 and -1 all the same
        return ()
    order = [-1] * rank
    for s, d in zip(src, dst, strict=True):
        order[d] = s
    rest = iter(d for d in range(rank) if d not in src)
    return tuple(d if d >= 0 else next(rest) for d in order)


declare(
    "permute(Tensor(a) self, int[] dims) -> Tensor(a)",
    _permute_meta,
    View(_permute_index),
    torch.permute,
    spelled("permute"),
    lambda: [
        call(t(2, 3, 4), (2, 0, 1)),
        call(t(2, 3, 4), (-1, 0, -2)),
        call(t(), ()),
        call(t(2, 3), (0, 0)),
        call(t(4, 6, layout="strided"), (1, 0)),
    ],
)
declare(
    "transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
    lambda x, a, b: _permute_meta(x, swapped(x.rank, a, b)),
    View(_transpose_index),
    torch.transpose,
    (*spelled("transpose"), *spelled("swapaxes"), *spelled("swapdims")),
    lambda: [call(t(2, 3, 4), 0, 2), call(t(2, 3, 4), -1, -2), call(t(), 0, -1), call(t(2, 3), 0, 5), call(t(2, 3), 1, 1)],
)
declare(
    "t(Tensor(a) self) -> Tensor(a)",
    _t_meta,
    View(_t_index),
    torch.t,
    spelled("t"),
    lambda: [call(t(2, 3)), call(t(3)), call(t()), call(t(1, 2, 3))],
)
declare(
    "movedim(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
    lambda x, source, destination: _permute_meta(x, moved(x.rank, source, destination)),
    View(lambda coords, i, o, source, destination: _permute_index(coords, i, o, moved(i.rank, source, destination))),
    torch.movedim,
    (*spelled("movedim"), *spelled("moveaxis")),
    lambda: [
        call(t(2, 3, 4), (0,), (2,)),
        call(t(2, 3, 4), (0, 1), (1, 2)),
        call(t(2, 3, 4), (-1,), (0,)),
        call(t(), (0,), (-1,)),
    ],
)
