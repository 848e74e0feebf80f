"""What a program may give when each of its ops keeps the contract and no more: a Monte Carlo of rounding errors.

The contract allows an op twice eager's error and an ulp of its largest value. A program of forty ops may be further off where
eager is exact by luck, and where a float decides something discrete (a comparison, an argmax, the rounding to a half type). So
eager runs the program again and again, and after every op whose result isn't determined to the last bit an error of the
allowed size is added, at random. Nothing is added to what IEEE 754 determines (+ - * /, casts, comparisons, choices): compiled
code must have those bits. Half types are the exception: between two ops a kernel holds float32, so their arithmetic is rounded
up or down by chance. The sign of a zero that is the greater or lesser of +0 and -0 is eager's position in its vector loop: it
is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.opinfo_judge import Call, leaves, run

RUNS = 24

# Overload packets whose results IEEE 754 (or no arithmetic at all) determines. Views say so themselves.
_DETERMINED = frozenset((
    "abs", "add", "sub", "rsub", "mul", "div", "neg", "sqrt", "sign", "floor", "ceil", "trunc", "round", "frac", "clamp",
    "clamp_min", "clamp_max", "where", "relu", "threshold", "fmod", "remainder", "floor_divide", "maximum", "minimum", "fmax",
    "fmin", "amax", "amin", "max", "min", "aminmax", "cummax", "cummin", "argmax", "argmin", "argsort", "sort", "eq", "ne",
    "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_not", "isnan", "isfinite",
    "any", "all", "count_nonzero", "_to_copy", "clone", "copy_", "empty_like", "zeros_like", "ones_like", "full_like", "full",
    "arange", "lift_fresh", "lift_fresh_copy", "cat", "stack", "index", "index_select", "gather", "scatter", "flip", "roll",
    "repeat", "constant_pad_nd", "masked_fill", "tril", "triu", "fill_", "fill", "zero_", "leaky_relu", "reciprocal",
    "_unsafe_view",
))  # fmt: skip
# Those of them whose result a half type rounds.
_ROUNDED = frozenset(("add", "sub", "rsub", "mul", "div", "sqrt", "reciprocal", "remainder", "fmod", "frac", "leaky_relu"))
_HALVES = (torch.bfloat16, torch.float16)
_EITHER_ZERO = frozenset(("maximum", "minimum", "fmax", "fmin", "amax", "amin", "max", "min", "aminmax", "cummax", "cummin"))


class Noise(TorchDispatchMode):
    """Adds to each op's result what the contract allows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), func._schema.name.partition("::")[2]
        if name in _EITHER_ZERO:
            return self._each(result, self._zeros)
        exact = name in _DETERMINED or name.removesuffix("_") in _DETERMINED
        if func._schema.is_mutable or _is_view(func) or (exact and not (name in _ROUNDED and _is_half(result))):
            return result
        given = Call(tuple(args), dict(kwargs))
        single = func(*(call := given.mapped(_single)).args, **call.kwargs)  # halves' arithmetic is float32's
        double = func(*(call := given.wide()).args, **call.kwargs)
        places = iter(zip(leaves(double), leaves(single), strict=True))
        most = max((t.numel() for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)), default=1)
        return self._each(result, lambda t: self._moved(t, *next(places), most))

    def _each(self, result: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(self._each(r, fn) for r in result)
        return fn(result) if isinstance(result, torch.Tensor) else result

    def _moved(self, t: torch.Tensor, double: torch.Tensor, single: torch.Tensor, most: int) -> torch.Tensor:
        """``most``: elements of the largest argument. Nothing tells float64's own error: it is taken from the bound of a sum in
        order, an ulp for each element that a result is made of (Higham, Accuracy and Stability, 4.2)."""
        if not t.is_floating_point() or not t.numel():
            return t
        arithmetic = torch.float64 if t.dtype == torch.float64 else torch.float32
        error = (single.double() - double.double()).abs()
        exact = double.double().abs()
        size: Any = 2 * _finite(error) + torch.finfo(arithmetic).eps * max(_finite(exact), torch.finfo(arithmetic).tiny)
        if t.dtype == torch.float64:
            size *= max(most / t.numel(), 1)
        if t.dtype in _HALVES:
            size = size + torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1] - 2) * torch.finfo(t.dtype).eps
        noise = (torch.rand(t.shape, generator=self.draw, dtype=torch.float64) * 2 - 1) * size
        moved = (double.double() + noise).to(t.dtype)
        nothing = (exact <= size) & (torch.rand(t.shape, generator=self.draw) < 0.5)  # zero is within the error, and special
        moved = torch.where(nothing | ((t == 0) & (exact == 0)), torch.zeros_like(moved), moved)
        return torch.where(t.isfinite(), moved, t).as_strided(t.shape, t.stride()) if t.is_contiguous() else t.copy_(moved)

    def _zeros(self, t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        signs = torch.randint(0, 2, t.shape, generator=self.draw).to(t.dtype) - 0.5
        return torch.where(t == 0, torch.copysign(torch.zeros_like(t), signs), t)


def _finite(x: torch.Tensor) -> float:
    x = x[x.isfinite()]
    return x.max().item() if x.numel() else 0.0


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)


def excused(program: Callable[..., Any], call: Call, got: Any, want: Any) -> bool:
    """Whether ``got`` differs from eager's ``want`` only as runs with allowed errors do: floats normwise by at most twice their
    greatest error, what is discrete (integers, bools, NaN, infinity, the sign of zero) where one of them differs too."""
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
    if not want.is_floating_point():
        return not bool((_differs(got, want) & ~torch.stack([_differs(n, want) for n in noisy]).any(0)).any())
    plain = got.isfinite() & want.isfinite() & double.isfinite() & torch.stack([n.isfinite() for n in noisy]).all(0)
    moved = torch.stack([_differs(n, want) for n in noisy]).any(0)
    if bool((_differs(got, want) & ~moved & (~plain | ((got == 0) & (want == 0)))).any()):
        return False
    exact = (want if want.dtype == torch.float64 else double).double()
    errors = [torch.where(plain, t.double() - exact, 0.0) for t in (got, want, *noisy)]
    ulp = torch.finfo(want.dtype).eps * max(_finite(exact.abs()), torch.finfo(want.dtype).tiny)
    for norm in (lambda e: e.abs().max().item(), lambda e: e.square().mean().sqrt().item()):
        ours, *theirs = (norm(e) for e in errors)
        if ours > 2 * max(theirs) + ulp:
            return False
    return True


def _differs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors have not the same bits (NaNs are one)."""
    same = (a == b) | ((a != a) & (b != b))
    return ~(same & (torch.signbit(a) == torch.signbit(b)) | ((a != a) & (b != b))) if a.is_floating_point() else ~same


def _is_half(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.dtype in _HALVES


def _single(t: Any) -> Any:
    if isinstance(t, torch.dtype):
        return torch.float32 if t in _HALVES else t
    return t.float() if t.dtype in _HALVES else t
