"""Programs that share rows on a real card: right, the same bits every time, on several streams at once, in CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.gpu


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 3, -1)


def channels(x: Tensor) -> Tensor:
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = x.var((0, 2, 3), unbiased=False, keepdim=True)
    return torch.relu((x - mean) * torch.rsqrt(variance + 1e-5))


CASES = [(softmax, (60, 65537)), (softmax, (1, 262144)), (softmax, (97, 131072)), (channels, (31, 67, 57, 55))]


@pytest.mark.parametrize("mode", ["default", "max-autotune", "reduce-overhead"])
@pytest.mark.parametrize(("fn", "shape"), CASES)
def test_right_and_deterministic(fn: object, shape: tuple[int, ...], mode: str) -> None:
    assert callable(fn)
    x = torch.randn(shape, device="cuda")
    compiled = tinycompile.compile(fn, mode=mode)
    with torch.no_grad():
        first = compiled(x)
        torch.testing.assert_close(first.double(), fn(x.double()), atol=2e-6, rtol=1e-5)
        for _ in range(20):
            assert torch.equal(compiled(x), first)
    assert "meet(" in compiled.kernels[0].source


def test_on_several_streams_at_once() -> None:
    compiled = tinycompile.compile(softmax)
    inputs = [torch.randn(200, 100000, device="cuda") for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in inputs]
    expected = [compiled(x) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(5):
        got = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                got.append(compiled(x))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
