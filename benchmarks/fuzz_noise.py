"""What a program may give when each of its ops keeps the contract and no more: a Monte Carlo of rounding errors.

The contract allows an op twice eager's error and an ulp of its largest value. A program of forty ops may be further off where
eager is exact by luck, and where a float decides something discrete (a comparison, an argmax, the rounding to a half type). So
eager runs the program again and again, and after every op whose result isn't determined to the last bit an error of the
allowed size is added: all of it up or down in every second run, a part of it in the others. In the last runs results are one to
four ulps off, all up or all down, for a comparison may wait for a very number: a sigmoid that is 1.

* Nothing is added to what IEEE 754 determines (+ - * /, x*x, casts, comparisons, choices): compiled code must have those bits.
  Half types are the exception: between two ops a kernel holds float32, so their arithmetic is rounded up or down by chance, by
  no more than half an ulp of each element.
* A function of one element is moved by twice eager's error of that element and the ulps that its record states, each element by
  its own: a small result among large ones stays a good one.
* What sums elements is moved normwise: twice eager's greatest error and an ulp of the largest result. Nothing is more exact
  than doubles here: eager's error there is taken from what it usually is in single precision, and counted once more, for it
  is in what ours is compared with.
* An op in place is moved as its functional one is, where it wrote something else than was there.
* Zero is a special value, so it is tried where it lies within an element's error: in each such element by chance. One run has
  no errors, and zero wherever it may be: a row of equal elements, normalised, is 0 everywhere.
* The sign of a zero that is the greater or lesser of +0 and -0 is eager's position in its vector loop: it is drawn, where the
  arguments hold zeros of both signs. What is zero in eager and in float64 has the sign of either: a half's -0 may be -1e-9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.opinfo_judge import Call, leaves
from tinycompile.ops.record import OPS, Pointwise

NEIGHBOURS = 24  # the first of the runs in which floats are whole ulps off

# Overload packets whose results IEEE 754 (or no arithmetic at all) determines. Views say so themselves.
_DETERMINED = frozenset((
    "abs", "add", "sub", "rsub", "mul", "div", "neg", "sqrt", "square", "sign",
    "floor", "ceil", "trunc", "round", "frac", "clamp",
    "clamp_min", "clamp_max", "where", "relu", "threshold", "fmod", "remainder", "floor_divide", "maximum", "minimum", "fmax",
    "fmin", "amax", "amin", "max", "min", "aminmax", "cummax", "cummin", "argmax", "argmin", "argsort", "sort", "eq", "ne",
    "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_not", "isnan", "isfinite",
    "any", "all", "count_nonzero", "_to_copy", "clone", "copy_", "empty_like", "zeros_like", "ones_like", "full_like", "full",
    "arange", "lift_fresh", "lift_fresh_copy", "cat", "stack", "index", "index_select", "gather", "scatter", "flip", "roll",
    "repeat", "constant_pad_nd", "masked_fill", "tril", "triu", "fill_", "fill", "zero_", "leaky_relu", "reciprocal",
    "_unsafe_view",
))  # fmt: skip
# Those of them whose result a half type rounds.
_ROUNDED = frozenset(
    ("square", "add", "sub", "rsub", "mul", "div", "sqrt", "reciprocal", "remainder", "fmod", "frac", "leaky_relu")
)
HALVES = (torch.bfloat16, torch.float16)
_EITHER_ZERO = frozenset(("maximum", "minimum", "fmax", "fmin", "amax", "amin", "max", "min", "aminmax", "cummax", "cummin"))


class Noise(TorchDispatchMode):
    """Adds to each op's result what the contract allows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed)
        self.extreme, self.exact = seed % 2 == 0, seed == 1
        self.steps = 1 + (seed - NEIGHBOURS) // 2 if seed >= NEIGHBOURS else 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        given, in_place = Call(tuple(args), dict(kwargs)), func._schema.is_mutable
        given = given.copy() if in_place else given
        result, name = func(*args, **kwargs), func._schema.name.partition("::")[2]
        if name in _EITHER_ZERO:
            return self._each(result, self._zeros) if _has_both_zeros((args, kwargs)) else result
        plain = "square" if name.startswith("pow") and args[1:] == (2,) else name.removesuffix("_")
        exact = name in _DETERMINED or plain in _DETERMINED
        if is_view(func) or (exact and not (plain in _ROUNDED and is_half(result))):
            return result
        ulps = _ulps(plain)
        places = _exact_and_error(func, given, ulps is None)
        most = max((t.numel() for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)), default=1)
        if not in_place:
            return self._each(result, lambda t: self._moved(t, *next(places), most, ulps))
        moved = self._moved(result.clone(), *next(places), most, ulps)
        return result.copy_(torch.where(result == given.args[0], result, moved))

    def _each(self, result: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(self._each(r, fn) for r in result)
        return fn(result) if isinstance(result, torch.Tensor) else result

    def _moved(self, t: torch.Tensor, exact: torch.Tensor, error: torch.Tensor, most: int, ulps: float | None) -> torch.Tensor:
        """``most``: elements of the largest argument; ``ulps``: the bound of a function of one element."""
        if not t.is_floating_point() or not t.numel():
            return t
        size = _allowed_error(t, exact, error, most, ulps)
        drawn = torch.rand(t.shape, generator=self.draw, dtype=torch.float64) * 2 - 1
        share = 0.0 if self.exact else drawn.sign() if self.extreme else drawn
        moved = (exact + size * share).to(t.dtype)
        if self.steps and t.dtype not in HALVES:
            moved = nearest = exact.to(t.dtype)
            for _ in range(self.steps):
                beside = torch.nextafter(moved, torch.full_like(moved, torch.inf if self.extreme else -torch.inf))
                moved = torch.where((beside.double() - exact).abs() <= size, beside, nearest)
        nothing = (exact.abs() <= size) & (self.exact | (torch.rand(t.shape, generator=self.draw) < 0.5))
        signs = torch.where(torch.rand(t.shape, generator=self.draw) < 0.5, t, exact.to(t.dtype))
        moved = torch.where(nothing | ((t == 0) & (exact == 0)), torch.copysign(torch.zeros_like(t), signs), moved)
        return torch.where(t.isfinite(), moved, t).as_strided(t.shape, t.stride()) if t.is_contiguous() else t.copy_(moved)

    def _zeros(self, t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        signs = torch.randint(0, 2, t.shape, generator=self.draw).to(t.dtype) - 0.5
        return torch.where(t == 0, torch.copysign(torch.zeros_like(t), signs), t)


def _exact_and_error(func: Any, given: Call, sums: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each result in float64, and eager's error: a half's before it is rounded; for a double of what sums, its usual error."""
    doubles = _results(func, given.wide())
    if any(t.dtype == torch.float32 for t in doubles):  # which it makes of integers itself
        doubles = _results(func, given.mapped(_as_double))
    for i, (exact, eager) in enumerate(zip(doubles, _results(func, given.mapped(single)), strict=True)):
        if sums and eager.dtype == torch.float64:
            yield exact, torch.full_like(exact, _usual_error(func, given, i))
        else:
            yield exact.double(), _distance(exact, eager)


def _usual_error(func: Any, given: Call, at: int) -> float:
    """Half as much again as the error of result ``at`` in single precision, in units of double's: the middle one of eight calls
    whose floats are an ulp off, for one alone may be exact by luck."""
    errors = []
    for _ in range(8):
        near = given.narrow().near()
        errors.append(finite(_distance(_results(func, near.wide())[at], _results(func, near.mapped(single))[at])))
    return 1.5 * sorted(errors)[4] * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps


def _results(func: Any, call: Call) -> list[torch.Tensor]:
    """Of a call with tensors of its own, which an op in place may write to."""
    own = call.copy()
    return list(leaves(func(*own.args, **own.kwargs)))


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a.isfinite() & b.isfinite(), (a.double() - b.double()).abs(), 0.0)


def _allowed_error(t: torch.Tensor, exact: torch.Tensor, error: torch.Tensor, most: int, ulps: float | None) -> torch.Tensor:
    """How far each element may be moved. The error of a sum of doubles is at least that of a sum in order, an ulp for each
    element that a result is made of (Higham, Accuracy and Stability, 4.2)."""
    info = torch.finfo(torch.float64 if t.dtype == torch.float64 else torch.float32)
    if ulps is not None:
        size = 2 * error + ulps * info.eps * exact.abs().clamp(info.tiny, info.max)
    else:
        count = max(most / t.numel(), 1) if t.dtype == torch.float64 else 1
        size = torch.full_like(exact, 2 * finite(error) + info.eps * max(finite(exact.abs()), info.tiny) * count)
    if t.dtype in HALVES:  # half an ulp, which among subnormal numbers is that of the least normal one
        half = torch.finfo(t.dtype)
        size += torch.ldexp(torch.ones_like(exact), torch.frexp(exact.abs().clamp(half.tiny))[1] - 2) * half.eps
    return size


def _ulps(name: str) -> float | None:
    """What the record of a function of one element states; None for what is none."""
    op = OPS.get(name)
    return op.ulp if op is not None and isinstance(op.lowering, Pointwise) else None


def _has_both_zeros(value: Any) -> bool:
    """A zero of an integer or a bool becomes +0 where it meets a float."""
    zeros = [torch.signbit(t[t == 0]) for t in leaves(value) if isinstance(t, torch.Tensor)]
    return any(bool(z.any()) for z in zeros) and any(bool((~z).any()) for z in zeros)


def finite(x: torch.Tensor) -> float:
    x = x[x.isfinite()]
    return x.max().item() if x.numel() else 0.0


def is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def is_half(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.dtype in HALVES


def single(t: Any) -> Any:
    if isinstance(t, torch.dtype):
        return torch.float32 if t in HALVES else t
    return t.float() if t.dtype in HALVES else t


def _as_double(t: Any) -> Any:
    return t.double() if isinstance(t, torch.Tensor) else t
