"""Reductions over dims: sums and products, any and all, extremes and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_reductions
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Metas, Reduction, Sample
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, Samples, call, t
from tinycompile.ops.scalar import Builder, Value

ANY = (*FLOATS, *INTS, "bool")
Dims = int | Sequence[int] | None


def calls_over(dtypes: Sequence[str], empty: bool = True, fill: str = "normal", listed: bool = True) -> Samples:
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


def sum_dtype(x: TensorMeta, dtype: torch.dtype | None) -> torch.dtype:
    """Sums and products of integers and bools are int64."""
    return dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)


def _sum_meta(x: TensorMeta, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> TensorMeta:
    return meta_reductions.reduction(x, dim, keepdim, sum_dtype(x, dtype))


def _prod_meta(x: TensorMeta, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> TensorMeta:
    return meta_reductions.reduction(x, dim, keepdim, sum_dtype(x, dtype))


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
    return meta_reductions.reduction(x, dim, keepdim, chosen)


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
_CONVERTED = (("float16", "float32"), ("int32", "float64"), ("float32", "float16"), ("int32", "int16"))
_TYPED = lambda: [call(t(4, 5, dtype=a), dtype=getattr(torch, b)) for a, b in _CONVERTED]

declare(
    "sum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _sum_meta,
    Reduction("sum", _accumulated),
    _eager_sum,
    spelled("sum"),
    lambda: [*calls_over(ANY)(), *_WHOLE(), *_TYPED(), call(t(0)), call(t(4, 5), ()), call(t(3, 4), dtype=torch.int32)],
    ulp=2.0,
)
declare(
    "mean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
    _mean_meta,
    Reduction("sum", _accumulated, _divide_by_count),
    _eager_mean,
    spelled("mean"),
    lambda: [
        *calls_over(FLOATS)(),
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
    lambda: [*calls_over(ANY, listed=False)(), *_WHOLE(), call(t(0))],
    ulp=2.0,
)


def _count_meta(x: TensorMeta, dim: Dims = None) -> TensorMeta:
    return meta_reductions.reduction(x, dim, False, torch.int64)


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
    return meta_reductions.reduction(x, dim, keepdim, torch.uint8 if x.dtype == torch.uint8 else torch.bool)


def _eager_over(fn: Any) -> Any:
    def eager(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
        return fn(x) if dim is None and not keepdim else fn(x, dim, keepdim)

    return eager


for _name in ("any", "all"):
    declare(
        f"{_name}(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        _any_meta,
        Reduction(_name, _is_nonzero),
        _eager_over(getattr(torch, _name)),
        spelled(_name),
        lambda: [
            *calls_over(("bool", *ANY), fill="integers")(),
            call(t(4, 5, dtype="bool")),
            call(t(0)),
            call(t(4, fill="special")),
        ],
    )


# -------------------------------------------------------------------------------------------------- extremes, positions


def _extreme_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: Dims = (), keepdim: bool = False) -> TensorMeta:
        meta_reductions.require_nonempty(name, x, dim)
        return meta_reductions.reduction(x, dim, keepdim, x.dtype)

    return meta


def _whole_meta(name: str) -> Any:
    def meta(x: TensorMeta) -> TensorMeta:
        if any(rules.is_zero(s) for s in x.shape):
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with "
                "the 'dim' argument."
            )
        return meta_reductions.reduction(x, None, False, x.dtype)

    return meta


def _as_number(b: Builder, x: Value, **attrs: Any) -> Value:
    """Bools are ordered as 0 and 1."""
    return b.cast(x, torch.uint8) if x.dtype == torch.bool else x


def _position_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: int | None = None, keepdim: bool = False) -> TensorMeta:
        if x.dtype == torch.bool:
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for 'Bool'")
        meta_reductions.require_nonempty(name, x, dim)
        return meta_reductions.reduction(x, dim, keepdim, torch.int64)

    return meta


def _along_meta(name: str) -> Any:
    def meta(x: TensorMeta, dim: int, keepdim: bool = False) -> Metas:
        meta_reductions.require_nonempty(name, x, dim)
        values = meta_reductions.reduction(x, dim, keepdim, x.dtype)
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
        lambda: [*calls_over(ANY, empty=False)(), *_WHOLE()],
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
        calls_over(ANY, empty=False, listed=False),
        doc=f"torch.{_name} along a dim: values and the position of the first among equals.",
    )
    declare(
        f"arg{_name}(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
        _position_meta(f"arg{_name}"),
        Reduction(f"arg{_name}"),
        getattr(torch, f"arg{_name}"),
        spelled(f"arg{_name}"),
        lambda: [*calls_over((*FLOATS, *INTS), empty=False, listed=False)(), *_WHOLE()],
    )
