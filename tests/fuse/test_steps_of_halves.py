"""Functions with steps of half values that were never stored: comparisons, rounding, places of maxima, casts to integers. They
take what eager takes, the stored value, or a last digit would decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "eq": lambda y, x: y == x,
    "ne": lambda y, x: y != x,
    "lt": lambda y, x: y < x,
    "le": lambda y, x: y <= x,
    "gt": lambda y, x: y > x,
    "ge": lambda y, x: y >= 1.1,
    "isclose": lambda y, x: torch.isclose(y, x, rtol=0, atol=0),
    "where": lambda y, x: torch.where(torch.minimum(y, x) < y, x, y * 0.5),
    "floor": lambda y, x: y.floor(),
    "ceil": lambda y, x: y.ceil(),
    "trunc": lambda y, x: y.trunc(),
    "round": lambda y, x: y.round(),
    "fmod": lambda y, x: torch.fmod(y, 0.5),
    "remainder": lambda y, x: y % 0.5,
    "floor_divide": lambda y, x: y // 0.5,
    "argmax": lambda y, x: y.argmax(1),
    "argmin": lambda y, x: y.argmin(0),
    "max and its place": lambda y, x: y.max(1),
    "to int64": lambda y, x: y.to(torch.int64),
    "to uint8": lambda y, x: y.abs().to(torch.uint8),
    "any": lambda y, x: (y > x).any(1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_steps_take_what_is_stored(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a = (torch.randint(-40, 40, (16, 64)) / 8).to(dtype)
    b = torch.tensor([0.91, 1.1, 1.25, 0.333])[torch.arange(64) % 4].to(dtype)

    stored = a * b

    def f(a: torch.Tensor, b: torch.Tensor, stored: torch.Tensor) -> object:
        return STEPS[name](a * b, stored)

    got, want = tinycompile.compile(f, backend="cpp")(a, b, stored), f(a, b, stored)
    for g, w in zip(_tensors(got), _tensors(want), strict=True):
        assert torch.equal(g, w)


def _tensors(result: object) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)  # type: ignore[call-overload]
