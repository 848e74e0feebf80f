"""``torch.masked``: what is masked out becomes the operation's identity; then it is the plain operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.declare import composite
from tinycompile.ops.samples import call, t

Dims = int | Sequence[int] | None
_INTS_SUMMED_AS_INT64 = (torch.uint8, torch.bool, torch.int8, torch.int16, torch.int32)


def _identity(name: str, dtype: torch.dtype, order: float = 2.0) -> Any:
    """torch.masked's ``_reduction_identity``."""
    low, high = (-math.inf, math.inf) if dtype.is_floating_point else (None, None)
    if low is None and dtype != torch.bool:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if name == "norm":
        return high if order == -math.inf else 0
    return {"sum": 0, "prod": 1, "amax": low, "amin": high, "logsumexp": low}[name]


def _input_mask(x: Any, mask: Any) -> Any:
    """The mask in the input's shape, as bools."""
    return cast(ops.expand(mask, tuple(x.shape)), torch.bool)


def _filled(x: Any, mask: Any, name: str, order: float = 2.0) -> Any:
    if mask is None:
        return x
    value = _identity(name, x.dtype, order)
    if value is None:
        raise NotImplementedError(f"no identity of {name} for {x.dtype}")
    return ops.where(_input_mask(x, mask), x, ops.full((), value, dtype=x.dtype, device=x.device))


def _dims(x: Any, dim: Dims) -> tuple[int, ...]:
    return tuple(rules.shapes.normalize_dims(None if dim is None or dim == () else dim, len(x.shape)))


def _sum_dtype(x: Any, dtype: Any) -> Any:
    return dtype or (torch.int64 if x.dtype in _INTS_SUMMED_AS_INT64 else x.dtype)


# ----------------------------------------------------------------------------------------------------------- reductions


def _sum(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
    return ops.sum(_filled(x, mask, "sum"), _dims(x, dim), keepdim, dtype=_sum_dtype(x, dtype))


def _prod(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
    result = _filled(x, mask, "prod")
    dims = _dims(x, dim) if len(x.shape) or dim is None or dim == () else (0,)
    for d in reversed(dims):
        result = ops.prod(result, d, keepdim)
    return cast(result, _sum_dtype(x, dtype))


def _extreme(name: str) -> Callable[..., Any]:
    def extreme(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
        found = getattr(ops, name)(_filled(x, mask, name), _dims(x, dim), keepdim)
        return cast(found, dtype or x.dtype)

    return extreme


def _position(name: str) -> Callable[..., Any]:
    def position(x: Any, dim: int | None = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
        found = getattr(ops, f"arg{name}")(_filled(x, mask, f"a{name}"), dim, keepdim)
        return cast(found, dtype or x.dtype)

    return position


def _count(x: Any, dim: Dims, keepdim: bool, mask: Any) -> Any:
    inside = ops.full(tuple(x.shape), True, dtype=torch.bool, device=x.device) if mask is None else _input_mask(x, mask)
    return ops.sum(inside, _dims(x, dim), keepdim)


def _mean(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
    if not (dtype or x.dtype).is_floating_point:
        return NotImplemented
    return ops.div(_sum(x, dim, keepdim, dtype or x.dtype, mask), _count(x, dim, keepdim, mask))


def _norm(x: Any, ord: Any = 2.0, dim: Dims = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
    filled = _filled(x, mask, "norm", ord)
    return ops.linalg_vector_norm(filled, ord, _dims(x, dim), keepdim, dtype=dtype or x.dtype)


def _moment(root: bool) -> Callable[..., Any]:
    """Two passes over what the mask leaves: the mean, then squared distances from it."""

    def moment(
        x: Any,
        dim: Dims = None,
        unbiased: bool | None = None,
        correction: Any = None,
        keepdim: bool = False,
        dtype: Any = None,
        mask: Any = None,
    ) -> Any:
        taken = 1.0 if unbiased or (unbiased is None and correction is None) else float(correction or 0.0)
        out = dtype or (x.dtype if x.dtype.is_floating_point else torch.float32)
        if not out.is_floating_point:
            return NotImplemented
        mean = ops.div(_sum(x, dim, True, out, mask), _count(x, dim, True, mask))
        off = ops.sub(x, mean)
        total = _sum(ops.mul(off, off), dim, keepdim, out, mask)
        count = cast(_count(x, dim, keepdim, mask), out)
        if taken:
            count = ops.clamp(ops.sub(count, taken), 0.0)
        found = cast(ops.div(total, count), out)
        return ops.sqrt(found) if root else found

    return moment


def _logsumexp(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    return cast(ops.logsumexp(_filled(x, mask, "logsumexp"), _dims(x, dim), keepdim), dtype or x.dtype)


_CALLS = lambda: [call(t(4, 5)), call(t(4, 5), 1, mask=t(4, 5, dtype="bool")), call(t(4, 5), 0, keepdim=True)]
_TAIL = "bool keepdim=False, ScalarType? dtype=None, Tensor? mask=None"
_REDUCTIONS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("sum", "int[]? dim=None", _sum),
    ("prod", "int[]? dim=None", _prod),
    ("amax", "int[]? dim=None", _extreme("amax")),
    ("amin", "int[]? dim=None", _extreme("amin")),
    ("argmax", "int? dim=None", _position("max")),
    ("argmin", "int? dim=None", _position("min")),
    ("mean", "int[]? dim=None", _mean),
    ("logsumexp", "int[]? dim=None", _logsumexp),
)


def _eager(name: str) -> Callable[..., Any]:
    """Arguments in schema order; torch takes the dims by position and the rest by name."""
    fn = getattr(torch.masked, name)
    return lambda x, dim=None, keepdim=False, dtype=None, mask=None: fn(x, dim, keepdim=keepdim, dtype=dtype, mask=mask)


for _name, _dim, _fn in _REDUCTIONS:
    composite(
        f"masked_{_name}(Tensor input, {_dim}, *, {_TAIL}) -> Tensor",
        _fn,
        _eager(_name),
        (f"torch.masked.{_name}",),
        _CALLS if "arg" not in _name else lambda: [call(t(4, 5), 1, mask=t(4, 5, dtype="bool"))],
        ulp=8.0,
    )
composite(
    f"masked_norm(Tensor input, Scalar ord=2.0, int[]? dim=None, *, {_TAIL}) -> Tensor",
    _norm,
    lambda x, o=2.0, dim=None, keepdim=False, dtype=None, mask=None: torch.masked.norm(
        x, o, dim, keepdim=keepdim, dtype=dtype, mask=mask
    ),
    ("torch.masked.norm",),
    lambda: [call(t(4, 5), 2.0, 1, mask=t(4, 5, dtype="bool"))],
    ulp=8.0,
)


def _eager_moment(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim=None, unbiased=None, correction=None, keepdim=False, dtype=None, mask=None: fn(
        x, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask
    )


for _name, _root in (("var", False), ("std", True)):
    composite(
        f"masked_{_name}(Tensor input, int[]? dim=None, bool? unbiased=None, *, Scalar? correction=None, {_TAIL}) -> Tensor",
        _moment(_root),
        _eager_moment(getattr(torch.masked, _name)),
        (f"torch.masked.{_name}",),
        lambda: [call(t(4, 5), 1, True), call(t(4, 5), 1, False, mask=t(4, 5, dtype="bool"))],
        ulp=8.0,
    )


# ------------------------------------------------------------------------------------------- scans, softmaxes, two inputs


def _scan(name: str, kind: str) -> Callable[..., Any]:
    return lambda x, dim, dtype=None, mask=None: getattr(ops, name)(_filled(x, mask, kind), dim, dtype=dtype or x.dtype)


def _softmax(name: str) -> Callable[..., Any]:
    kind = "amin" if name == "softmin" else "amax"

    def softmax(x: Any, dim: int, dtype: Any = None, mask: Any = None) -> Any:
        return getattr(ops, name)(_filled(x, mask, kind), dim, dtype=dtype or x.dtype)

    return softmax


def _normalize(x: Any, ord: Any, dim: int, eps: float = 1e-12, dtype: Any = None, mask: Any = None) -> Any:
    size = _norm(x, ord, dim, True, dtype or x.dtype, mask)
    least = ops.full((), eps, dtype=size.dtype, device=x.device)
    return ops.div(_filled(x, mask, "sum"), ops.maximum(size, least))


def _logaddexp(x: Any, other: Any, dtype: Any = None, input_mask: Any = None, other_mask: Any = None) -> Any:
    return cast(ops.logaddexp(_filled(x, input_mask, "amax"), _filled(other, other_mask, "amax")), dtype or x.dtype)


for _name, _fn in (
    ("cumsum", _scan("cumsum", "sum")),
    ("cumprod", _scan("cumprod", "prod")),
    ("softmax", _softmax("softmax")),
    ("log_softmax", _softmax("log_softmax")),
    ("softmin", _softmax("softmin")),
):
    composite(
        f"masked_{_name}(Tensor input, int dim, *, ScalarType? dtype=None, Tensor? mask=None) -> Tensor",
        _fn,
        lambda x, dim, dtype=None, mask=None, fn=getattr(torch.masked, _name): fn(x, dim, dtype=dtype, mask=mask),
        (f"torch.masked.{_name}",),
        lambda: [call(t(4, 5), 1), call(t(4, 5), 1, mask=t(4, 5, dtype="bool"))],
        ulp=8.0,
    )
composite(
    "masked_normalize(Tensor input, Scalar ord, int dim, *, float eps=1e-12, ScalarType? dtype=None, Tensor? mask=None) "
    "-> Tensor",
    _normalize,
    lambda x, o, dim, eps=1e-12, dtype=None, mask=None: torch.masked.normalize(x, o, dim, eps=eps, dtype=dtype, mask=mask),
    ("torch.masked.normalize",),
    lambda: [call(t(4, 5), 2.0, 1, mask=t(4, 5, dtype="bool"))],
    ulp=8.0,
)
composite(
    "masked_logaddexp(Tensor input, Tensor other, *, ScalarType? dtype=None, Tensor? input_mask=None, Tensor? other_mask=None) "
    "-> Tensor",
    _logaddexp,
    lambda x, y, dtype=None, a=None, b=None: torch.masked._ops.logaddexp(x, y, dtype=dtype, input_mask=a, other_mask=b),
    ("torch.masked._ops.logaddexp",),
    lambda: [call(t(4, 5), t(4, 5), input_mask=t(4, 5, dtype="bool"))],
)
