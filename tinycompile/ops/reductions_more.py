"""Reductions made of others: over what is no NaN, norms and distances, differences and sums along a dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, meta_of, ops, widen
from tinycompile.ops.declare import composite, spelled
from tinycompile.ops.samples import FLOATS, INTS, call, t

Dims = int | Sequence[int] | None

# --------------------------------------------------------------------------------------------------- what is no NaN


def _nansum(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if not x.dtype.is_floating_point:
        return ops.sum(x, dim, keepdim, dtype=dtype)
    wide = widen(x)
    return ops.sum(cast(ops.where(ops.isnan(wide), 0.0, wide), x.dtype), dim, keepdim, dtype=dtype)


def _nanmean(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if not x.dtype.is_floating_point or (dtype is not None and dtype != x.dtype):
        return NotImplemented
    wide = widen(x)
    lost = ops.isnan(wide)
    count = ops.sum(ops.logical_not(lost), dim, keepdim)
    return cast(ops.div(ops.sum(ops.where(lost, 0.0, wide), dim, keepdim), count), x.dtype)


def _nan_calls() -> Any:
    return [
        *(call(t(4, 5, dtype=d, fill="special"), (1,)) for d in FLOATS),
        call(t(6, 6)),
        call(t(3, 4, 5, fill="special"), (0, 2), True),
    ]


composite(
    "nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _nansum,
    lambda x, dim=None, keepdim=False, dtype=None: torch.nansum(x, dim, keepdim, dtype=dtype),
    spelled("nansum"),
    lambda: [*_nan_calls(), call(t(4, 5, dtype="int32"), (0,))],
)
composite(
    "nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _nanmean,
    lambda x, dim=None, keepdim=False, dtype=None: torch.nanmean(x, dim, keepdim, dtype=dtype),
    spelled("nanmean"),
    _nan_calls,
)


def _aminmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Sibling reductions: one kernel reads the input once."""
    dims = () if dim is None else (dim,)
    if x.dtype == torch.bool and dim is None:
        return NotImplemented
    return ops.amin(x, dims, keepdim), ops.amax(x, dims, keepdim)


composite(
    "aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
    _aminmax,
    lambda x, dim=None, keepdim=False: tuple(torch.aminmax(x, dim=dim, keepdim=keepdim)),
    spelled("aminmax"),
    lambda: [
        *(call(t(4, 5, dtype=d), dim=1) for d in (*FLOATS, *INTS)),
        call(t(4, 5)),
        call(t(4, 5, fill="special"), dim=0, keepdim=True),
    ],
)


# ---------------------------------------------------------------------------------------------------- norms, distances


def _normalize(x: Any, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12) -> Any:
    wide = widen(x)
    size = ops.linalg_vector_norm(wide, p, dim if isinstance(dim, int) else tuple(dim), True)
    return cast(ops.div(wide, ops.expand(ops.clamp(size, eps), tuple(x.shape))), x.dtype)


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    if x1.dtype != x2.dtype or not x1.dtype.is_floating_point:
        return NotImplemented
    shape = shapes.broadcast_shapes(tuple(x1.shape), tuple(x2.shape))
    a, b = (ops.expand(widen(x), shape) for x in (x1, x2))
    sizes = [ops.clamp(ops.linalg_vector_norm(x, 2, (dim,), True), eps) for x in (a, b)]
    return cast(ops.sum(ops.mul(ops.div(a, sizes[0]), ops.div(b, sizes[1])), (dim,)), x1.dtype)


def _pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    if x1.dtype != x2.dtype or max(len(x1.shape), len(x2.shape)) == 0 or x1.dtype == torch.bool:
        return NotImplemented
    off = ops.add(ops.sub(widen(x1), widen(x2)), eps)  # integers wrap, then eps makes floats of them
    return cast(ops.linalg_vector_norm(off, p, (-1,), keepdim), rules.float_type(x1.dtype))


def _dist(x: Any, other: Any, p: Any = 2) -> Any:
    if x.dtype != other.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    return cast(ops.linalg_vector_norm(ops.sub(widen(x), widen(other)), p), x.dtype)


def _renorm(x: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    """Slices along ``dim`` longer than ``maxnorm`` are scaled to it (ATen divides by the norm + 1e-7)."""
    rank = len(x.shape)
    at = shapes.normalize_dim(dim, rank)
    if rank < 2 or p <= 0 or maxnorm < 0:
        return NotImplemented
    wide = widen(x)
    size = ops.linalg_vector_norm(wide, p, tuple(d for d in range(rank) if d != at), True)
    factor = ops.where(ops.gt(size, maxnorm), ops.div(float(maxnorm), ops.add(size, 1e-7)), 1.0)
    return ops.clone(cast(ops.mul(wide, factor), x.dtype), memory_format=torch.contiguous_format)


_TWO_ROWS = lambda: [*(call(t(4, 5, dtype=d), t(4, 5, dtype=d)) for d in FLOATS), call(t(4, 5), t(5))]
composite(
    "normalize(Tensor input, float p=2.0, int[1] dim=1, float eps=1e-12) -> Tensor",
    _normalize,
    lambda x, p=2.0, dim=1, eps=1e-12: F.normalize(x, p, dim, eps),
    spelled("normalize", "f"),
    lambda: [*(call(t(4, 5, dtype=d)) for d in FLOATS), call(t(4, 5), 1.0, 0)],
)
composite(
    "cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor",
    _cosine_similarity,
    torch.cosine_similarity,
    spelled("cosine_similarity", "tf"),
    _TWO_ROWS,
)
composite(
    "pairwise_distance(Tensor x1, Tensor x2, float p=2.0, float eps=1e-06, bool keepdim=False) -> Tensor",
    _pairwise_distance,
    torch.pairwise_distance,
    spelled("pairwise_distance", "tf"),
    lambda: [*_TWO_ROWS(), *(call(t(4, 5, dtype=d), t(4, 5, dtype=d)) for d in ("int32", "uint8"))],
)
composite("dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", _dist, torch.dist, spelled("dist"), _TWO_ROWS)
composite(
    "renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor",
    _renorm,
    torch.renorm,
    spelled("renorm"),
    lambda: [call(t(4, 5), 2, 0, 1.0), call(t(2, 3, 4), 1, -1, 2.0)],
)


# -------------------------------------------------------------------------------------------- differences, areas, sets


def _diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if not len(x.shape) or n < 0:
        return NotImplemented
    at = shapes.normalize_dim(dim, len(x.shape))
    if n == 0:
        return ops.clone(x)
    if prepend is not None or append is not None:
        x = ops.cat(tuple(p for p in (prepend, x, append) if p is not None), at)
    for _ in range(n):
        size = x.shape[at]
        if rules.is_zero(size):
            break
        after, before = ops.slice(x, at, 1), ops.slice(x, at, 0, size - 1)
        x = ops.logical_xor(after, before) if x.dtype == torch.bool else ops.sub(after, before)
    return x


def _areas(y: Any, x: Any, dx: Any, dim: int) -> Any:
    """Twice the area of each trapezoid."""
    at = shapes.normalize_dim(dim, len(y.shape))
    if rules.is_zero(y.shape[at]):
        return None
    ends = ops.add(ops.slice(y, at, 1), ops.slice(y, at, 0, y.shape[at] - 1))
    if x is None:
        return ops.mul(ends, dx)
    if len(x.shape) == 1:
        if not shapes.same(x.shape[0], y.shape[at]):
            return None
        width = ops.sub(ops.slice(x, 0, 1), ops.slice(x, 0, 0, x.shape[0] - 1))
        width = ops.view(width, tuple(width.shape[0] if d == at else 1 for d in range(len(y.shape))))
    else:
        if len(x.shape) != len(y.shape):
            return None
        width = ops.sub(ops.slice(x, at, 1), ops.slice(x, at, 0, x.shape[at] - 1))
    return ops.mul(ends, width)


def _trapezoid(y: Any, x: Any = None, dx: Any = None, dim: int = -1) -> Any:
    doubled = _areas(y, x, 1 if dx is None else dx, dim)
    return NotImplemented if doubled is None or not _floats(y, x) else ops.div(ops.sum(doubled, (dim,)), 2.0)


def _cumulative_trapezoid(y: Any, x: Any = None, dx: Any = None, dim: int = -1) -> Any:
    doubled = _areas(y, x, 1 if dx is None else dx, dim)
    return NotImplemented if doubled is None or not _floats(y, x) else ops.div(ops.cumsum(doubled, dim), 2.0)


def _floats(*tensors: Any) -> bool:
    return all(x is None or x.dtype in (torch.float32, torch.float64) for x in tensors)


def _isin(elements: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """Every pair is compared, as ATen does for few test elements; for more it sorts."""
    if not len(meta_of(test_elements).shape) or shapes.hint(meta_of(test_elements).numel) > 64:
        return NotImplemented
    flat = ops.reshape(test_elements, (-1,))
    found = ops.any(ops.eq(ops.unsqueeze(elements, -1), flat), (-1,))
    return ops.logical_not(found) if invert else found


def _vander(x: Any, n: Dim | None = None) -> Any:
    """Powers 0 .. n - 1 along a new last dim, as a running product."""
    if (n is None and not len(x.shape)) or (n is not None and shapes.pinned(n) < 2):
        return NotImplemented
    x = x if len(x.shape) else ops.unsqueeze(x, 0)
    count = x.shape[-1] if n is None else n
    if not shapes.at_least(count, 2):
        return NotImplemented
    x = cast(x, torch.int64) if not x.dtype.is_floating_point else x
    powers = ops.cumprod(ops.expand(ops.unsqueeze(x, -1), (*x.shape, count - 1)), -1)
    ones = ops.full((*x.shape, 1), 1, dtype=x.dtype, device=x.device)
    return ops.cat((ones, powers), -1)


composite(
    "diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor",
    _diff,
    torch.diff,
    spelled("diff"),
    lambda: [call(t(4, 5)), call(t(4, 5), 2, 0), call(t(5, dtype="bool")), call(t(4), 1, 0, t(1), t(2))],
)
for _name, _fn in (("trapezoid", _trapezoid), ("cumulative_trapezoid", _cumulative_trapezoid)):
    composite(
        f"{_name}(Tensor y, Tensor? x=None, *, Scalar? dx=None, int dim=-1) -> Tensor",
        _fn,
        lambda y, x=None, dx=None, dim=-1, fn=getattr(torch, _name): (
            fn(y, x, dim=dim) if x is not None else fn(y, dx=1 if dx is None else dx, dim=dim)
        ),
        (*spelled(_name, "t"), *(spelled("trapz", "t") if _name == "trapezoid" else ())),
        lambda: [call(t(4, 5)), call(t(4, 5), t(5)), call(t(4, 5), dx=0.5, dim=0), call(t(4, 5), t(4, 5))],
    )
composite(
    "isin(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
    _isin,
    lambda e, s, assume_unique=False, invert=False: torch.isin(e, s, assume_unique=assume_unique, invert=invert),
    spelled("isin", "t"),
    lambda: [
        call(t(4, 5, dtype="int64"), t(3, dtype="int64")),
        call(t(4, fill="integers"), t(2, 2, fill="integers"), invert=True),
    ],
)
composite(
    "linalg_vander(Tensor x, *, SymInt? N=None) -> Tensor",
    _vander,
    lambda x, N=None: torch.linalg.vander(x, N=N),
    spelled("vander", "l"),
    lambda: [call(t(4)), call(t(2, 3), N=5), call(t(3, dtype="int32"))],
)


def _softmin(x: Any, dim: int, dtype: Any = None) -> Any:
    """softmax of the negative, which wraps in an unsigned dtype."""
    if x.dtype == torch.bool or not (dtype or x.dtype).is_floating_point:
        return NotImplemented
    return ops.softmax(ops.neg(x), dim, dtype=dtype)


composite(
    "softmin(Tensor input, int dim, ScalarType? dtype=None) -> Tensor",
    _softmin,
    lambda x, dim, dtype=None: F.softmin(x, dim, dtype=dtype),
    (),
    lambda: [call(t(4, 5), 1), call(t(4, 5), 0, torch.float64), call(t(4, 5, dtype="uint8"), 0, torch.float64)],
)
