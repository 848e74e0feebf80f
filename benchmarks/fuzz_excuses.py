"""Whether a program's results differ from eager's only as the contract allows: as noisy runs of the program do.

What compiled code gives must lie in what these runs gave: no float further off than the worst of them (and an ulp), no integer
beyond their least and greatest at its place, and NaN or infinity only where one of them has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.fuzz_noise import Noise, finite
from benchmarks.fuzz_registers import Registers
from benchmarks.opinfo_judge import Call, leaves, run

RUNS = 32  # of each kind
STORED = (0.0, 0.5)


def excused(program: Callable[..., Any], call: Call, got: Any, want: Any) -> bool:
    """Whether ``got`` differs from eager's ``want`` only as runs with allowed errors do."""
    if isinstance(got, Exception) or isinstance(want, Exception):
        return False
    noisy = []
    for mode in (mode for seed in range(RUNS) for mode in (Noise(seed), Registers(seed, STORED[seed // 2 % 2]))):
        own = call.copy()
        with mode:
            noisy.append(list(leaves(run(program, own, 0))))
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
    ulp = torch.finfo(want.dtype).eps * max(finite(exact.abs()), torch.finfo(want.dtype).tiny)
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
