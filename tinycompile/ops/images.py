"""Pixels rearranged and resampled: pixel_shuffle, unfold into columns, interpolation, local response normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim, Expr
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, in_format_of, ops, widen
from tinycompile.ops.declare import composite, spelled
from tinycompile.ops.samples import FLOATS, call, t

# ---------------------------------------------------------------------------------------------------------- rearranged


def _pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    r, shape = upscale_factor, tuple(x.shape)
    if len(shape) < 3 or r < 1 or not shapes.same(shape[-3] % (r * r), 0):
        return NotImplemented
    if r == 1:
        return in_format_of(ops.clone(x), x)
    lead, (c, h, w) = shape[:-3], shape[-3:]
    n = len(lead)
    split = ops.reshape(x, (*lead, c // (r * r), r, r, h, w))
    turned = ops.permute(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return in_format_of(ops.clone(ops.reshape(turned, (*lead, c // (r * r), h * r, w * r))), x)


def _pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    r, shape = downscale_factor, tuple(x.shape)
    if len(shape) < 3 or r < 1 or not shapes.same(shape[-2] % r, 0) or not shapes.same(shape[-1] % r, 0):
        return NotImplemented
    if not all(shapes.at_least(s, 1) for s in shape):  # ATen returns what is empty in its own shape
        return NotImplemented
    if r == 1:
        return in_format_of(ops.clone(x), x)
    lead, (c, h, w) = shape[:-3], shape[-3:]
    n = len(lead)
    split = ops.reshape(x, (*lead, c, h // r, r, w // r, r))
    turned = ops.permute(split, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return in_format_of(ops.clone(ops.reshape(turned, (*lead, c * r * r, h // r, w // r))), x)


def _channel_shuffle(x: Any, groups: int) -> Any:
    shape = tuple(x.shape)
    if len(shape) < 3 or groups < 1 or not shapes.same(shape[1] % groups, 0):
        return NotImplemented
    split = ops.reshape(x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    return in_format_of(ops.clone(ops.reshape(ops.transpose(split, 1, 2), shape)), x)


def _unfold(x: Any, kernel_size: Sequence[int], dilation: Any = (1,), padding: Any = (0,), stride: Any = (1,)) -> Any:
    """im2col: each window of each channel is a column."""
    pairs = [tuple(v) * 2 if len(v) == 1 else tuple(v) for v in (kernel_size, dilation, padding, stride)]
    if len(x.shape) not in (3, 4) or any(len(p) != 2 for p in pairs) or not x.dtype.is_floating_point:
        return NotImplemented
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = pairs
    if min(kh, kw, dh, dw, sh, sw) < 1 or min(ph, pw) < 0 or not all(shapes.at_least(s, 1) for s in x.shape[-3:]):
        return NotImplemented
    image = x if len(x.shape) == 4 else ops.unsqueeze(x, 0)
    if ph or pw:
        image = ops.pad(image, (pw, pw, ph, ph))
    for at, k, d, s in ((2, kh, dh, sh), (3, kw, dw, sw)):
        image = ops.unfold(image, at, d * (k - 1) + 1, s)
        image = ops.slice(image, -1, 0, None, d) if d > 1 else image
    n, c, rows, cols = image.shape[:4]
    found = ops.reshape(ops.permute(image, (0, 1, 4, 5, 2, 3)), (n, c * kh * kw, rows * cols))
    found = ops.clone(found, memory_format=torch.contiguous_format)
    return found if len(x.shape) == 4 else ops.view(found, tuple(found.shape[1:]))


composite(
    "pixel_shuffle(Tensor self, int upscale_factor) -> Tensor",
    _pixel_shuffle,
    torch.pixel_shuffle,
    spelled("pixel_shuffle", "tf"),
    lambda: [call(t(2, 8, 3, 4), 2), call(t(9, 2, 2), 3)],
)
composite(
    "pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor",
    _pixel_unshuffle,
    torch.pixel_unshuffle,
    spelled("pixel_unshuffle", "tf"),
    lambda: [call(t(2, 3, 4, 6), 2), call(t(2, 3, 6), 3)],
)
composite(
    "channel_shuffle(Tensor self, int groups) -> Tensor",
    _channel_shuffle,
    torch.channel_shuffle,
    spelled("channel_shuffle", "tf"),
    lambda: [call(t(2, 6, 3, 4), 3), call(t(1, 4, 3), 2)],
)
composite(
    "im2col(Tensor self, int[] kernel_size, int[] dilation=[1], int[] padding=[0], int[] stride=[1]) -> Tensor",
    _unfold,
    lambda x, *numbers: F.unfold(x, *(v[0] if len(v) == 1 else v for v in numbers)),
    ("torch.nn.functional.unfold",),
    lambda: [call(t(2, 3, 5, 6), (2, 3)), call(t(3, 5, 6), (2,), (2,), (1,), (2,))],
)


def _local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """Krizhevsky et al., 2012: over ``size`` neighbouring channels, zeros beyond the first and the last."""
    rank = len(x.shape)
    if rank < 3 or size < 1 or not x.dtype.is_floating_point or not all(shapes.at_least(s, 1) for s in x.shape):
        return NotImplemented
    if rank > 3 and x.dtype in rules.HALVES and x.device.type == "cpu":  # ATen pools in 3-d, for which it has no such kernel
        return NotImplemented
    wide = widen(x)
    squares = ops.pad(ops.mul(wide, wide), (*(0,) * (2 * (rank - 2)), size // 2, (size - 1) // 2))
    mean = ops.div(ops.sum(ops.unfold(squares, 1, size, 1), (-1,)), size)
    return cast(ops.div(wide, ops.pow_scalar(ops.add(ops.mul(mean, alpha), k), float(beta))), x.dtype)


composite(
    "local_response_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0) -> Tensor",
    _local_response_norm,
    F.local_response_norm,
    spelled("local_response_norm", "f"),
    lambda: [call(t(2, 6, 3), 3), call(t(1, 4, 3, 3), 2, 0.1)],
    ulp=8.0,
)


# ----------------------------------------------------------------------------------------------------------- resampled


def _place(x: Any, size: Dim, scale: Any, align_corners: bool, offset: float) -> Any:
    """Where each of ``size`` new pixels lies among the old, in the dtype of ``x``."""
    i = ops.arange(0, size, 1, dtype=torch.int64, device=x.device)
    at = ops.to(i, x.dtype)
    return ops.mul(at, scale) if align_corners else ops.sub(ops.mul(ops.add(at, offset), scale), 0.5)


def _along(v: Any, rank: int, dim: int) -> Any:
    return ops.reshape(v, tuple(v.shape[0] if d == dim else 1 for d in range(rank)))


def _picked(x: Any, dim: int, place: Any) -> Any:
    return ops.index(x, (*(None,) * dim, place))


def _up_to(v: Any, last: Dim) -> Any:
    """Places, cut off at the first and the last."""
    if isinstance(last, int):
        return ops.clamp(v, 0, last)
    return ops.minimum(ops.clamp(v, 0), ops.full((), last, dtype=v.dtype, device=v.device))


def _nearest(x: Any, dim: int, size: Dim, scale: Any, exact: bool) -> Any:
    i = ops.to(ops.arange(0, size, 1, dtype=torch.int64, device=x.device), torch.float32)
    at = ops.floor(ops.mul(ops.add(i, 0.5) if exact else i, scale))
    return _picked(x, dim, _up_to(ops.to(at, torch.int64), x.shape[dim] - 1))


def _linear(x: Any, dim: int, size: Dim, scale: Any, align_corners: bool) -> Any:
    last = x.shape[dim] - 1
    at = ops.clamp(_place(x, size, scale, align_corners, 0.5), 0.0)
    low = _up_to(ops.to(ops.floor(at), torch.int64), last)
    high = _up_to(ops.add(low, 1), last)
    weight = _along(ops.clamp(ops.sub(at, ops.to(low, x.dtype)), 0.0, 1.0), len(x.shape), dim)
    return ops.add(ops.mul(_picked(x, dim, low), ops.sub(1.0, weight)), ops.mul(_picked(x, dim, high), weight))


def _cubic_weights(f: Any) -> list[Any]:
    """Keys, 1981, with A = -0.75: the weights of the four neighbours at a fraction ``f`` beyond the second."""

    def near(d: Any) -> Any:
        return ops.add(ops.mul(ops.mul(ops.sub(ops.mul(d, 1.25), 2.25), d), d), 1.0)

    def far(d: Any) -> Any:
        inner = ops.add(ops.mul(ops.sub(ops.mul(d, -0.75), -3.75), d), -6.0)
        return ops.add(ops.mul(inner, d), 3.0)

    g = ops.sub(1.0, f)
    return [far(ops.add(f, 1.0)), near(f), near(g), far(ops.add(g, 1.0))]


def _cubic(x: Any, dim: int, size: Dim, scale: Any, align_corners: bool) -> Any:
    last = x.shape[dim] - 1
    at = _place(x, size, scale, align_corners, 0.5)
    base = ops.floor(at)
    weights = _cubic_weights(_along(ops.sub(at, base), len(x.shape), dim))
    total: Any = None
    for k, weight in enumerate(weights):
        place = _up_to(ops.add(ops.to(base, torch.int64), k - 1), last)
        term = ops.mul(_picked(x, dim, place), weight)
        total = term if total is None else ops.add(total, term)
    return total


_NEAREST = ("nearest", "nearest-exact")
_RANKS = {"area": (3, 4, 5), "linear": (3,), "bilinear": (4,), "trilinear": (5,), "bicubic": (4,)} | dict.fromkeys(
    _NEAREST, (3, 4, 5)
)


def _interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """F.interpolate, dim after dim. A scale that is given is used as it is; else it is the ratio of the sizes, in float32 or
    float64 as torch has it."""
    rank, n = len(x.shape), len(x.shape) - 2
    if antialias or rank not in _RANKS.get(mode, ()) or not x.dtype.is_floating_point:
        return NotImplemented
    if (size is None) == (scale_factor is None) or (align_corners is not None and mode in (*_NEAREST, "area")):
        return NotImplemented
    if not all(shapes.at_least(s, 1) for s in x.shape):
        return NotImplemented
    old = x.shape[2:]
    factors = None if scale_factor is None else tuple(float(f) for f in _per_dim(scale_factor, n))
    new = _per_dim(size, n) if factors is None else tuple(map(_scaled, old, factors))
    if len(new) != n or not all(isinstance(s, (int, Expr)) and shapes.at_least(s, 1) for s in new):
        return NotImplemented
    if mode == "area":
        return getattr(ops, f"adaptive_avg_pool{n}d")(x, new)
    if recompute_scale_factor:
        factors = None
    y = widen(x)
    for d in reversed(range(n)):
        kind = torch.float32 if mode in _NEAREST else y.dtype
        scale = _scale(y, kind, old[d], new[d], None if factors is None else factors[d], bool(align_corners))
        y = _STEPS[mode](y, d + 2, new[d], scale, bool(align_corners))
    return in_format_of(cast(y, x.dtype), x)


def _eager_interpolate(x: torch.Tensor, size: Any = None, factor: Any = None, *more: Any) -> torch.Tensor:
    """ATen's own, which takes a number a dim."""
    n = x.dim() - 2
    return F.interpolate(x, size and _per_dim(size, n), factor and _per_dim(factor, n), *more)


def _per_dim(value: Sequence[Any], n: int) -> tuple[Any, ...]:
    return tuple(value) * n if len(value) == 1 else tuple(value)


_FINEST = 1024  # times a size this is exact in floating point, too


def _scaled(old: Dim, factor: float) -> Dim:
    """A size times a factor, rounded down: in symbols for factors that are a few halves, quarters and so on."""
    if isinstance(old, int) or not math.isfinite(factor) or (parts := factor.as_integer_ratio())[1] > _FINEST:
        return int(shapes.pinned(old) * factor)
    return ex.floordiv(old * parts[0], parts[1])


def _scale(y: Any, kind: torch.dtype, old: Dim, new: Dim, factor: float | None, align_corners: bool) -> Any:
    if align_corners:
        return _ratio(y, kind, old - 1, new - 1) if shapes.at_least(new, 2) else 0.0
    return 1 / factor if factor else _ratio(y, kind, old, new)


def _ratio(y: Any, kind: torch.dtype, a: Dim, b: Dim) -> Any:
    """Of two sizes: a number, or a tensor where they are symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a / b
    return ops.div(*(ops.full((), d, dtype=kind, device=y.device) for d in (a, b)))


_STEPS: dict[str, Callable[..., Any]] = {
    "nearest": lambda x, d, size, scale, _: _nearest(x, d, size, scale, False),
    "nearest-exact": lambda x, d, size, scale, _: _nearest(x, d, size, scale, True),
    "linear": _linear,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
}
composite(
    "interpolate(Tensor input, SymInt[]? size=None, float[]? scale_factor=None, str mode='nearest', bool? align_corners=None, "
    "bool? recompute_scale_factor=None, bool antialias=False) -> Tensor",
    _interpolate,
    _eager_interpolate,
    spelled("interpolate", "f"),
    lambda: [
        *(call(t(2, 3, 4, 5, dtype=d), (7, 3), None, "bilinear") for d in FLOATS),
        *(call(t(2, 3, 4, 5), None, (2.0, 2.0), mode) for mode in ("nearest", "nearest-exact", "bicubic")),
        call(t(2, 3, 6), (4,), None, "linear", True),
        call(t(1, 2, 3, 4, 3), (5, 2, 6), None, "trilinear", False),
    ],
    ulp=16.0,
)
