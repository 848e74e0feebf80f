"""Which calls of ``scatter`` and its relatives have a record: right ones. Torch says what is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.ops.indexing import indexed_shape
from tinycompile.ops.meta_rules import is_zero
from tinycompile.ops.record import OPS, BoundCall
from tinycompile.ops.table import Args, SchemaBinder, add, is_tensor


@dataclass(frozen=True, slots=True)
class Checked:
    """A binder that leaves calls to torch which ``fits`` refuses."""

    binder: SchemaBinder
    fits: Callable[..., bool]

    def __call__(self, args: Args, kwargs: dict[str, Any]) -> BoundCall | None:
        bound = self.binder(args, kwargs)
        return bound if bound is not None and self.fits(*bound.args) else None


def _rank(t: Any) -> int:
    return len(t.shape)


def _has_dim(x: Any, dim: Any) -> bool:
    return isinstance(dim, int) and -max(_rank(x), 1) <= dim < max(_rank(x), 1)


def _no_larger(a: Any, b: Any, apart: int | None = None) -> bool:
    """Whether ``a`` fits into ``b`` in every dim but one; a tensor without dims has one element."""
    sizes = zip(tuple(a.shape) or (1,), tuple(b.shape) or (1,), strict=True)
    return all(d == apart or shapes.at_least(n, m) for d, (m, n) in enumerate(sizes))


def _fits_scatter(x: Any, dim: int, index: Any, src: Any, *rest: Any) -> bool:
    ranks = {max(_rank(t), 1) for t in (x, index, src) if is_tensor(t)}
    if len(ranks) > 1 or not _has_dim(x, dim) or index.dtype != torch.int64:
        return False
    if is_tensor(src) and (src.dtype != x.dtype or not _no_larger(index, src)):
        return False
    return not any(map(is_zero, index.shape)) and _no_larger(index, x, dim % max(_rank(x), 1))


def _fits_slices(x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> bool:
    if _rank(x) != _rank(source) or not _rank(x) or _rank(index) > 1 or not _has_dim(x, dim) or source.dtype != x.dtype:
        return False
    at = dim % _rank(x)
    count = index.shape[0] if _rank(index) else 1
    whole = type(alpha) is int or x.dtype.is_floating_point
    if index.dtype not in (torch.int64, torch.int32) or not (alpha == 1 or (whole and x.dtype != torch.bool)):
        return False
    alike = (shapes.same(m, n) for d, (m, n) in enumerate(zip(x.shape, source.shape, strict=True)) if d != at)
    return shapes.same(count, source.shape[at]) and all(alike) and not isinstance(alpha, (bool, complex))


def _fits_copy(x: Any, dim: int, index: Any, source: Any) -> bool:
    return index.dtype == torch.int64 and _fits_slices(x, dim, index, source)


def _fits_put(x: Any, index: Any, source: Any, accumulate: bool = False) -> bool:
    alike = _rank(index) == _rank(source) and all(map(shapes.same, index.shape, source.shape))
    return index.dtype == torch.int64 and source.dtype == x.dtype and alike and not any(map(is_zero, x.shape))


def _fits_index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> bool:
    if not indices or len(indices) > _rank(x):
        return False
    if any(i is None or i.dtype not in (torch.int64, torch.int32) for i in indices):  # (None is aten's alone)
        return False
    if values.dtype != x.dtype or any(map(is_zero, x.shape)):
        return False
    try:
        block = shapes.broadcast_shapes(*(tuple(i.shape) for i in indices))
    except RuntimeError:  # they don't broadcast
        return False
    return shapes.broadcasts_to(tuple(values.shape), indexed_shape(x, indices, block))


def _fits_gather(x: Any, dim: int, index: Any) -> bool:
    """An index of no places may be of any dtype: torch's to judge."""
    return index.dtype in (torch.int64, torch.int32)


_FITS: dict[str, Callable[..., bool]] = {
    "gather": _fits_gather,
    "scatter": _fits_scatter,
    "scatter_add": _fits_scatter,
    "scatter_reduce": _fits_scatter,
    "index_add": _fits_slices,
    "index_copy": _fits_copy,
    "put": _fits_put,
}


def _checked() -> None:
    for name, fits in _FITS.items():
        for dotted in OPS[name].functions:
            add(dotted, Checked(SchemaBinder(OPS[name]), fits))
            if dotted.startswith("torch.Tensor."):
                add(f"{dotted}_", Checked(SchemaBinder(OPS[name], True), fits))
    for dotted in ("torch.index_put", "torch.Tensor.index_put", "torch.Tensor.index_put_"):
        add(dotted, Checked(SchemaBinder(OPS["index_put"], dotted.endswith("_")), _fits_index_put))


GROUPS = (_checked,)
