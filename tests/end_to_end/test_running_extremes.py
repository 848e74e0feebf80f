"""``cummax`` and ``cummin`` where elements are equal: the value is the one at the position, also of zeros' sign."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.cpu
NAN = float("nan")
ROWS = torch.tensor([[0.0, -0.0, 0.0, -1.0], [-0.0, 0.0, -0.0, 1.0], [2.0, 2.0, -0.0, 0.0], [NAN, -0.0, NAN, 0.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("fn", [torch.cummax, torch.cummin])
def test_ties(fn: Any, dim: int, dtype: torch.dtype) -> None:
    x = ROWS.to(dtype)
    got, want = tc.compile(lambda x: tuple(fn(x, dim)), fullgraph=True)(x), fn(x, dim)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(got[0]), torch.signbit(want[0])) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("fn", [torch.cummax, torch.cummin])
def test_the_gradient_goes_to_the_position(fn: Any) -> None:
    x, weights = ROWS.clone().requires_grad_(), torch.arange(16.0).reshape(4, 4)
    got, want = (
        torch.autograd.grad((f(x)[0] * weights).sum(), x)[0] for f in (tc.compile(lambda x: fn(x, 1)), lambda x: fn(x, 1))
    )
    assert torch.equal(got, want)
