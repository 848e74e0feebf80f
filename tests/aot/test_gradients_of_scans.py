"""Gradients of scans and products at zeros, infinities and NaN are torch's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile import tinycompile

ROWS = torch.tensor([list(row) for row in itertools.product([0.0, 2.0, -1.5, math.inf, math.nan], repeat=4)])
SCANS: dict[str, Callable[[Any], Any]] = {
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod of columns": lambda x: x.t().cumprod(0),
    "cumprod of products": lambda x: (x * 2).cumprod(1)[:, 1:],
    "cumsum": lambda x: x.cumsum(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "cummin": lambda x: x.cummin(-1)[0],
    "prod": lambda x: x.prod(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
}


def _gradient(f: Callable[[Any], Any], dtype: torch.dtype, tangent: str) -> torch.Tensor:
    x = ROWS.to(dtype).requires_grad_()
    y = f(x)
    torch.manual_seed(1)
    given = {"ones": torch.ones_like(y), "some zeros": torch.rand(y.shape).gt(0.6).to(dtype), "any": torch.randn(y.shape)}
    return torch.autograd.grad(y, x, given[tangent].to(dtype))[0]


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize("name", SCANS)
def test_as_torch(name: str, backend: str | None) -> None:
    compiled = tinycompile(SCANS[name], backend=backend)
    for dtype, tangent in itertools.product((torch.float64, torch.float32), ("ones", "some zeros", "any")):
        expected = _gradient(SCANS[name], dtype, tangent)
        torch.testing.assert_close(_gradient(compiled, dtype, tangent), expected, equal_nan=True)


def test_the_backward_of_cumprod_takes_no_square_of_the_row() -> None:
    compiled = tinycompile(SCANS["cumprod"])
    compiled(torch.rand(2, 48, requires_grad=True)).sum().backward()
    assert "48, 48" not in compiled.source("backward")
