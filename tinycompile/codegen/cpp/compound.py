"""Compound reductions (``welford``, ``online_softmax``, ``argmax``, ``argmin``) as two passes of sums, maxima and minima.

Those vectorise; over a row that is hot in cache that is faster than one pass of divisions or branches, and sums of squared
deviations are more exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.ir.loops import Axis, Const, Index, Reduce, Scalar, Statement


def simplified(body: tuple[Statement, ...], axes: Sequence[Axis], dtypes: Mapping[str, torch.dtype]) -> tuple[Statement, ...]:
    """The body with simple reductions only. ``dtypes``: of each value."""
    found: list[Statement] = []
    moments = {(s.args, s.axes) for s in body if isinstance(s, Reduce) and s.kind == "welford"}
    for s in _widened(body):
        if isinstance(s, Reduce) and s.kind in _COMPOUND:
            found += _COMPOUND[s.kind](s, axes, dtypes[s.args[0]])
        elif isinstance(s, Reduce) and s.kind == "sum" and (s.args, s.axes) in moments and s.dtypes[0] == torch.float32:
            found += _wide_sum(s)
        else:
            found.append(s)
    return tuple(found)


def _two_pass_arg(s: Reduce, axes: Sequence[Axis], dtype: torch.dtype) -> Iterator[Statement]:
    """The extreme value first, then the least position that holds it. A NaN wins: it is the extreme, and equals nothing."""
    at, x = s.names[0], s.args[0]
    position, best, hit, none, place, least = (f"{at}_{w}" for w in ("position", "best", "hit", "none", "place", "least"))
    yield Reduce((best,), (dtype,), "max" if s.kind == "argmax" else "min", (x,), s.axes, s.origin)
    yield Scalar(hit, torch.bool, "eq", (x, best), s.origin)
    if dtype.is_floating_point:
        lost, found = f"{at}_nan", f"{at}_found"
        yield Scalar(lost, torch.bool, "isnan", (x,), s.origin)
        yield Scalar(found, torch.bool, "or", (hit, lost), s.origin)
        hit = found
    linear: Dim = 0
    count = ex.product(a.extent for a in axes if a.name in s.axes)
    for axis in (a for name in s.axes for a in axes if a.name == name):
        linear = linear * axis.extent + ex.sym(axis.name, 0, axis.extent)
    narrow = torch.int32 if isinstance(count, int) and count < 2**31 else torch.int64  # half the vectors
    yield Index(position, narrow, linear, s.origin)
    yield Const(none, narrow, torch.iinfo(narrow).max, s.origin)
    yield Scalar(place, narrow, "where", (hit, position, none), s.origin)
    yield Reduce((least,), (narrow,), "min", (place,), s.axes, s.origin)
    yield Scalar(at, torch.int64, "cast", (least,), s.origin)


def _wide_sum(s: Reduce) -> Iterator[Statement]:
    """A sum beside moments of the same values: theirs, which is equal to it and so made once."""
    total = s.names[0]
    value, wide = f"{total}_value", f"{total}_wide"
    yield Scalar(value, torch.float64, "cast", s.args, s.origin)
    yield Reduce((wide,), (torch.float64,), "sum", (value,), s.axes, s.origin)
    yield Scalar(total, torch.float32, "cast", (wide,), s.origin)


def _two_pass_moments(s: Reduce, axes: Sequence[Axis], dtype: torch.dtype) -> Iterator[Statement]:
    """In float64, as torch's own: a mean is finite though the sum is beyond float32, and so is a deviation."""
    mean, m2 = s.names
    wide, x = torch.float64, s.args[0]
    count = ex.product(a.extent for a in axes if a.name in s.axes)
    value, total, number, delta, square = (f"{mean}_{w}" for w in ("value", "sum", "count", "delta", "square"))
    yield Scalar(value, wide, "cast", (x,), s.origin)
    yield Reduce((total,), (wide,), "sum", (value,), s.axes, s.origin)
    yield Const(number, wide, count, s.origin)
    first, squares = (f"{mean}_first", f"{m2}_first") if dtype == wide else (_wide(mean), _wide(m2))
    yield Scalar(first, wide, "div", (total, number), s.origin)
    yield Scalar(delta, wide, "sub", (value, first), s.origin)
    yield Scalar(square, wide, "mul", (delta, delta), s.origin)
    yield Reduce((squares,), (wide,), "sum", (square,), s.axes, s.origin)
    if dtype == wide:
        yield from _corrected(s, first, squares, delta, number)
    yield Scalar(mean, dtype, "cast", (_wide(mean),), s.origin)
    yield Scalar(m2, dtype, "cast", (_wide(m2),), s.origin)


def _corrected(s: Reduce, mean: str, squares: str, delta: str, number: str) -> Iterator[Statement]:
    """Where no wider type takes up the rounding of the first mean: what is left of it is the mean of the deviations (Chan,
    Golub and LeVeque, 1983). So equal elements are their own mean. An infinite mean, or NaN, stays."""
    wide, origin = torch.float64, s.origin
    words = ("left", "rest", "nothing", "zero", "finite", "shift", "square", "share", "less")
    left, rest, nothing, zero, finite, shift, square, share, less = (f"{mean}_{w}" for w in words)
    yield Reduce((left,), (wide,), "sum", (delta,), s.axes, origin)
    yield Scalar(rest, wide, "div", (left, number), origin)
    yield Scalar(nothing, wide, "sub", (rest, rest), origin)
    yield Const(zero, wide, 0.0, origin)
    yield Scalar(finite, torch.bool, "eq", (nothing, zero), origin)
    yield Scalar(shift, wide, "where", (finite, rest, zero), origin)
    yield Scalar(_wide(s.names[0]), wide, "add", (mean, shift), origin)
    yield Scalar(square, wide, "mul", (shift, shift), origin)
    yield Scalar(share, wide, "mul", (square, number), origin)
    yield Scalar(less, wide, "sub", (squares, share), origin)
    yield Scalar(_wide(s.names[1]), wide, "maximum", (less, zero), origin)


def _wide(name: str) -> str:
    return f"{name}_wide"


def _widened(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """What is made of a sum of squares (a variance, its root) is made of the float64 one, and rounded after."""
    wide = {s.names[1] for s in body if isinstance(s, Reduce) and s.kind == "welford"}
    for s in body:
        if not isinstance(s, Scalar) or s.op not in _KEEPS_WIDE or s.dtype != torch.float32 or s.args[0] not in wide:
            yield s
            continue
        args = [_wide(s.args[0])]
        for other in s.args[1:]:
            args.append(f"{s.name}_{other}")
            yield Scalar(args[-1], torch.float64, "cast", (other,), s.origin)
        yield Scalar(_wide(s.name), torch.float64, s.op, tuple(args), s.origin)
        yield Scalar(s.name, s.dtype, "cast", (_wide(s.name),), s.origin)
        wide.add(s.name)


_KEEPS_WIDE = frozenset(("div", "mul", "sqrt"))


def _two_pass_softmax(s: Reduce, axes: Sequence[Axis], dtype: torch.dtype) -> Iterator[Statement]:
    top, total = s.names
    x = s.args[0]
    shifted, power, raw, lowest, zero, empty = (f"{total}_{w}" for w in ("shifted", "exp", "raw", "lowest", "zero", "empty"))
    yield Reduce((top,), (dtype,), "max", (x,), s.axes, s.origin)
    yield Scalar(shifted, dtype, "sub", (x, top), s.origin)
    yield Scalar(power, dtype, "exp", (shifted,), s.origin)
    yield Reduce((raw,), (dtype,), "sum", (power,), s.axes, s.origin)
    yield Const(lowest, dtype, float("-inf"), s.origin)
    yield Const(zero, dtype, 0.0, s.origin)
    yield Scalar(empty, torch.bool, "eq", (top, lowest), s.origin)  # a row of -inf: -inf - -inf is NaN, but its sum is 0
    yield Scalar(total, dtype, "where", (empty, zero, raw), s.origin)


_COMPOUND: dict[str, Callable[[Reduce, Sequence[Axis], torch.dtype], Iterator[Statement]]] = {
    "argmax": _two_pass_arg,
    "argmin": _two_pass_arg,
    "welford": _two_pass_moments,
    "online_softmax": _two_pass_softmax,
}
