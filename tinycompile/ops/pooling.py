"""Pooling: windows are views (``unfold``) of the padded input, and a pool is a reduction over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim, Expr
from tinycompile.ops.calls import cast, in_format_of, ops, positions, row_major, widen
from tinycompile.ops.declare import composite
from tinycompile.ops.meta_rules import HALVES
from tinycompile.ops.samples import FLOATS, call, t

Sizes = Sequence[int]


# -------------------------------------------------------------------------------------------------------------- windows


def _each(value: Any, n: int) -> tuple[int, ...]:
    """One number for all dims, or one a dim."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return given * n if len(given) == 1 else given


def _pooled_size(size: Dim, k: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> Dim:
    """ATen's ``pooling_output_shape``: with ``ceil_mode`` a window may hang over the end, if it starts inside."""
    span = size + 2 * pad - dilation * (k - 1) - 1
    if not ceil_mode:
        return ex.floordiv(span, stride) + 1
    count = ex.floordiv(span + stride - 1, stride) + 1
    return count - 1 if shapes.at_least((count - 1) * stride, size + pad) else count


class Windows:
    """How a pool walks over the last ``n`` dims of an input. ``covered`` is false for what ATen refuses."""

    def __init__(self, x: Any, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> None:
        self.n, self.rank = n, len(x.shape)
        self.kernel = _each(kernel, n)
        self.stride = self.kernel if stride is None or stride == () else _each(stride, n)
        self.padding, self.dilation = _each(padding, n), _each(dilation, n)
        self.size = tuple(x.shape[-n:]) if self.rank >= n else ()
        self.covered = self._is_covered(x)
        if self.covered:
            each = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
            self.count = tuple(_pooled_size(*of, ceil_mode) for of in each)
            self.covered = all(shapes.at_least(c, 1) for c in self.count)

    def _is_covered(self, x: Any) -> bool:
        numbers = (self.kernel, self.stride, self.padding, self.dilation)
        if self.rank not in (self.n + 1, self.n + 2) or any(len(v) != self.n for v in numbers):
            return False
        positive = all(k > 0 and s > 0 and d > 0 for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True))
        padded = all(0 <= p <= ((k - 1) * d + 1) // 2 for k, p, d in zip(self.kernel, self.padding, self.dilation, strict=True))
        return positive and padded and all(shapes.at_least(s, 1) for s in x.shape[-self.n - 1 :])

    def of(self, x: Any, fill: float) -> Any:
        """``x`` padded with ``fill``, as [..., outputs, window]: the window's dims are the last ``n``."""
        pad: list[Dim] = []
        for d in reversed(range(self.n)):
            reach = (self.count[d] - 1) * self.stride[d] + self.dilation[d] * (self.kernel[d] - 1) + 1
            pad += [self.padding[d], ex.maximum(reach - self.size[d] - self.padding[d], 0)]
        if any(not isinstance(p, int) or p for p in pad):
            x = ops.pad(x, tuple(pad), "constant", fill)
        for d in range(self.n):
            at = self.rank - self.n + d
            x = ops.unfold(x, at, self.dilation[d] * (self.kernel[d] - 1) + 1, self.stride[d])
            if shapes.at_least(x.shape[at], self.count[d] + 1):
                x = ops.slice(x, at, 0, self.count[d])
            if self.dilation[d] > 1:
                x = ops.slice(x, -1, 0, None, self.dilation[d])
        return x

    @property
    def dims(self) -> tuple[int, ...]:
        """The window's dims, from the end."""
        return tuple(range(-self.n, 0))

    def starts(self, d: int, device: Any) -> Any:
        """Where the windows start along dim ``d`` (negative inside the padding), in the shape of the pool's result."""
        return ops.sub(ops.mul(positions(self.count[d], self.rank, d - self.n, device), self.stride[d]), self.padding[d])


# ------------------------------------------------------------------------------------------------------- average, maximum


def _divisor(w: Windows, device: Any, count_include_pad: bool) -> Any:
    """How many elements each window has: without what hangs over, and without the padding if that does not count."""
    total: Any = None
    for d in range(w.n):
        start = w.starts(d, device)
        end = ops.clamp(ops.add(start, w.kernel[d]), None, w.size[d] + (w.padding[d] if count_include_pad else 0))
        length = ops.sub(end, start if count_include_pad else ops.clamp(start, 0))
        total = length if total is None else ops.mul(total, length)
    return total


def _average_pool(n: int) -> Callable[..., Any]:
    def pool(
        x: Any,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        w = Windows(x, n, kernel_size, stride, padding, 1, ceil_mode)
        if not w.covered or not x.dtype.is_floating_point or divisor_override == 0:
            return NotImplemented
        if n == 3 and x.dtype in HALVES and x.device.type == "cpu":  # ATen has no such kernel
            return NotImplemented
        if n == 3 and not all(map(shapes.at_least, x.shape[-3:], w.kernel)):  # refused, padded or not
            return NotImplemented
        total = ops.sum(w.of(widen(x), 0.0), w.dims)
        plain = not ceil_mode and (count_include_pad or not any(w.padding))
        divisor: Any = divisor_override or (math.prod(w.kernel) if plain else None)
        if divisor is None:
            divisor = _divisor(w, x.device, count_include_pad)
        found = cast(ops.div(total, divisor), x.dtype)
        return row_major(found) if n == 1 else in_format_of(found, x)

    return pool


def _maximum(windows: Any, n: int) -> Any:
    """The largest value of each window."""
    return ops.amax(windows, tuple(range(-n, 0)))


def one_maximum(windows: Any, n: int) -> Any:
    """The same, differentiated as ATen's pools are: all of the gradient goes to the first of equal values."""
    flat = windows if n == 1 else ops.reshape(windows, (*windows.shape[:-n], -1))
    return ops.max_dim(flat, -1)[0]


def maximum_pool(n: int, with_indices: bool, maximum: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """The formula of a record; ``maximum`` reduces ``n`` dims of windows."""

    def pool(
        x: Any,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        w = Windows(x, n, kernel_size, stride, padding, dilation, ceil_mode)
        if not w.covered or not x.dtype.is_floating_point:
            return NotImplemented
        windows = w.of(x, -math.inf)
        found = maximum(windows, n)
        found = row_major(found) if n == 1 else in_format_of(found, x)
        if not with_indices:
            return found
        place = _flat_place(w, ops.argmax(ops.reshape(windows, (*windows.shape[:-n], -1)), -1), x.device)
        return found, row_major(place) if n == 1 else in_format_of(place, x)

    return pool


def _flat_place(w: Windows, inner: Any, device: Any) -> Any:
    """The position in the window as a position in the pooled dims of the input."""
    parts: list[Any] = []
    for d in reversed(range(w.n)):
        parts.append(ops.remainder(inner, w.kernel[d]))
        inner = ops.floor_divide(inner, w.kernel[d])
    place: Any = None
    for d, inside in enumerate(reversed(parts)):
        at = ops.add(w.starts(d, device), ops.mul(inside, w.dilation[d]))
        place = at if place is None else ops.add(ops.mul(place, w.size[d]), at)
    return place


def _average_calls(n: int) -> Callable[[], Any]:
    shape = _SPACE[n]
    return lambda: [
        *(call(t(*shape, dtype=d), (3,) * n) for d in (FLOATS if n < 3 else FLOATS[:2])),
        call(t(*shape), (3,) * n, (2,) * n, (1,) * n, True, False),
        call(t(*shape), (2,) * n, (1,) * n, (1,) * n),
    ]


def _maximum_calls(n: int) -> Callable[[], Any]:
    shape = _SPACE[n]
    return lambda: [
        *(call(t(*shape, dtype=d), (3,) * n) for d in FLOATS),
        call(t(*shape), (3,) * n, (2,) * n, (1,) * n, (1,) * n, True),
        call(t(*shape), (2,) * n, (1,) * n, (0,) * n, (2,) * n),
    ]


def _adaptive_calls(n: int) -> Callable[[], Any]:
    return lambda: [call(t(*_SPACE[n]), (c,) * n) for c in (3, 1, 4)]


_SPACE = {1: (2, 3, 9), 2: (2, 3, 7, 8), 3: (1, 2, 5, 6, 7)}
for _n in (1, 2, 3):
    _override = "" if _n == 1 else ", int? divisor_override=None"
    composite(
        f"avg_pool{_n}d(Tensor self, int[] kernel_size, int[]? stride=None, int[] padding=[0], bool ceil_mode=False, "
        f"bool count_include_pad=True{_override}) -> Tensor",
        _average_pool(_n),
        getattr(F, f"avg_pool{_n}d"),
        (f"torch.nn.functional.avg_pool{_n}d", *(("torch.avg_pool1d",) if _n == 1 else ())),
        _average_calls(_n),
    )
    for _indices in (False, True):
        _name = f"max_pool{_n}d{'_with_indices' * _indices}"
        composite(
            f"{_name}(Tensor self, int[] kernel_size, int[]? stride=None, int[] padding=[0], "
            f"int[] dilation=[1], bool ceil_mode=False) -> {'(Tensor, Tensor)' if _indices else 'Tensor'}",
            maximum_pool(_n, _indices, _maximum),
            lambda x, k, s=None, p=0, d=1, c=False, n=_n, indices=_indices: getattr(F, f"max_pool{n}d")(
                x, k, s, p, d, c, return_indices=indices
            ),
            (),
            _maximum_calls(_n),
        )


# -------------------------------------------------------------------------------------------------------------- adaptive


def _adaptive_bounds(i: Any, size: Any, count: Any) -> tuple[Any, Any]:
    """Window i goes from floor(i size / count) to ceil((i + 1) size / count)."""
    first = ops.floor_divide(ops.mul(i, size), count)
    return first, ops.neg(ops.floor_divide(ops.mul(ops.add(i, 1), -size), count))


def _adaptive_windows(x: Any, at: int, count: Dim) -> tuple[Any, Any]:
    """``count`` windows that cover dim ``at``, as a new last dim; and which of it is inside (None: all of it)."""
    size = x.shape[at]
    if shapes.same(ex.mod(size, count), 0):
        step = ex.floordiv(size, count)
        if isinstance(step, int):
            return ops.unfold(x, at, step, step), None
        return ops.movedim(ops.unflatten(x, at, (count, step)), (at + 1,), (-1,)), None
    longest = ex.ceildiv(size, count) + 1  # at most
    if isinstance(size, int) and isinstance(count, int):
        longest = max(-((i + 1) * size // -count) - i * size // count for i in range(count))
    first, past = _adaptive_bounds(ops.arange(0, count, 1, dtype=torch.int64, device=x.device), size, count)
    place = ops.add(ops.unsqueeze(first, 1), ops.arange(0, longest, 1, dtype=torch.int64, device=x.device))
    taken = ops.index(x, (*(None,) * at, ops.clamp(place, None, size - 1)))  # [..., count, longest, ...]
    return ops.movedim(taken, (at + 1,), (-1,)), ops.lt(place, ops.unsqueeze(past, 1))


def _counts(x: Any, n: int, output_size: Sizes) -> tuple[Dim, ...] | None:
    """The windows of each pooled dim, or None for what ATen refuses."""
    sizes = _each(output_size, n)
    if len(x.shape) not in (n + 1, n + 2) or len(sizes) != n or not x.dtype.is_floating_point:
        return None
    counts = tuple(x.shape[d - n] if c is None else c for d, c in enumerate(sizes))
    return counts if all(shapes.at_least(s, 1) for s in (*counts, *x.shape[-n - 1 :])) else None


def _all_windows(x: Any, counts: tuple[Dim, ...], fill: float) -> tuple[Any, Any]:
    """[..., counts, windows] with ``fill`` where a window is shorter than the longest; and how many elements each has."""
    n, rank = len(counts), len(x.shape)
    windows, number = x, None
    for d, c in enumerate(counts):
        windows, inside = _adaptive_windows(windows, rank - n + d, c)
        if inside is None:
            length = windows.shape[-1]
        else:
            windows = ops.where(_placed(inside, rank, rank - n + d, d), windows, fill)
            length = _placed(ops.sum(inside, (1,)), rank, rank - n + d, None)
        number = length if number is None else _times(number, length)
    return windows, number


def _placed(v: Any, rank: int, at: int, windows_before: int | None) -> Any:
    """[count] or [count, longest] laid along dim ``at`` (and the last)."""
    count = v.shape[0]
    tail = () if windows_before is None else (*(1,) * windows_before, v.shape[1])
    return ops.reshape(v, (*(count if d == at else 1 for d in range(rank)), *tail))


def _times(a: Any, b: Any) -> Any:
    return a * b if isinstance(a, (int, Expr)) and isinstance(b, (int, Expr)) else ops.mul(a, b)


def _adaptive_average(n: int) -> Callable[..., Any]:
    def pool(x: Any, output_size: Sizes) -> Any:
        counts = _counts(x, n, output_size)
        if counts is None:
            return NotImplemented
        windows, number = _all_windows(widen(x), counts, 0.0)
        return in_format_of(cast(ops.div(ops.sum(windows, tuple(range(-n, 0))), number), x.dtype), x)

    return pool


def adaptive_maximum(n: int, with_indices: bool, maximum: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """The formula of a record; ``maximum`` reduces ``n`` dims of windows."""

    def pool(x: Any, output_size: Sizes) -> Any:
        counts = _counts(x, n, output_size)
        if counts is None:
            return NotImplemented
        windows, _ = _all_windows(x, counts, -math.inf)
        found = in_format_of(maximum(windows, n), x)
        if not with_indices:
            return found
        inner = ops.argmax(ops.reshape(windows, (*windows.shape[:-n], -1)), -1)
        rank = len(x.shape)
        parts: list[Any] = []
        for d in reversed(range(n)):
            first, _ = _adaptive_bounds(positions(counts[d], rank, d - n, x.device), x.shape[d - n], counts[d])
            parts.append(ops.add(ops.remainder(inner, windows.shape[d - n]), first))
            inner = ops.floor_divide(inner, windows.shape[d - n])
        place: Any = None
        for d, at in enumerate(reversed(parts)):
            place = at if place is None else ops.add(ops.mul(place, x.shape[d - n]), at)
        return found, in_format_of(place, x)

    return pool


def _adaptive_eagerly(name: str, n: int, *more: Any) -> Callable[..., Any]:
    """ATen's own; one size stands for all."""
    fn = getattr(F, f"{name}{n}d")
    return lambda x, size: fn(x, _each(size, n), *more)


for _n in (1, 2, 3):
    composite(
        f"adaptive_avg_pool{_n}d(Tensor self, SymInt[] output_size) -> Tensor",
        _adaptive_average(_n),
        _adaptive_eagerly("adaptive_avg_pool", _n),
        (),
        _adaptive_calls(_n),
    )
    for _indices in (False, True):
        _name = f"adaptive_max_pool{_n}d{'_with_indices' * _indices}"
        composite(
            f"{_name}(Tensor self, SymInt[] output_size) -> {'(Tensor, Tensor)' if _indices else 'Tensor'}",
            adaptive_maximum(_n, _indices, _maximum),
            _adaptive_eagerly("adaptive_max_pool", _n, _indices),
            (),
            _adaptive_calls(_n),
        )
