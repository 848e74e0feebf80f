"""What is made like a tensor that requires grad does not require it: it has its shape alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "full_like": lambda w: torch.full_like(w, 2.0),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "new_zeros": lambda w: w.new_zeros(3),
    "new_ones": lambda w: w.new_ones(3),
    "new_full": lambda w: w.new_full((3,), 1.5),
    "new_empty": lambda w: w.new_empty(3),
    "detach": torch.Tensor.detach,
    "function of it": lambda w: torch.floor(w),
    "integers of it": lambda w: w.long(),
}


def test_requires_grad_is_eagers() -> None:
    def flags(w: torch.Tensor) -> list[bool]:
        return [make(w).requires_grad for make in MADE.values()]

    def fn(w: torch.Tensor) -> torch.Tensor:
        return w * sum(2**i for i, flag in enumerate(flags(w)) if flag)

    w = torch.ones(3, requires_grad=True)
    assert torch.equal(tinycompile.compile(fn, backend="eager")(w), fn(w))
