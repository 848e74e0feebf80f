"""Sums in a loop that chooses between values of the same elements: GCC 13 with AVX2 and AVX-512 made the sums conditional, too, and
read their totals from beyond where they lie. GCC 12 does not, so these pass with it whatever the flags are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tinycompile
from tests.codegen.cpp.harness import made_for

pytestmark = pytest.mark.cpu

LENGTHS = (15, 16, 17, 33, 64, 100)
CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": torch.sign,
    "gelu": torch.nn.functional.gelu,
    "clamp": lambda x: x.clamp(min=-1),
    "where": lambda x: torch.where(x < 0, torch.where(x > -1, x, 1), -x),
    "sign and clamp": lambda x: x.sign() + (x + 0).clamp(min=-1),
    "sign and gelu": lambda x: x.sign() * torch.nn.functional.gelu(x.tril()),
}


def program(xs: list[Tensor]) -> list[Tensor]:
    """What is chosen, and sums of the same elements and of what was made of them."""
    values = []
    for x, choose in zip(xs, [c for c in CHOICES.values() for _ in LENGTHS], strict=True):
        y = choose(x)
        values += [y, x.double().to(x.dtype).sum((0, -1)), (x + 0).mean(), (y + 0).sum()]
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sums_are_whole(dtype: torch.dtype) -> None:
    """Eighths, so that every sum of ``x`` is exact."""
    fresh = torch.Generator().manual_seed(0)
    xs = [(torch.randint(-16, 17, (1, n), generator=fresh) / 8).to(dtype) for _ in CHOICES for n in LENGTHS]
    for compiled, eager in zip(tinycompile.compile(program, fullgraph=True)(xs), program(xs), strict=True):
        torch.testing.assert_close(compiled, eager)


def found(x0: Tensor, x1: Tensor) -> tuple[Tensor, ...]:
    """The random program in which it showed, whole: what is left out of it changes what the compiler makes of the loop."""
    v0 = x1.sign()
    v1 = x0.sort(1)[0]
    v2 = torch.sin(x0)
    v4 = x1.double().to(x1.dtype)
    v5 = v4.tril()
    v6 = v4.sum((0, -1))
    v7 = v6.flatten()
    v8 = v4 + 0
    v8.clamp_(min=-1)
    v9 = torch.nn.functional.gelu(v5)
    v10 = v9 + 0
    v10.sub_(v10.roll(1, 0))
    v11 = v6.norm(dim=0)
    v12 = v9 // (v6.abs() + 1)
    v13 = torch.rsqrt(v12.abs() + 1)
    v14 = v10.gather(1, v10.argsort(1))
    v15 = v10.mean()
    v16 = torch.where(v13 > v14, v13, v14 * 0.5)
    return v0, v1, v2, v7, v8, v11, v15, v16


@pytest.mark.parametrize("vector", [32, 64])
def test_the_program_that_showed_it(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made_for(monkeypatch, vector=vector)
    x0, x1 = torch.arange(33, dtype=torch.uint8)[None] % 9, torch.randint(-16, 17, (1, 33)) / 8
    for got, want in zip(tinycompile.compile(found, fullgraph=True)(x0, x1), found(x0, x1), strict=True):
        torch.testing.assert_close(got, want)
