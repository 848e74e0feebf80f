"""Tensors stacked, tiled, turned and crossed: ``hstack``, ``block_diag``, ``rot90``, ``kron``, ``cross``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, meta_of, ops
from tinycompile.ops.declare import composite, spelled
from tinycompile.ops.samples import call, t

# ------------------------------------------------------------------------------------------------------------- stacks


def at_least_1d(x: Any) -> Any:
    """A 0-d tensor as one of one element."""
    return x if len(x.shape) else ops.reshape(x, (1,))


def at_least_2d(x: Any) -> Any:
    """A vector as a row."""
    return ops.unsqueeze(at_least_1d(x), 0) if len(x.shape) < 2 else x


def at_least_3d(x: Any) -> Any:
    """A vector as (1, n, 1), a matrix as (n, m, 1)."""
    return ops.unsqueeze(at_least_2d(x), -1) if len(x.shape) < 3 else x


def _hstack(tensors: Sequence[Any]) -> Any:
    wide = tuple(at_least_1d(x) for x in tensors)
    return ops.cat(wide, 0 if len(wide[0].shape) == 1 else 1)


def _column_stack(tensors: Sequence[Any]) -> Any:
    columns = (ops.reshape(x, (x.shape[0] if x.shape else 1, 1)) if len(x.shape) <= 1 else x for x in tensors)
    return _hstack(tuple(columns))


def _block_diag(tensors: Sequence[Any]) -> Any:
    """Each block between the zeros before and after it, row of blocks under row of blocks."""
    blocks = tuple(at_least_2d(x) for x in tensors)
    if not blocks or any(len(x.shape) != 2 for x in blocks):
        return NotImplemented
    dtype = rules.result_type([meta_of(x) for x in blocks])
    total: Dim = sum((x.shape[1] for x in blocks), start=0)
    rows, before = [], 0
    for x in blocks:
        rows.append(ops.pad(cast(x, dtype), (before, total - before - x.shape[1])))
        before = before + x.shape[1]
    return ops.cat(tuple(rows), 0)


def _cartesian_prod(tensors: Sequence[Any]) -> Any:
    if len(tensors) < 2 or any(len(x.shape) != 1 for x in tensors):
        return NotImplemented
    rank, shape = len(tensors), tuple(x.shape[0] for x in tensors)
    lines = (ops.view(x, tuple(shape[d] if d == i else 1 for d in range(rank))) for i, x in enumerate(tensors))
    return ops.stack(tuple(ops.reshape(ops.expand(x, shape), (-1,)) for x in lines), 1)


_PAIR = lambda: [call((t(2, 3), t(2, 3))), call((t(3), t(3))), call((t(), t()))]
for _name, _fn in (
    ("hstack", _hstack),
    ("vstack", lambda tensors: ops.cat(tuple(at_least_2d(x) for x in tensors), 0)),
    ("dstack", lambda tensors: ops.cat(tuple(at_least_3d(x) for x in tensors), 2)),
    ("column_stack", _column_stack),
):
    composite(
        f"{_name}(Tensor[] tensors) -> Tensor",
        _fn,
        getattr(torch, _name),
        (*spelled(_name, "t"), *(spelled("row_stack", "t") if _name == "vstack" else ())),
        _PAIR,
    )
composite(
    "block_diag(Tensor[] tensors) -> Tensor",
    _block_diag,
    lambda tensors: torch.block_diag(*tensors),
    (),
    lambda: [call((t(2, 3), t(4), t(), t(1, 2)))],
)
composite(
    "cartesian_prod(Tensor[] tensors) -> Tensor",
    _cartesian_prod,
    lambda tensors: torch.cartesian_prod(*tensors),
    (),
    lambda: [call((t(2), t(3))), call((t(2), t(3), t(4)))],
)


# ------------------------------------------------------------------------------------------------------ turns, tiles


def _rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    if len(dims) != 2 or len(x.shape) < 2 or dims[0] == dims[1] or abs(dims[0] - dims[1]) == len(x.shape):
        return NotImplemented
    turns = k % 4
    if not turns:
        return ops.clone(x, memory_format=torch.contiguous_format)
    if turns == 2:
        return ops.flip(x, tuple(dims))
    return ops.transpose(ops.flip(x, (dims[1] if turns == 1 else dims[0],)), dims[0], dims[1])


def _tile(x: Any, dims: Sequence[Dim]) -> Any:
    return ops.repeat(x, (*(1,) * (len(x.shape) - len(dims)), *dims))


composite(
    "rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor",
    _rot90,
    lambda x, k=1, dims=(0, 1): torch.rot90(x, k, list(dims)),
    spelled("rot90"),
    lambda: [*(call(t(2, 3), k) for k in range(4)), call(t(2, 3, 4), -1, (2, 0))],
)
for _name, _at in (("fliplr", 1), ("flipud", 0)):
    composite(
        f"{_name}(Tensor self) -> Tensor",
        lambda x, at=_at: ops.flip(x, (at,)) if len(x.shape) > at else NotImplemented,
        getattr(torch, _name),
        spelled(_name),
        lambda: [call(t(2, 3))],
    )
composite(
    "tile(Tensor self, SymInt[] dims) -> Tensor",
    _tile,
    torch.tile,
    spelled("tile"),
    lambda: [call(t(2, 3), (2,)), call(t(2, 3), (2, 1, 3))],
)


def _shifted_halves(sign: int) -> Any:
    """fftshift moves the zero frequency to the middle, ifftshift back."""

    def shift(x: Any, dim: Sequence[int] | None = None) -> Any:
        dims = tuple(range(len(x.shape))) if dim is None else tuple(dim)
        return ops.roll(x, tuple(x.shape[d] // 2 if sign > 0 else -(x.shape[d] // 2) for d in dims), dims)

    return shift


for _name, _sign in (("fftshift", 1), ("ifftshift", -1)):
    composite(
        f"fft_{_name}(Tensor self, int[]? dim=None) -> Tensor",
        _shifted_halves(_sign),
        getattr(torch.fft, _name),
        (f"torch.fft.{_name}",),
        lambda: [call(t(5)), call(t(4, 5)), call(t(4, 5), (1,))],
    )


# ------------------------------------------------------------------------------------------------------------ products


def _addr(x: Any, vec1: Any, vec2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if len(vec1.shape) != 1 or len(vec2.shape) != 1 or x.dtype == torch.bool:
        return NotImplemented
    if not x.dtype.is_floating_point and (isinstance(beta, float) or isinstance(alpha, float)):
        return NotImplemented
    dtype = rules.result_type([meta_of(v) for v in (x, vec1, vec2)])
    wide = [cast(cast(v, dtype), rules.opmath(dtype)) for v in (x, vec1, vec2)]
    shape = (vec1.shape[0], vec2.shape[0])
    product = ops.mul(ops.unsqueeze(wide[1], 1), wide[2])
    product = product if alpha == 1 else ops.mul(product, alpha)
    base = ops.expand(wide[0] if beta == 1 else ops.mul(wide[0], beta), shape)  # (which must fit, even where it does not count)
    if beta == 0:  # its values count nowhere, not even NaN; it has a gradient all the same, of zeros
        return cast(ops.where(ops.full((), False, dtype=torch.bool, device=x.device), base, product), dtype)
    return cast(ops.add(base, product), dtype)


def _kron(x: Any, other: Any) -> Any:
    """Each element of ``x`` times all of ``other``: dims interleaved, then merged."""
    rank = max(len(x.shape), len(other.shape))
    a, b = ((1,) * (rank - len(v.shape)) + tuple(v.shape) for v in (x, other))
    left = ops.reshape(x, tuple(s for n in a for s in (n, 1)))
    right = ops.reshape(other, tuple(s for n in b for s in (1, n)))
    return ops.reshape(ops.mul(left, right), tuple(n * m for n, m in zip(a, b, strict=True)))


def _cross(x: Any, other: Any, dim: int = -1) -> Any:
    if len(x.shape) != len(other.shape):
        return NotImplemented
    shape = shapes.broadcast_shapes(tuple(x.shape), tuple(other.shape))
    at = shapes.normalize_dim(dim, len(shape))
    if not shapes.same(x.shape[at], 3) or not shapes.same(other.shape[at], 3):
        return NotImplemented
    a, b = ops.expand(x, shape), ops.expand(other, shape)
    first, second = (
        ops.mul(ops.roll(a, (-1,), (at,)), ops.roll(b, (-2,), (at,))),
        ops.mul(ops.roll(a, (-2,), (at,)), ops.roll(b, (-1,), (at,))),
    )
    return ops.sub(first, second)


def _cross_first(x: Any, other: Any, dim: int | None = None) -> Any:
    """torch.cross: without a dim, the first of size 3."""
    if dim is None:
        if tuple(x.shape) != tuple(other.shape):
            return NotImplemented
        dim = next((d for d, n in enumerate(x.shape) if isinstance(n, int) and n == 3), None)
    return NotImplemented if dim is None else ops.linalg_cross(x, other, dim=dim)


def _vecdot(x: Any, y: Any, dim: int = -1) -> Any:
    if x.dtype != y.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    wide = [cast(v, torch.float64 if x.dtype == torch.float32 else rules.opmath(x.dtype)) for v in (x, y)]
    return cast(ops.sum(ops.mul(*wide), (dim,)), x.dtype)  # doubles hold products of floats exactly


composite(
    "addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    _addr,
    lambda x, a, b, beta=1, alpha=1: torch.addr(x, a, b, beta=beta, alpha=alpha),
    spelled("addr"),
    lambda: [call(t(3, 4), t(3), t(4)), call(t(4), t(3), t(4), beta=0.5, alpha=2), call(t(3, 4), t(3), t(4), beta=0)],
)
composite(
    "kron(Tensor self, Tensor other) -> Tensor",
    _kron,
    torch.kron,
    spelled("kron"),
    lambda: [call(t(2, 3), t(3, 2)), call(t(2), t(2, 2))],
)
composite(
    "linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor",
    _cross,
    lambda x, y, dim=-1: torch.linalg.cross(x, y, dim=dim),
    spelled("cross", "l"),
    lambda: [call(t(4, 3), t(4, 3)), call(t(3, 4), t(3, 1), dim=0)],
)
composite(
    "cross(Tensor self, Tensor other, int? dim=None) -> Tensor",
    _cross_first,
    torch.cross,
    spelled("cross"),
    lambda: [call(t(4, 3), t(4, 3), 1), call(t(3, 4), t(3, 4), 0)],
)
composite(
    "linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor",
    _vecdot,
    lambda x, y, dim=-1: torch.linalg.vecdot(x, y, dim=dim),
    spelled("vecdot", "l"),
    lambda: [call(t(4, 3), t(4, 3)), call(t(4, 3), t(3)), call(t(3, 4), t(3, 4), dim=0)],
)
