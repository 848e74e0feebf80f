"""Random numbers drawn in kernels on a GPU: what decides them, their distribution, and replays of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.gpu

DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3) + 1,
    "rand_like": lambda x: x * 0 + torch.rand_like(x),
    "randn_like": lambda x: x * 0 + torch.randn_like(x),
    "half": lambda x: F.dropout(x.bfloat16(), 0.3),
    "double": lambda x: torch.randn_like(x, dtype=torch.float64),
}


@pytest.mark.parametrize("name", DRAWING)
def test_the_seed_decides_and_one_kernel_draws(name: str) -> None:
    f = tinycompile.compile(DRAWING[name], fullgraph=True)
    x = torch.ones(1024, 513, device="cuda")
    torch.manual_seed(1)
    first, second = f(x), f(x)
    torch.manual_seed(1)
    assert torch.equal(f(x), first) and not torch.equal(first, second)
    assert len(f.kernels) == 1


def test_distributions() -> None:
    x = torch.ones(1 << 22, device="cuda")
    error = 5 / x.numel() ** 0.5
    uniform = tinycompile.compile(DRAWING["rand_like"])(x).double()
    assert abs(uniform.mean() - 0.5) < error and abs(uniform.std() - 12**-0.5) < error
    assert uniform.min() >= 0 and uniform.max() < 1
    normal = tinycompile.compile(DRAWING["randn_like"])(x).double()
    assert abs(normal.mean()) < error and abs(normal.std() - 1) < error and abs((normal**3).mean()) < 4 * error
    kept = tinycompile.compile(lambda x: F.dropout(x, 0.3))(x)
    assert abs((kept == 0).double().mean() - 0.3) < error


def test_a_backward_draws_the_same_noise() -> None:
    f = tinycompile.compile(lambda x: F.dropout(torch.sin(x), 0.5) * 2, fullgraph=True)
    x = torch.randn(256, 300, device="cuda", requires_grad=True)
    y = f(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y != 0, 4 * torch.cos(x), 0.0).detach())


def test_replays_of_a_graph_draw_anew() -> None:
    f = tinycompile.compile(DRAWING["dropout"], fullgraph=True, mode="reduce-overhead")
    x = torch.ones(64, 64, device="cuda")
    found = [f(x).clone() for _ in range(6)]
    assert all(not torch.equal(a, b) for a, b in zip(found, found[1:], strict=False))
