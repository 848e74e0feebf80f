"""Running extremes with their positions, look-ups by flat position, and dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import cast, laid_out_as, ops, positions
from tinycompile.ops.declare import composite, declare, spelled
from tinycompile.ops.indexing import ix, wrapped
from tinycompile.ops.record import Indexed, Scan
from tinycompile.ops.samples import FLOATS, INTS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value

Coords = tuple[Dim, ...]

# ------------------------------------------------------------------------------------------------------- running extremes


def _running_meta(x: TensorMeta, dim: int) -> TensorMeta:
    rules.shapes.normalize_dim(dim, x.rank)
    return rules.fresh(x.shape, x.dtype, x.device)


def _eager_running(name: str) -> Callable[..., Any]:
    fn = getattr(torch, name)
    return lambda x, dim: fn(x, dim)[0]


def _cumulative(name: str) -> Callable[..., Any]:
    """The position is the latest at which the running extreme was met; a NaN, once met, is met at every NaN. The value is what
    is there: zeros are equal, of either sign."""
    better = "ge" if name == "max" else "le"

    def cumulative(x: Any, dim: int) -> Any:
        if x.dtype == torch.bool:
            return NotImplemented
        if not len(x.shape):
            if dim not in (0, -1):
                raise IndexError(f"cum{name}(): Expected reduction dim -1 or 0 for scalar but got {dim}")
            return ops.clone(x), ops.full((), 0, dtype=torch.int64, device=x.device)
        at = rules.shapes.normalize_dim(dim, len(x.shape))
        found = getattr(ops, f"running_{name}")(x, at)
        met = getattr(ops, better)(x, found)
        met = ops.logical_or(met, ops.isnan(x)) if x.dtype.is_floating_point else met
        place = ops.where(met, positions(x.shape[at], len(x.shape), at, x.device), 0)
        places = ops.running_max(ops.expand(place, tuple(x.shape)), at)
        return ops.gather(x, at, places) if x.dtype.is_floating_point else found, places

    return cumulative


for _name in ("max", "min"):
    declare(
        f"running_{_name}(Tensor self, int dim) -> Tensor",
        _running_meta,
        Scan(_name),
        _eager_running(f"cum{_name}"),
        (),
        lambda: [*(call(t(4, 5, dtype=d), 1) for d in (*FLOATS, *INTS)), call(t(4, 5, fill="special"), 0)],
        doc=f"The values of cum{_name}.",
    )
    composite(
        f"cum{_name}(Tensor self, int dim) -> (Tensor values, Tensor indices)",
        _cumulative(_name),
        lambda x, dim, fn=getattr(torch, f"cum{_name}"): tuple(fn(x, dim)),
        spelled(f"cum{_name}"),
        lambda: [
            *(call(t(4, 5, dtype=d), 1) for d in (*FLOATS, *INTS)),
            call(t(6, 6, fill="special"), 0),
            call(t(4, 5, fill="integers"), -1),
        ],
    )


# ------------------------------------------------------------------------------------------------------ flat positions


def _checked_meta(index: TensorMeta, size: Dim) -> TensorMeta:
    return rules.fresh(index.shape, torch.int64, index.device)


def _checked(b: Builder, coords: Coords, meta_out: TensorMeta, index: Operand, size: Dim) -> Value:
    at = wrapped(b, b.load(index, coords), size)
    return b.where(b.in_range(at, size), at, 0)


declare(
    "checked_index(Tensor self, SymInt size) -> Tensor",
    _checked_meta,
    Indexed(_checked),
    lambda index, size: torch.arange(size, device=index.device)[index.long()].contiguous(),
    (),
    lambda: [call(ix(5, 3, 4), 5), call(t(6, dtype="int64", fill="index:-4"), 5)],
    doc="Indices counted from the start; one out of range is an error.",
)


def _take(x: Any, index: Any) -> Any:
    if index.dtype != torch.int64:
        return NotImplemented
    return ops.contiguous(ops.index(ops.reshape(x, (-1,)), (index,)))


def _index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    """A position is filled if any index names it: compared all with all, for few indices."""
    few = rules.shapes.hint(rules.shapes.numel(tuple(index.shape))) <= 64
    if not few or len(index.shape) > 1 or index.dtype != torch.int64:
        return NotImplemented
    if hasattr(value, "dtype") and (len(value.shape) or value.dtype != x.dtype):
        return NotImplemented
    filled = value if hasattr(value, "dtype") else ops.full((), value, dtype=x.dtype, device=x.device)
    if not len(x.shape):
        return ops.reshape(_index_fill(ops.reshape(x, (1,)), 0, index, value), ())
    at = rules.shapes.normalize_dim(dim, len(x.shape))
    named = ops.checked_index(ops.reshape(index, (-1,)), x.shape[at])
    here = ops.any(ops.eq(positions(x.shape[at], 2, 0, x.device), named), (1,))
    here = ops.reshape(here, tuple(x.shape[at] if d == at else 1 for d in range(len(x.shape))))
    return laid_out_as(ops.where(here, filled, x), x)


composite(
    "take(Tensor self, Tensor index) -> Tensor",
    _take,
    torch.take,
    spelled("take"),
    lambda: [call(t(4, 5), ix(20, 3, 2)), call(t(4, 6, layout="transposed"), t(5, dtype="int64", fill="index:-20"))],
)
composite(
    "index_fill(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
    _index_fill,
    torch.index_fill,
    spelled("index_fill"),
    lambda: [call(t(4, 5), 1, ix(5, 2), 2.5), call(t(4, 6, layout="transposed"), 0, ix(4, 3), -1)],
)


# -------------------------------------------------------------------------------------------------------- dot products


def _dot(x: Any, other: Any) -> Any:
    """Products of floats are exact in double precision, where they are summed."""
    if len(x.shape) != 1 or len(other.shape) != 1 or x.dtype != other.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    if not rules.shapes.same(x.shape[0], other.shape[0]):
        return NotImplemented
    wide = [cast(v, torch.float64 if x.dtype == torch.float32 else rules.opmath(x.dtype)) for v in (x, other)]
    return cast(ops.sum(ops.mul(*wide)), x.dtype)


for _name in ("dot", "vdot"):
    composite(
        f"{_name}(Tensor self, Tensor tensor) -> Tensor",
        _dot,
        getattr(torch, _name),
        spelled(_name),
        lambda: [call(t(300, dtype=d), t(300, dtype=d)) for d in FLOATS],
        ulp=32.0,
    )
