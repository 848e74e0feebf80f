"""Variances and standard deviations, logsumexp, vector norms; and scans along a dim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_reductions
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Metas, Reduction, Sample, Scan
from tinycompile.ops.reductions import calls_over, sum_dtype
from tinycompile.ops.samples import FLOATS, INTS, Samples, call, t
from tinycompile.ops.scalar import Builder, Value

ANY = (*FLOATS, *INTS, "bool")
Dims = int | Sequence[int] | None


# --------------------------------------------------------------------------------------------------------------- moments


def _moment_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> TensorMeta:
        if not x.dtype.is_floating_point:
            raise RuntimeError(
                f"{name} and var only support floating point and complex dtypes"
                if name == "std"
                else "std and var only support floating point and complex dtypes"
            )
        return meta_reductions.reduction(x, dim, keepdim, x.dtype)

    return meta


def _moments_meta(name: str) -> Any:
    one = _moment_meta(name)

    def meta(x: TensorMeta, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Metas:
        if not x.dtype.is_floating_point:
            raise RuntimeError(f"{name} only support floating point and complex dtypes")
        found = one(x, dim, correction, keepdim)
        return found, found

    return meta


def _variance(b: Builder, mean: Value, m2: Value, count: Value, correction: Any = None, **attrs: Any) -> Value:
    """Nothing to divide by gives NaN (or infinity), as torch gives it."""
    taken = 1 if correction is None else correction
    divisor = count if taken == 0 else b("maximum", count - taken, b.const(0, count.dtype))
    return m2 / divisor


def _deviation(b: Builder, mean: Value, m2: Value, count: Value, **attrs: Any) -> Value:
    return b("sqrt", _variance(b, mean, m2, count, **attrs))


def _running_mean(b: Builder, mean: Value, count: Value) -> Value:
    """The mean as a running formula gives it: past an infinity it meets inf - inf, so NaN; of one element, the element."""
    lost = b("isinf", mean) & (count > 1)
    return b.where(lost, b.const(float("nan"), mean.dtype), mean)


def _variance_and_mean(b: Builder, mean: Value, m2: Value, count: Value, **attrs: Any) -> tuple[Value, Value]:
    return _variance(b, mean, m2, count, **attrs), _running_mean(b, mean, count)


def _deviation_and_mean(b: Builder, mean: Value, m2: Value, count: Value, **attrs: Any) -> tuple[Value, Value]:
    return _deviation(b, mean, m2, count, **attrs), _running_mean(b, mean, count)


def _eager_moment(fn: Any) -> Any:
    def eager(x: torch.Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
        return fn(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)

    return eager


def _moment_calls(name: str) -> Samples:
    return lambda: [
        *_kept(calls_over(FLOATS)()),
        call(t(4, 5)),
        call(t(4, 5), [1], correction=0),
        call(t(4, 5), correction=0.5),
        call(t(4, 1), [1]),
        call(t(4, 1), [1], correction=0),
        call(t(4, 5), [1], correction=7),
        call(t()),
    ]


def _kept(samples: Iterable[Sample]) -> list[Sample]:
    """keepdim by name: it is keyword-only here."""
    return [Sample(s.args[:2], {"keepdim": True} if len(s.args) > 2 and s.args[2] else {}) for s in samples]


_MOMENTS: tuple[tuple[str, Any], ...] = (("var", _variance), ("std", _deviation))
for _name, _epilogue in _MOMENTS:
    declare(
        f"{_name}(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
        _moment_meta(_name),
        Reduction("welford", None, _epilogue),
        _eager_moment(getattr(torch, _name)),
        spelled(_name),
        _moment_calls(_name),
        ulp=4.0,
    )
for _name, _epilogue in (("var_mean", _variance_and_mean), ("std_mean", _deviation_and_mean)):
    declare(
        f"{_name}(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        _moments_meta(_name),
        Reduction("welford", None, _epilogue),
        _eager_moment(getattr(torch, _name)),
        spelled(_name, "t"),
        _moment_calls(_name),
        ulp=4.0,
    )


# ------------------------------------------------------------------------------------------------- logsumexp, norms, scans


def _logsumexp_meta(x: TensorMeta, dim: Dims, keepdim: bool = False) -> TensorMeta:
    return meta_reductions.reduction(x, dim, keepdim, rules.float_type(x.dtype))


def _as_float(b: Builder, x: Value, **attrs: Any) -> Value:
    return b.cast(x, rules.float_type(x.dtype))


def _log_of_sum(b: Builder, top: Value, total: Value, count: Value, **attrs: Any) -> Value:
    """An infinite maximum is the answer (its exponentials are not)."""
    return b.where(b("isinf", top), top, top + b("log", total))


declare(
    "logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
    _logsumexp_meta,
    Reduction("online_softmax", _as_float, _log_of_sum),
    torch.logsumexp,
    spelled("logsumexp", "tms"),
    calls_over((*FLOATS, "int64")),
    ulp=4.0,
)


def _vector_norm_meta(x: TensorMeta, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> TensorMeta:
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {rules.type_name(x.dtype)}"
        )
    for d in rules.shapes.normalize_dims(dim, x.rank) if ord == float("inf") or ord < 0 else ():
        if x.rank and rules.is_zero(x.shape[d]):
            raise RuntimeError(
                f"linalg.vector_norm cannot compute the {ord} norm on the dimension {d}because this dimension is empty and the "
                "operation does not have an identity"
            )
    return meta_reductions.reduction(x, dim, keepdim, dtype or x.dtype)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    out = dtype or x.dtype
    x = cast(x, rules.opmath(out))
    dims = rules.shapes.normalize_dims(dim, len(x.shape))
    if ord == 2:
        result = ops.sqrt(ops.sum(ops.square(x), dims, keepdim))
    elif ord == 1:
        result = ops.sum(ops.abs(x), dims, keepdim)
    elif ord == 0:
        result = ops.sum(ops.to(ops.ne(x, 0), x.dtype), dims, keepdim)
    elif ord in (float("inf"), float("-inf")):
        if any(rules.is_zero(s) for s in x.shape):
            return NotImplemented
        result = (ops.amax if ord > 0 else ops.amin)(ops.abs(x), dims, keepdim)
    else:
        result = ops.pow_scalar(ops.sum(ops.pow_scalar(ops.abs(x), ord), dims, keepdim), 1 / ord)
    return cast(result, out)


def _eager_vector_norm(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> torch.Tensor:
    return torch.linalg.vector_norm(x, ord, dim, keepdim, dtype=dtype)


declare(
    "linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _vector_norm_meta,
    Decompose(_vector_norm),
    _eager_vector_norm,
    spelled("vector_norm", "l"),
    lambda: [
        *(call(t(4, 5, dtype=d), p, (1,)) for d in FLOATS for p in (2, 1, 0, 3, float("inf"), float("-inf"))),
        call(t(4, 5)),
        call(t(4, 6, layout="transposed"), 2, (0,), True),
        call(t(4, 5, dtype="float16"), dtype=torch.float32),
        call(t()),
    ],
    ulp=4.0,
)


def _scan_meta(x: TensorMeta, dim: int, dtype: torch.dtype | None = None) -> TensorMeta:
    rules.shapes.normalize_dim(dim, x.rank)
    return rules.fresh(x.shape, sum_dtype(x, dtype), x.device)


def _eager_scan(fn: Any) -> Any:
    return lambda x, dim, dtype=None: fn(x, dim, dtype=dtype)


for _name, _kind in (("cumsum", "sum"), ("cumprod", "prod")):
    declare(
        f"{_name}(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
        _scan_meta,
        Scan(_kind),
        _eager_scan(getattr(torch, _name)),
        spelled(_name),
        lambda: [
            *(call(t(4, 5, dtype=d, fill="integers"), 1) for d in ANY),
            call(t(4, 5), 0),
            call(t(3, 4, 5), -2),
            call(t(), 0),
            call(t(4, 6, layout="transposed"), 1),
            call(t(0, 3), 0),
            call(t(4, dtype="int32"), 0, dtype=torch.float64),
        ],
        ulp=4.0,
    )
