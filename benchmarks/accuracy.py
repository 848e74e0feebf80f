"""Each result against float64: the error may be twice eager's and one ulp, as a norm over the tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Verdict:
    """``worst``: the largest error over what is allowed; at most 1 is right. ``error``: the largest error, relative to the
    largest expected magnitude. ``problem``: why there is no number."""

    worst: float
    error: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether the result may stand."""
        return not self.problem and self.worst <= 1.0


def judge(got: Sequence[Tensor], eager: Sequence[Tensor], expected: Sequence[Tensor]) -> Verdict:
    """Compare results with eager's in shape, stride and dtype, and with float64 in value."""
    if len(got) != len(eager):
        return Verdict(float("inf"), float("inf"), f"{len(got)} results, eager has {len(eager)}")
    worst = error = 0.0
    for i, (ours, theirs, true) in enumerate(zip(got, eager, expected, strict=True)):
        for what in ("shape", "dtype", "device"):
            if getattr(ours, what) != getattr(theirs, what):
                return Verdict(
                    float("inf"), float("inf"), f"result {i}: {what} {getattr(ours, what)}, eager {getattr(theirs, what)}"
                )
        if not ours.dtype.is_floating_point:
            if not torch.equal(ours, theirs):
                return Verdict(float("inf"), float("inf"), f"result {i}: {ours.dtype} values differ from eager's")
            continue
        slack = 8 if ours.dtype is torch.float64 else 1  # what it is compared with has a rounding of its own
        for norm in (_largest, _rms):
            mine, allowed = _error(ours, true, norm), 2 * _error(theirs, true, norm) + slack * torch.finfo(ours.dtype).eps
            error = max(error, mine)
            worst = max(worst, mine / allowed if mine == mine else float("inf"))
    return Verdict(worst, error)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax()


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def _error(got: Tensor, true: Tensor, norm: Norm) -> float:
    scale = norm(true)
    return float(norm(got.double() - true) / scale) if float(scale) else float(norm(got.double()))
