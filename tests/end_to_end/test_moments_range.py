"""Moments of values near the ends of float32's range, in C++: torch accumulates them in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

DATA = {
    "sum beyond": lambda: torch.full((6, 500), 3e38),
    "both signs": lambda: torch.cat([torch.full((6, 250), 3e38), torch.full((6, 250), -3e38)], 1),
    "squares beyond": lambda: torch.randn(6, 500) * 1e30,
    "sum of squares beyond": lambda: torch.randn(6, 500) * 1e18 + 1e19,
    "subnormal": lambda: torch.randn(6, 500) * 1e-41,
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
@pytest.mark.parametrize("fn", [torch.var_mean, torch.std_mean])
def test_as_torch(fn: Callable[..., tuple[torch.Tensor, torch.Tensor]], dim: int, data: str) -> None:
    torch.manual_seed(0)
    x = DATA[data]()
    got, want = tinycompile.compile(lambda v: fn(v, dim), backend="cpp")(x), fn(x, dim)
    for g, w, exact in zip(got, want, fn(x.double(), dim), strict=True):
        assert torch.equal(g.isinf(), w.isinf()) and torch.equal(g.isnan(), w.isnan())
        keep = w.isfinite()
        allowed = 2 * (w - exact)[keep].abs().max() if keep.any() else 0
        ulp = torch.finfo(torch.float32).eps * exact[keep].abs().max() if keep.any() else 0
        ulp += 2**-50 * x.abs().max().double()  # of the judge itself, where what it adds cancels
        assert ((g - exact)[keep].abs() <= allowed + ulp).all()


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_equal_elements_are_their_own_mean(dtype: torch.dtype, backend: str) -> None:
    """An ulp of the mean is 300 of what is divided by the root of a variance of 1e-5."""
    xs = [torch.full((2, n), value, dtype=dtype) for n in (3, 5, 7, 13, 100) for value in (0.1, 1 / 3)]

    def fn(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        normalised = [torch.nn.functional.layer_norm(x, x.shape[-1:]) for x in xs]
        return [*normalised, *(y for x in xs for y in (torch.var_mean(x, 1)[1] - x[:, 0], torch.var(x, 1)))]

    assert all(not y.any() for y in tinycompile.compile(fn, backend=backend, fullgraph=True, dynamic=False)(xs))
