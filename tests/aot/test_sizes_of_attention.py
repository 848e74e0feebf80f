"""Attention with gradients is compiled once for all widths, heads and lengths; so is the variance that is divided by a fraction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore:.*degrees of freedom")]

CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": attention,
    "causal": lambda q, k, v: attention(q, k, v, is_causal=True),
    "masked": lambda q, k, v: attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1)),
    "scaled": lambda q, k, v: attention(q, k, v, scale=0.3),
    "of examples": lambda q, k, v: attention(q[:, 0], k[:, 0], v[:, 0]),
    "other width": lambda q, k, v: attention(q, k, v[..., 1:]),
    "turned": lambda q, k, v: attention(q.mT.contiguous().mT, k, v),
}
PLAIN = ("of examples", "other width", "turned")
SIZES = [(2, 3, 5, 7, 8), (3, 4, 6, 9, 16), (4, 2, 9, 11, 24), (5, 6, 8, 13, 33), (3, 7, 21, 4, 12)]


def inputs(batch: int, heads: int, length: int, keys: int, width: int) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, n, width, dtype=torch.float64, requires_grad=True) for n in (length, keys, keys)]


def gradients(fn: Callable[..., torch.Tensor], given: Any, twice: bool) -> list[torch.Tensor]:
    result = fn(*given)
    first = torch.autograd.grad(result.square().sum(), given, create_graph=twice)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), given) if twice else ()  # type: ignore[arg-type]
    return [t.detach() for t in (result, *first, *second)]


@pytest.mark.parametrize("name", CALLS)
def test_one_compile_serves_all_sizes(name: str) -> None:
    call = CALLS[name]
    compiled = CompiledFunction(lambda q, k, v: call(q, k, v), Options(backend="aot_eager", dynamic=True, fullgraph=True))
    twice = name in PLAIN  # torch's fused kernels have no second derivative
    for sizes in SIZES:
        given = inputs(*sizes)
        for got, want in zip(gradients(compiled, given, twice), gradients(call, given, twice), strict=True):
            torch.testing.assert_close(got, want)
    assert compiled.cache_info()["entries"] == 1, compiled.recompiles


@pytest.mark.parametrize("correction", [0.5, 1.0, 2])
def test_variances(correction: float) -> None:
    compiled = CompiledFunction(lambda x: x.var(1, correction=correction), Options(dynamic=True, fullgraph=True))
    for rows, columns in ((3, 4), (5, 7), (9, 6), (4, 30)):
        x = torch.randn(rows, columns, dtype=torch.float64, requires_grad=True)
        got, want = (torch.autograd.grad(f(x).square().sum(), x) for f in (compiled, lambda x: x.var(1, correction=correction)))
        torch.testing.assert_close(got, want, equal_nan=True)
    assert compiled.cache_info()["entries"] == 1
