"""Device functions that generated kernels reduce with: along a tile, with running states, and across programs of one row.

See ``library.py`` for error bounds and what runs in Triton's interpreter.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import os

import triton
import triton.language as tl

from tinycompile.codegen.triton.library import LOG2E, both, either, exp, exp2_approx, maximum, minimum, multiply

# All keep the reduced dimension when the tile has two (``keep``): rows stay (ROWS, 1) and broadcast against the tile.


@triton.jit
def reduce_max(x, axis: tl.constexpr, keep: tl.constexpr):
    """Maximum; NaN if any is."""
    return tl.reduce(x, axis, maximum, keep_dims=keep)


@triton.jit
def reduce_min(x, axis: tl.constexpr, keep: tl.constexpr):
    """Minimum; NaN if any is."""
    return tl.reduce(x, axis, minimum, keep_dims=keep)


@triton.jit
def reduce_prod(x, axis: tl.constexpr, keep: tl.constexpr):
    """Product."""
    return tl.reduce(x, axis, multiply, keep_dims=keep)


@triton.jit
def reduce_any(x, axis: tl.constexpr, keep: tl.constexpr):
    """Whether any is true."""
    return tl.reduce(x.to(tl.int32), axis, either, keep_dims=keep) != 0


@triton.jit
def reduce_all(x, axis: tl.constexpr, keep: tl.constexpr):
    """Whether all are true."""
    return tl.reduce(x.to(tl.int32), axis, both, keep_dims=keep) != 0


@triton.jit
def larger_first(a, i, b, j):
    """The larger value with its index; NaN beats numbers, the lower index wins ties. ``a != a`` is false for integers."""
    a_nan = a != a
    b_nan = b != b
    first = tl.where(a_nan == b_nan, (a > b) | (((a == b) | a_nan) & (i < j)), a_nan)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def smaller_first(a, i, b, j):
    """The smaller value with its index; NaN beats numbers, the lower index wins ties."""
    a_nan = a != a
    b_nan = b != b
    first = tl.where(a_nan == b_nan, (a < b) | (((a == b) | a_nan) & (i < j)), a_nan)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def reduce_argmax(x, index, axis: tl.constexpr, keep: tl.constexpr):
    """Index of the first maximum, or of the first NaN."""
    _, best = tl.reduce((x, index), axis, larger_first, keep_dims=keep)
    return best.to(tl.int64)


@triton.jit
def reduce_argmin(x, index, axis: tl.constexpr, keep: tl.constexpr):
    """Index of the first minimum, or of the first NaN."""
    _, best = tl.reduce((x, index), axis, smaller_first, keep_dims=keep)
    return best.to(tl.int64)


@triton.jit
def welford_combine(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Mean, sum of squared deviations and count of two groups together (Chan, Golub, LeVeque 1979)."""
    n = n_a + n_b
    share = tl.where(n == 0.0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def welford_reduce(mean, m2, count, axis: tl.constexpr, keep: tl.constexpr):
    """Combine per-lane (mean, m2, count) into (mean, m2)."""
    mean, m2, _ = tl.reduce((mean, m2, count), axis, welford_combine, keep_dims=keep)
    return mean, m2


# A block of which ``fold`` elements share a lane: these are in one thread's registers, so nothing is exchanged.


@triton.jit
def fold_sum(x, fold: tl.constexpr):
    """Each lane's sum."""
    return tl.sum(tl.reshape(x, [fold, x.shape[0] // fold]), 0)


@triton.jit
def fold_max(x, fold: tl.constexpr):
    """Each lane's maximum; NaN if any is."""
    return tl.reduce(tl.reshape(x, [fold, x.shape[0] // fold]), 0, maximum)


@triton.jit
def fold_min(x, fold: tl.constexpr):
    """Each lane's minimum; NaN if any is."""
    return tl.reduce(tl.reshape(x, [fold, x.shape[0] // fold]), 0, minimum)


@triton.jit
def welford_step_folded(mean, m2, n, x, fold: tl.constexpr):
    """``fold`` more elements into each lane's mean, sum of squared deviations and count (Chan, Golub, LeVeque 1979)."""
    x = tl.reshape(x, [fold, mean.shape[0]])
    middle = tl.sum(x, 0) * (1.0 / fold)
    off = x - middle[None, :]
    share = fold / (n + fold)
    delta = middle - mean
    return mean + delta * share, m2 + tl.sum(off * off, 0) + delta * delta * n * share, n + fold


@triton.jit
def welford_step_masked(mean, m2, n, x, mask, fold: tl.constexpr):
    """As ``welford_step_folded`` of the elements where ``mask`` is true; the count becomes one of each lane."""
    count = tl.sum(tl.reshape(mask.to(x.dtype), [fold, mean.shape[0]]), 0)
    middle = tl.sum(tl.reshape(tl.where(mask, x, 0.0), [fold, mean.shape[0]]), 0) / tl.maximum(count, 1.0)
    off = tl.where(tl.reshape(mask, [fold, mean.shape[0]]), tl.reshape(x, [fold, mean.shape[0]]) - middle[None, :], 0.0)
    share = count / tl.maximum(n + count, 1.0)
    delta = middle - mean
    return mean + delta * share, m2 + tl.sum(off * off, 0) + delta * delta * n * share, n + count


@triton.jit
def softmax_weight(distance):
    """e**distance for distances below a maximum; relative error |distance| * 2**-23, where the weight itself is e**distance."""
    if distance.dtype == tl.float64:
        return tl.exp(distance)
    else:
        return exp2_approx(distance * LOG2E, True)  # goes into a sum that is at least 1


# The lanes of a running softmax start at (the lowest finite number, 0): unlike that of -inf, its distance to -inf is no NaN. A
# lane that met only -inf still has the sum 0 at the end; any other lane's sum is at least 1, for its maximum.


@triton.jit
def softmax_step(m, s, x):
    """One more ``x`` into lanes of (maximum, sum of e**(x - maximum)): one exponential, as one of the two terms is e**0."""
    weight = softmax_weight(-tl.abs(x - m))
    s = tl.where(x > m, tl.fma(s, weight, 1.0), s + weight)
    return maximum(m, x), s


@triton.jit
def softmax_step_folded(m, s, x, fold: tl.constexpr):
    """A block of ``fold`` elements a lane: one maximum for all of them, and one exponential each besides the lane's own."""
    x = tl.reshape(x, [fold, m.shape[0]])
    top = maximum(m, tl.reduce(x, 0, maximum))
    terms = tl.sum(softmax_weight(x - top[None, :]), 0)
    return top, tl.fma(s, softmax_weight(m - top), terms)


@triton.jit
def softmax_reduce(m, s, axis: tl.constexpr, keep: tl.constexpr):
    """Combine lanes of (maximum, sum). All -inf: (-inf, 0). A +inf anywhere: (inf, nan), as inf - inf is."""
    m = tl.where(s == 0.0, float("-inf"), m)
    top = tl.reduce(m, axis, maximum, keep_dims=True)
    scale = tl.where(m == top, 1.0, exp(m - top))
    highest = tl.reduce(m, axis, maximum, keep_dims=keep)
    total = tl.sum(s * scale, axis, keep_dims=keep)
    return highest, tl.where(highest == float("inf"), float("nan"), total)


# programs that share a row -------------------------------------------------------------------------------------------------

ONE_BY_ONE = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # the interpreter runs no two programs at once


@triton.jit
def clear(spare, row, part):
    """Counters for the next launch: a row's first program sets back its semaphore."""
    tl.store(spare + row, 0, mask=part == 0)


@triton.jit
def meet(semaphore, arrivals):
    """Arrive, and wait until there have been ``arrivals``: what others stored before they arrived can be read from here on."""
    tl.debug_barrier()
    seen = tl.atomic_add(semaphore, 1, sem="acq_rel") + 1
    if not ONE_BY_ONE:
        while seen < arrivals:
            seen = tl.atomic_add(semaphore, 0, sem="acquire")
        tl.debug_barrier()


@triton.jit
def welford_of_parts(mean, m2, count, total):
    """Mean and sum of squared deviations of ``total`` elements from those of its parts (Chan, Golub, LeVeque 1983)."""
    whole = tl.sum(mean * count, 0) / total
    off = tl.where(count > 0.0, mean - whole, 0.0)
    return whole, tl.sum(m2, 0) + tl.sum(off * off * count, 0)
