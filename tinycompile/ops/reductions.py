"""Reductions over dims: sums and products, extremes and their positions, moments, logsumexp; and scans along a dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Metas, Reduction, Sample, Scan
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, Samples, call, t
from tinycompile.ops.scalar import Builder, Value

ANY = (*FLOATS, *INTS, "bool")
Dims = int | Sequence[int] | None


def _calls(dtypes: Sequence[str], empty: bool = True, fill: str = "normal", listed: bool = True) -> Samples:
    """Calls of a reduction: every dtype, dims (one, several, negative, none), keepdim, layouts, 0-d, empty, NaN."""

    def make() -> list[Sample]:
        def dims(*d: int) -> Any:
            return list(d) if listed else d[0]

        first = dtypes[0]
        found = [call(t(4, 5, dtype=d, fill=fill if d in FLOATS else "integers"), dims(1)) for d in dtypes]
        found += [
            call(t(4, 5, 3, dtype=first, fill=fill), dims(*d), k) for d in ((0,), (1,), (-1,), (0, 2)) for k in (False, True)
        ]
        found += [call(t(4, 6, dtype=first, layout=layout, fill=fill), dims(d)) for layout in LAYOUTS for d in (0, 1)]
        found += [call(t(2, 3, 4, 5, dtype=first, layout="channels_last", fill=fill), dims(2, 3), True)]
        found += [
            call(t(dtype=first, fill=fill), dims(0)),
            call(t(1, 1, dtype=first, fill=fill), dims(0)),
            call(t(300, dtype=first, fill=fill), dims(0)),
        ]
        if first in FLOATS:
            found += [call(t(6, 6, dtype=first, fill="special"), dims(1))]
        return [*found, call(t(0, 3, dtype=first), dims(1)), *([call(t(3, 0, dtype=first), dims(1))] if empty else [])]

    return make


# -------------------------------------------------------------------------------------------------------- sums, products


def _sum_dtype(x: TensorMeta, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)


def _sum_meta(x: TensorMeta, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> TensorMeta:
    return rules.reduction(x, dim, keepdim, _sum_dtype(x, dtype))


def _prod_meta(x: TensorMeta, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> TensorMeta:
    return rules.reduction(x, dim, keepdim, _sum_dtype(x, dtype))


def _mean_meta(x: TensorMeta, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> TensorMeta:
    chosen = dtype or x.dtype
    if not chosen.is_floating_point:
        if dtype is None:
            raise RuntimeError(
                "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
                f"Got: {rules.type_name(chosen)}"
            )
        raise RuntimeError(
            "mean(): could not infer output dtype. Optional dtype must be either a floating point or complex dtype. "
            f"Got: {rules.type_name(chosen)}"
        )
    return rules.reduction(x, dim, keepdim, chosen)


def _accumulated(b: Builder, x: Value, dtype: torch.dtype | None = None, **attrs: Any) -> Value:
    """The element as it is accumulated: rounded to ``dtype`` first if one is given; integers and bools as int64."""
    if dtype is not None:
        return b.cast(b.cast(x, dtype), rules.opmath(dtype) if dtype.is_floating_point else torch.int64)
    return x if x.dtype.is_floating_point else b.cast(x, torch.int64)


def _divide_by_count(b: Builder, total: Value, count: Value, **attrs: Any) -> Value:
    return total / count


def _eager_sum(x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    return torch.sum(x, dim, keepdim, dtype=dtype)


def _eager_mean(x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    return torch.mean(x, dim, keepdim, dtype=dtype)


def _eager_prod(x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
    return torch.prod(x, dtype=dtype) if dim is None else torch.prod(x, dim, keepdim, dtype=dtype)


_WHOLE = lambda: [call(t(4, 5)), call(t(4, 6, layout="transposed")), call(t()), call(t(4, 5, dtype="float16"))]  # over all dims
_TYPED = lambda: [call(t(4, 5, dtype=a), dtype=getattr(torch, b))
                  for a, b in (("float16", "float32"), ("int32", "float64"), ("float32", "float16"), ("int32", "int16"))]  # fmt: skip

declare(
    "sum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _sum_meta,
    Reduction("sum", _accumulated),
    _eager_sum,
    spelled("sum"),
    lambda: [*_calls(ANY)(), *_WHOLE(), *_TYPED(), call(t(0)), call(t(4, 5), ()), call(t(3, 4), dtype=torch.int32)],
    ulp=2.0,
)
declare(
    "mean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _mean_meta,
    Reduction("sum", _accumulated, _divide_by_count),
    _eager_mean,
    spelled("mean"),
    lambda: [
        *_calls(FLOATS)(),
        *_WHOLE(),
        call(t(4, 5, dtype="int64"), dtype=torch.float32),
        call(t(0)),
        call(t(3, dtype="int32")),
    ],
    ulp=2.0,
)
declare(
    "prod(Tensor self, int? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _prod_meta,
    Reduction("prod", _accumulated),
    _eager_prod,
    spelled("prod"),
    lambda: [*_calls(ANY, listed=False)(), *_WHOLE(), call(t(0))],
    ulp=2.0,
)


def _count_meta(x: TensorMeta, dim: Dims = None) -> TensorMeta:
    return rules.reduction(x, dim, False, torch.int64)


def _is_nonzero(b: Builder, x: Value, **attrs: Any) -> Value:
    return x if x.dtype == torch.bool else x.ne(0)


def _count_prologue(b: Builder, x: Value, **attrs: Any) -> Value:
    return b.cast(_is_nonzero(b, x), torch.int64)


declare(
    "count_nonzero(Tensor self, int[]? dim=None) -> Tensor",
    _count_meta,
    Reduction("sum", _count_prologue),
    lambda x, dim=None: torch.count_nonzero(x, dim),
    spelled("count_nonzero"),
    lambda: [*(call(t(4, 5, dtype=d, fill="integers"), [1]) for d in ANY), call(t(4, 5)), call(t(3, 4, 5), [0, 2]), call(t(0))],
)


# -------------------------------------------------------------------------------------------------------------- any, all


def _any_meta(x: TensorMeta, dim: Dims = None, keepdim: bool = False) -> TensorMeta:
    return rules.reduction(x, dim, keepdim, torch.uint8 if x.dtype == torch.uint8 else torch.bool)


def _eager_over(fn: Any) -> Any:
    def eager(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
        return fn(x) if dim is None else fn(x, dim, keepdim)

    return eager


for _name in ("any", "all"):
    declare(
        f"{_name}(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        _any_meta,
        Reduction(_name, _is_nonzero),
        _eager_over(getattr(torch, _name)),
        spelled(_name),
        lambda: [
            *_calls(("bool", *ANY), fill="integers")(),
            call(t(4, 5, dtype="bool")),
            call(t(0)),
            call(t(4, fill="special")),
        ],
    )


# -------------------------------------------------------------------------------------------------- extremes, positions


def _extreme_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: Dims = (), keepdim: bool = False) -> TensorMeta:
        rules.require_nonempty(name, x, dim)
        return rules.reduction(x, dim, keepdim, x.dtype)

    return meta


def _whole_meta(name: str) -> Any:
    def meta(x: TensorMeta) -> TensorMeta:
        if any(rules.is_zero(s) for s in x.shape):
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
            )
        return rules.reduction(x, None, False, x.dtype)

    return meta


def _as_number(b: Builder, x: Value, **attrs: Any) -> Value:
    """Bools are ordered as 0 and 1."""
    return b.cast(x, torch.uint8) if x.dtype == torch.bool else x


def _position_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: int | None = None, keepdim: bool = False) -> TensorMeta:
        if x.dtype == torch.bool:
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for 'Bool'")
        rules.require_nonempty(name, x, dim)
        return rules.reduction(x, dim, keepdim, torch.int64)

    return meta


def _along_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: int, keepdim: bool = False) -> Metas:
        rules.require_nonempty(name, x, dim)
        values = rules.reduction(x, dim, keepdim, x.dtype)
        return values, rules.fresh(values.shape, torch.int64, x.device)

    return meta


def _along(extreme: str) -> Any:
    """Values and positions are sibling reductions: one kernel reads the input once."""

    def along(x: Any, dim: int, keepdim: bool = False) -> Any:
        positions = ops.to(x, torch.uint8) if x.dtype == torch.bool else x
        return getattr(ops, f"a{extreme}")(x, (dim,), keepdim), getattr(ops, f"arg{extreme}")(positions, dim, keepdim)

    return along


def _eager_along(fn: Any) -> Any:
    return lambda x, dim, keepdim=False: tuple(fn(x, dim, keepdim))


for _name in ("max", "min"):
    declare(
        f"a{_name}(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
        _extreme_meta(f"a{_name}"),
        Reduction(_name, _as_number),
        getattr(torch, f"a{_name}"),
        spelled(f"a{_name}"),
        lambda: [*_calls(ANY, empty=False)(), *_WHOLE()],
    )
    declare(
        f"{_name}_all(Tensor self) -> Tensor",
        _whole_meta(_name),
        Reduction(_name, _as_number),
        getattr(torch, _name),
        (),
        lambda: [*_WHOLE(), *(call(t(4, 5, dtype=d)) for d in ANY), call(t(9, fill="special"))],
        doc=f"torch.{_name} of the whole tensor.",
    )
    declare(
        f"{_name}_dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        _along_meta(_name),
        Decompose(_along(_name)),
        _eager_along(getattr(torch, _name)),
        (),
        _calls(ANY, empty=False, listed=False),
        doc=f"torch.{_name} along a dim: values and the position of the first among equals.",
    )
    declare(
        f"arg{_name}(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
        _position_meta(f"arg{_name}"),
        Reduction(f"arg{_name}"),
        getattr(torch, f"arg{_name}"),
        spelled(f"arg{_name}"),
        lambda: [*_calls((*FLOATS, *INTS), empty=False, listed=False)(), *_WHOLE()],
    )


# --------------------------------------------------------------------------------------------------------------- moments


def _moment_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> TensorMeta:
        if not x.dtype.is_floating_point:
            raise RuntimeError(
                f"{name} and var only support floating point and complex dtypes"
                if name == "std"
                else "std and var only support floating point and complex dtypes"
            )
        return rules.reduction(x, dim, keepdim, x.dtype)

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


def _variance_and_mean(b: Builder, mean: Value, m2: Value, count: Value, **attrs: Any) -> tuple[Value, Value]:
    return _variance(b, mean, m2, count, **attrs), mean


def _deviation_and_mean(b: Builder, mean: Value, m2: Value, count: Value, **attrs: Any) -> tuple[Value, Value]:
    return _deviation(b, mean, m2, count, **attrs), mean


def _eager_moment(fn: Any) -> Any:
    def eager(x: torch.Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
        return fn(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)

    return eager


def _moment_calls(name: str) -> Samples:
    return lambda: [
        *_kept(_calls(FLOATS)()),
        call(t(4, 5)),
        call(t(4, 5), [1], correction=0),
        call(t(4, 5), correction=0.5),
        call(t(4, 1), [1]),
        call(t(4, 1), [1], correction=0),
        call(t(4, 5), [1], correction=7),
        call(t()),
    ]


def _kept(samples: Sequence[Sample]) -> list[Sample]:
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
    return rules.reduction(x, dim, keepdim, rules.float_type(x.dtype))


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
    _calls((*FLOATS, "int64")),
    ulp=4.0,
)


def _vector_norm_meta(x: TensorMeta, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> TensorMeta:
    if not x.dtype.is_floating_point:
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {rules.type_name(x.dtype)}"
        )
    return rules.reduction(x, dim, keepdim, dtype or x.dtype)


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
    return rules.fresh(x.shape, _sum_dtype(x, dtype), x.device)


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
