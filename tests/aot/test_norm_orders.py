"""The gradient of ``vector_norm`` of every order, with and without zeros, beside torch's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

ORDERS = (0.5, 1, 1.5, 2, 3, 4, 6, -1, -2, math.inf, -math.inf)
DIMS: tuple[Any, ...] = (None, 1)


def sample(zeros: str, dtype: torch.dtype) -> torch.Tensor:
    """Zeros: none, some, whole rows and columns, or nothing else."""
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(len(zeros)), dtype=dtype)
    if zeros == "some":
        x[1, 2] = x[3, 0] = 0
    if zeros == "rows":
        x[1] = 0
        x[:, 3] = 0
    return x.zero_() if zeros == "all" else x


def norms(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    every = ((order, dim) for order in ORDERS for dim in DIMS)
    return [torch.linalg.vector_norm(x, order, dim) for x, (order, dim) in zip(xs, every, strict=True)]


def gradients(fn: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    xs = [x.clone().requires_grad_() for _ in range(len(ORDERS) * len(DIMS))]
    return torch.autograd.grad(sum((y.cumsum(-1) if y.dim() else y).sum() for y in fn(xs)), xs)


@pytest.mark.parametrize(("dtype", "backend"), [(torch.float32, "cpp"), (torch.float64, "aot_eager")], ids=str)
def test_as_torch(dtype: torch.dtype, backend: str) -> None:
    """Twice torch's own error and an ulp; NaN and infinity where torch has them."""
    f = tinycompile.compile(norms, fullgraph=True, backend=backend)
    for zeros in ("none", "some", "rows", "all"):
        x = sample(zeros, dtype)
        cases = zip(gradients(f, x), gradients(norms, x), gradients(norms, x.double()), strict=True)
        for at, (got, want, exact) in enumerate(cases):
            where = (zeros, ORDERS[at // len(DIMS)], DIMS[at % len(DIMS)])
            plain = want.isfinite()
            assert torch.equal(got[~plain].nan_to_num(7), want[~plain].nan_to_num(7)), where
            error, eager = ((t.double() - exact)[plain].abs().max() if plain.any() else 0 for t in (got, want))
            size = exact[plain].abs().max() if plain.any() else 0
            assert error <= 2 * eager + torch.finfo(dtype).eps * size * (1 if dtype == torch.float32 else 16), where


def second_derivatives(fn: Any, x: torch.Tensor, ours: bool = False) -> list[torch.Tensor]:
    """Of the square of the gradient, a norm at a time."""
    grad = tinycompile.autograd.grad if ours else torch.autograd.grad
    every = [x.clone() for _ in range(len(ORDERS) * len(DIMS))]
    xs: Any = [(tinycompile.from_torch(x) if ours else x).requires_grad_() for x in every]
    first = grad(sum((y * 1.5).sum() for y in fn(xs)), xs, create_graph=True)
    found = [grad((g * g).sum(), x, retain_graph=True)[0] for g, x in zip(first, xs, strict=True)]
    return [t.torch() if ours else t for t in found]


@pytest.mark.parametrize("zeros", ["none", "some", "rows", "all"])
@pytest.mark.parametrize("backend", ["tape", None, "aot_eager"])
def test_second_derivatives(backend: Any, zeros: str) -> None:
    x = sample(zeros, torch.float64)
    expected = second_derivatives(norms, x)
    on_tape = backend == "tape"
    fn = norms if on_tape else tinycompile.compile(norms, fullgraph=True, backend=backend)
    torch.testing.assert_close(second_derivatives(fn, x, on_tape), expected, equal_nan=True)


def test_a_count_has_no_gradient() -> None:
    def count(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x, 0)

    x = torch.randn(5, requires_grad=True)
    for fn in (count, tinycompile.compile(count, fullgraph=True)):
        with pytest.raises(RuntimeError, match="appears to not have been used"):
            torch.autograd.grad(fn(x), x)
