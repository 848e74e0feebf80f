"""Gradients of results that are views with gaps, under sizes that change: tangents are read as the backward was planned for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.runtime.cpp_build import compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C++ compiler")]

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "behind": lambda x: (x * 2)[:, 1:],
    "before": lambda x: (x * 2)[:, :-1],
    "every second": lambda x: (x * 2)[:, ::2],
    "both dims": lambda x: (x * 2)[1:, 1:],
    "some": lambda x: x.exp().narrow(1, 1, 3),
    "transposed": lambda x: (x * 2).t()[1:],
    "diagonal": lambda x: (x * 2).diagonal(0, 0, 1),
    "unfold": lambda x: (x * 2).unfold(1, 3, 1),
    "half of a join": lambda x: torch.cat([x * 2, x * 3], 1)[:, 2:],
    "expanded": lambda x: (x * 2)[:, None].expand(-1, 3, -1),
    "softmax": lambda x: x.softmax(1)[:, 1:],
    "cumsum": lambda x: x.cumsum(1)[:, 1:],
    "norm": lambda x: F.layer_norm(x, x.shape[1:])[:, 1:],
    "product": lambda x: (x @ x.t())[:, 1:],
}


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("name", VIEWS)
def test_tangents_of_views_with_gaps(name: str, twice: bool) -> None:
    view = VIEWS[name]
    compiled = tinycompile.compile(lambda x: view(x))
    for size in (4, 5, 6, 9):
        x = torch.randn(4, size, dtype=torch.float64, requires_grad=True)
        weights = torch.randn_like(view(x)).detach()
        for given in (weights, weights.t().contiguous().t() if weights.dim() == 2 else weights):
            got, want = (_gradients(f, x, given, twice) for f in (compiled, view))
            for g, w in zip(got, want, strict=True):
                torch.testing.assert_close(g, w)


def _gradients(
    f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, given: torch.Tensor, twice: bool
) -> list[torch.Tensor]:
    first = torch.autograd.grad(f(x), x, given, create_graph=twice)[0]
    if not twice or not first.requires_grad:
        return [first.detach()]
    return [first.detach(), torch.autograd.grad((first * first).sum(), x)[0]]


@pytest.mark.parametrize("stop", [lambda n: slice(None, n), lambda n: slice(n, None)], ids=["to n", "from n"])
def test_tangents_of_slices_by_a_number_that_changes(stop: Callable[[int], slice]) -> None:
    compiled = tinycompile.compile(lambda x, n: (x * 2)[:, stop(n)])
    for n in (2, 3, 4):
        x = torch.ones(2, 7, requires_grad=True)
        compiled(x, n).sum().backward()
        want = torch.zeros(2, 7)
        want[:, stop(n)] = 2
        assert torch.equal(x.grad, want)
