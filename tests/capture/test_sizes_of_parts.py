"""Pools to given sizes, ``interpolate``, ``split`` and ``chunk`` at changing sizes: compiled once, or once for each number of
parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tinycompile.api import CompiledFunction
from tinycompile.base.config import config
from tinycompile.options import Options

pytestmark = pytest.mark.cpu

Tensor = torch.Tensor
ONE, DIVIDES = 1, 4  # compiles; those of two sizes that either divide or don't
POOLS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "average of all": (lambda x: F.adaptive_avg_pool2d(x, 1), ONE),
    "average of a few": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), DIVIDES),
    "average of one dim": (lambda x: F.adaptive_avg_pool2d(x, (None, 1)), ONE),
    "maximum of all": (lambda x: F.adaptive_max_pool2d(x, 1), ONE),
    "maximum of a few": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), DIVIDES),
    "place of the maximum": (lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True), DIVIDES),
    "row average": (lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 5), 2),
    "area": (lambda x: F.interpolate(x, (3, 4), mode="area"), DIVIDES),
    "area at halves": (lambda x: F.interpolate(x, scale_factor=0.5, mode="area"), DIVIDES),
    "area at more": (lambda x: F.interpolate(x, scale_factor=1.5, mode="area"), DIVIDES),
    "area of sizes": (lambda x: F.interpolate(x, (x.shape[2] // 2, x.shape[3] // 3), mode="area"), DIVIDES),
    "three halves": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), ONE),
    "quarters": (lambda x: F.interpolate(x, scale_factor=(0.25, 1.25)), ONE),
    "transposed convolution": (lambda x: F.conv_transpose2d(x, x[0, :, None, :2, :3] * 0 + 1, stride=2, padding=1), ONE),
}
PARTS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "chunks": (lambda x: x.chunk(3, -1), 2),
    "two chunks": (lambda x: x.chunk(2, 2), 2),
    "split by a half": (lambda x: x.split(x.shape[3] // 2, 3), 2),
    "split by a third of what is joined": (lambda x: torch.cat([x, x, x], 1).split(x.shape[1], 1), ONE),
    "split by a size": (lambda x: x[:, :, :3].split(2, 2), ONE),
    "chunks by the letter": (lambda x: torch.split(x, -(-x.shape[3] // 3), dim=3), 2),
}
SIZES = [(2, 3, 8, 12), (3, 4, 9, 13), (4, 2, 12, 17), (2, 5, 16, 20), (5, 3, 11, 14), (3, 2, 14, 27)]


def grown(fn: Callable[[Tensor], Any], x: Tensor, grad: bool) -> list[Tensor]:
    x = x.clone().requires_grad_(grad)
    found = fn(x)
    parts = [found] if isinstance(found, Tensor) else list(found)
    if grad:
        torch.autograd.backward([(p * (i + 2)).sin().sum() for i, p in enumerate(parts) if p.is_floating_point()])
        assert x.grad is not None
        parts.append(x.grad)
    return parts


@pytest.mark.parametrize("backend", ["aot_eager", None], ids=["aot", "code"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", POOLS | PARTS)
def test_sizes(name: str, grad: bool, backend: str | None) -> None:
    fn, most = (POOLS | PARTS)[name]
    compiled = CompiledFunction(fn, Options(backend=backend, dynamic=True, fullgraph=True))
    for size in SIZES:
        x = torch.randn(size, dtype=torch.float64)
        for got, want in zip(grown(compiled, x, grad), grown(fn, x, grad), strict=True):
            torch.testing.assert_close(got, want, check_stride=True)
            assert got.storage_offset() == want.storage_offset()
    assert compiled.cache_info()["entries"] <= most, compiled.recompiles


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_numbers_of_parts(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of parts is compiled at most three times: where they are alike, where the last has one element, and else."""
    monkeypatch.setattr(config, "recompile_limit", 20)
    compiled = CompiledFunction(lambda x: x.split(step), Options(backend="eager", dynamic=True))
    for size in (2, 3, 4, 5, 6, 7, 8, 4, 7, 1, 0):
        x = torch.arange(size)
        assert [p.tolist() for p in compiled(x)] == [p.tolist() for p in x.split(step)]
    assert compiled.cache_info()["entries"] <= 2 + 3 * -(-8 // step)


def test_what_is_no_length_is_refused() -> None:
    compiled = CompiledFunction(lambda x, n: x.split(n - 5), Options(backend="eager", dynamic=True))
    assert len(compiled(torch.ones(6), 8)) == 2
    for n in (5, 3):
        with pytest.raises(RuntimeError, match="split"):
            compiled(torch.ones(6), n)
    assert len(compiled(torch.ones(9), 8)) == 3
