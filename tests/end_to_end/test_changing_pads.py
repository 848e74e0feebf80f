"""Pads by amounts that change from call to call, with gradients; and complex numbers that kernels of torch's are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate", "constant"])
def test_gradients_of_pads(mode: str) -> None:
    def program(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
        return (F.pad(x * 2, (before, after), mode=mode) ** 2).cumsum(-1)

    def trained(fn: Any, x: torch.Tensor, *by: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().requires_grad_()
        result = fn(x, *by)
        return result.detach(), torch.autograd.grad(result.sum(), x)[0]

    compiled = CompiledFunction(program, Options(backend="cpp"))
    for size, before, after in ((7, 1, 1), (7, 2, 1), (9, 3, 2), (11, 0, 4), (8, 2, 2)):
        x = torch.linspace(-1, 1, 6 * size).view(2, 3, size)
        for a, b in zip(trained(compiled, x, before, after), trained(program, x, before, after), strict=True):
            torch.testing.assert_close(a, b)


def test_complex_numbers() -> None:
    def program(x: torch.Tensor) -> Any:
        spiral = torch.full((2,), complex(-0.0, float("inf"))), torch.tensor([1j, 2]), torch.tensor(3j)
        return *spiral, torch.full(x.shape, 1 + 2j) * x, x.new_full((1,), -1j, dtype=torch.complex64), x + 1

    for n in (3, 4):
        x = torch.linspace(0, 1, n)
        for a, b in zip(CompiledFunction(program, Options(backend="cpp"))(x), program(x), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
