"""Gradients of each example's own where there is no batching rule: torch's functions without a record, or without our formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls")]

# Of torch's functions without a record, or without a formula of ours; beside a path that has one.
WITHOUT_A_RULE: dict[str, Callable[[Any], Any]] = {
    "det": lambda x: torch.linalg.det(x) + x.sum(),
    "kthvalue": lambda x: torch.kthvalue(x, 2).values.sum() + x.prod(),
    "inv, twice": lambda x: torch.linalg.inv(torch.linalg.inv(x) @ x + x).sum() * x.sum(),
    "a method": lambda x: x.median() * x.sum(),
    "sort": lambda x: (x.sort(0)[0] * x).sum(),
    "complex between": lambda x: torch.fft.rfft(x).abs().sum() + x.sum(),
    "keywords": lambda x: (torch.renorm(x, p=2, dim=0, maxnorm=1.0) * x).sum(),
    "complex results": lambda x: torch.linalg.eigvals(x).abs().sum(),
}
SQUARES = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 2 * torch.eye(3).double()


@pytest.mark.parametrize("name", WITHOUT_A_RULE)
@pytest.mark.parametrize("what", ["gradients", "gradients of gradients", "in two vmaps", "from outside"])
def test_gradients_without_a_batching_rule(name: str, what: str) -> None:
    fn = WITHOUT_A_RULE[name]

    def made(vmap: Any, g: Any, xs: Any) -> Any:
        if what == "gradients":
            return vmap(g.grad(fn))(xs)
        if what == "gradients of gradients":
            return vmap(g.grad(lambda x: (g.grad(fn)(x) ** 2).sum()))(xs)
        if what == "in two vmaps":
            return vmap(lambda s: vmap(g.grad(lambda x: fn(x * s)))(xs))(xs[:, 0, 0])
        return g.grad(lambda xs: (vmap(fn)(xs) ** 2).sum())(xs)

    if name.startswith("complex") and what != "from outside":
        with pytest.raises(NotImplementedError, match="does not differentiate complex tensors"):
            made(tc.vmap, tc.func, from_torch(SQUARES))
        return
    torch.testing.assert_close(made(tc.vmap, tc.func, from_torch(SQUARES)).torch(), made(torch.vmap, torch.func, SQUARES))
