"""Losses whose target is only compared: it gets no gradient, and alone makes no result require grad."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinycompile

pytestmark = pytest.mark.cpu

LOSSES: dict[str, tuple[int, Any]] = {
    "hinge": (1, lambda x, t: F.hinge_embedding_loss(x, t)),
    "hinge of each": (1, lambda x, t: F.hinge_embedding_loss(x, t, reduction="none")),
    "torch's hinge": (1, lambda x, t: torch.hinge_embedding_loss(x, t, 1.0, 1)),
    "cosine": (2, lambda x, y, t: F.cosine_embedding_loss(x, y, t[:, 0])),
    "torch's cosine": (2, lambda x, y, t: torch.cosine_embedding_loss(x, y, t[:, 0], 0.0, 1)),
}
CASES = [(name, flags) for name, (count, _) in LOSSES.items() for flags in itertools.product((False, True), repeat=count + 1)]


def outcome(fn: Any, flags: tuple[bool, ...], ours: bool = False) -> Any:
    torch.manual_seed(0)
    given = [torch.rand(3, 4, dtype=torch.float64) for _ in flags]
    given[-1] = torch.where(given[-1] > 0.5, 1.0, -1.0)
    leaves: list[Any] = [
        (tinycompile.from_torch(t) if ours else t).requires_grad_(f) for t, f in zip(given, flags, strict=True)
    ]
    result = fn(*leaves)
    if not result.requires_grad:
        return result, False
    result.sum().backward()
    grads = [t.grad for t in leaves]
    return result.detach(), True, [g.torch() if isinstance(g, tinycompile.Tensor) else g for g in grads]


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_as_eager(name: str, flags: tuple[bool, ...]) -> None:
    fn = LOSSES[name][1]
    value, follows, *grads = outcome(fn, flags)
    for found in (outcome(tinycompile.compile(fn), flags), outcome(fn, flags, ours=True)):
        assert found[1] == follows
        torch.testing.assert_close(getattr(found[0], "torch", lambda f=found: f[0])(), value)
        for mine, theirs in zip(*found[2:], *grads, strict=True) if follows else ():
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                torch.testing.assert_close(mine, theirs)
