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
* What sums elements is moved normwise: twice eager's greatest error and an ulp of the largest result.
* Zero is a special value, so it is tried where it lies within an element's error: in each such element by chance. One run has
  no errors, and zero wherever it may be: a row of equal elements, normalised, is 0 everywhere.
* The sign of a zero that is the greater or lesser of +0 and -0 is eager's position in its vector loop: it is drawn, where the
  arguments hold zeros of both signs.

What compiled code gives must lie in what these runs gave: no float further off than the worst of them (and an ulp), no integer
beyond their least and greatest at its place, and NaN or infinity only where one of them has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.opinfo_judge import Call, leaves, run
from tinycompile.ops.record import OPS, Pointwise

RUNS = 32
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
_HALVES = (torch.bfloat16, torch.float16)
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
        result, name = func(*args, **kwargs), func._schema.name.partition("::")[2]
        if name in _EITHER_ZERO:
            return self._each(result, self._zeros) if _has_both_zeros((args, kwargs)) else result
        plain = "square" if name.startswith("pow") and args[1:] == (2,) else name.removesuffix("_")
        exact = name in _DETERMINED or plain in _DETERMINED
        if func._schema.is_mutable or _is_view(func) or (exact and not (plain in _ROUNDED and _is_half(result))):
            return result
        given = Call(tuple(args), dict(kwargs))
        single = func(*(call := given.mapped(_single)).args, **call.kwargs)  # halves' arithmetic is float32's
        double = func(*(call := given.wide()).args, **call.kwargs)
        places = iter(zip(leaves(double), leaves(single), strict=True))
        most = max((t.numel() for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)), default=1)
        ulps = _ulps(plain)
        return self._each(result, lambda t: self._moved(t, *next(places), most, ulps))

    def _each(self, result: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(self._each(r, fn) for r in result)
        return fn(result) if isinstance(result, torch.Tensor) else result

    def _moved(
        self, t: torch.Tensor, double: torch.Tensor, single: torch.Tensor, most: int, ulps: float | None
    ) -> torch.Tensor:
        """``most``: elements of the largest argument; ``ulps``: the bound of a function of one element."""
        if not t.is_floating_point() or not t.numel():
            return t
        exact, size = double.double(), _allowed_error(t, double.double(), single.double(), most, ulps)
        drawn = torch.rand(t.shape, generator=self.draw, dtype=torch.float64) * 2 - 1
        share = 0.0 if self.exact else drawn.sign() if self.extreme else drawn
        moved = (exact + size * share).to(t.dtype)
        if self.steps and t.dtype not in _HALVES:
            moved = nearest = exact.to(t.dtype)
            for _ in range(self.steps):
                beside = torch.nextafter(moved, torch.full_like(moved, torch.inf if self.extreme else -torch.inf))
                moved = torch.where((beside.double() - exact).abs() <= size, beside, nearest)
        nothing = (exact.abs() <= size) & (self.exact | (torch.rand(t.shape, generator=self.draw) < 0.5))
        moved = torch.where(nothing | ((t == 0) & (exact == 0)), torch.copysign(torch.zeros_like(t), t), moved)
        return torch.where(t.isfinite(), moved, t).as_strided(t.shape, t.stride()) if t.is_contiguous() else t.copy_(moved)

    def _zeros(self, t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        signs = torch.randint(0, 2, t.shape, generator=self.draw).to(t.dtype) - 0.5
        return torch.where(t == 0, torch.copysign(torch.zeros_like(t), signs), t)


def _allowed_error(t: torch.Tensor, exact: torch.Tensor, single: torch.Tensor, most: int, ulps: float | None) -> torch.Tensor:
    """How far each element may be moved. Nothing tells float64's own error: of a sum it is taken from the bound of a sum in
    order, an ulp for each element that a result is made of (Higham, Accuracy and Stability, 4.2)."""
    info = torch.finfo(torch.float64 if t.dtype == torch.float64 else torch.float32)
    error = torch.where(exact.isfinite() & single.isfinite(), (single - exact).abs(), 0.0)
    if ulps is not None:
        size = 2 * error + ulps * info.eps * exact.abs().clamp(info.tiny, info.max)
    else:
        count = max(most / t.numel(), 1) if t.dtype == torch.float64 else 1
        whole = (2 * _finite(error) + info.eps * max(_finite(exact.abs()), info.tiny)) * count
        size = torch.full_like(exact, whole)
    if t.dtype in _HALVES:  # half an ulp, which among subnormal numbers is that of the least normal one
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


def _finite(x: torch.Tensor) -> float:
    x = x[x.isfinite()]
    return x.max().item() if x.numel() else 0.0


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)


def excused(program: Callable[..., Any], call: Call, got: Any, want: Any) -> bool:
    """Whether ``got`` differs from eager's ``want`` only as runs with allowed errors do."""
    if isinstance(got, Exception) or isinstance(want, Exception):
        return False
    noisy = []
    for seed in range(RUNS):
        with Noise(seed):
            noisy.append(list(leaves(run(program, call.copy(), seed))))
    double = list(leaves(run(program, call.wide().copy(), 0)))
    pairs = zip(leaves(got), leaves(want), strict=True)
    return all(_allowed(g, w, double[i], [n[i] for n in noisy]) for i, (g, w) in enumerate(pairs))


def _allowed(got: torch.Tensor, want: torch.Tensor, double: torch.Tensor, noisy: Sequence[torch.Tensor]) -> bool:
    """For one result."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    seen = torch.stack([want, *noisy])
    if not want.is_floating_point():
        return bool(((got >= seen.amin(0)) & (got <= seen.amax(0))).all())
    plain = got.isfinite() & seen.isfinite().all(0) & double.isfinite()
    alike = torch.stack([_same_kind(got, s) for s in seen]).any(0)
    if not bool(alike.all()):
        return False
    exact = (want if want.dtype == torch.float64 else double).double()
    errors = [torch.where(plain, t.double() - exact, 0.0) for t in (got, *seen)]
    ulp = torch.finfo(want.dtype).eps * max(_finite(exact.abs()), torch.finfo(want.dtype).tiny)
    for norm in (lambda e: e.abs().max().item(), lambda e: e.square().mean().sqrt().item()):
        ours, *theirs = (norm(e) for e in errors)
        if ours > max(theirs) + ulp:
            return False
    return True


def _same_kind(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors are both NaN, both the same infinity, both zero of one sign, or both other numbers; a number beside a
    zero is one kind with it, for the error tells whether it may be there."""
    both = a.isfinite() & b.isfinite()
    zeros = (a == 0) & (b == 0)
    return (both & (~zeros | (torch.signbit(a) == torch.signbit(b)))) | (a.isnan() & b.isnan()) | (a.isinf() & (a == b))


def _is_half(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.dtype in _HALVES


def _single(t: Any) -> Any:
    if isinstance(t, torch.dtype):
        return torch.float32 if t in _HALVES else t
    return t.float() if t.dtype in _HALVES else t
