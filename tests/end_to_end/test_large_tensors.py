"""Beyond 2^31 elements: offsets in 64 bits. Memory is reserved and not touched, but for its two ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.target import A100, H100
from tinycompile.compiler import generate
from tinycompile.runtime.triton_build import compile_offline

pytestmark = pytest.mark.cpu

FAR = 2**31 + 64


@pytest.fixture
def far() -> torch.Tensor:
    """Two rows of eight bytes that lie more than 2^31 elements apart."""
    rows = torch.empty(FAR + 64, dtype=torch.int8).as_strided((2, 8), (FAR, 1))
    return rows.copy_(torch.arange(16, dtype=torch.int8).reshape(2, 8) - 5)


def reads(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
    row = (index > 3).long()
    return [
        x + 1, x.sum(0), x.sum(1), x.sum(), x.amax(0), x.argmax(1), x.flip(0), torch.cat([x, x], 1), x.t().contiguous(),
        x.gather(0, row.expand(2, 8)), x.index_select(0, row), x[row, index], x.float().softmax(0), x.cumsum(0), x[1, 2:],
        torch.where(x > 0, x, -x), x.float().var(0), torch.zeros(2, 8, dtype=torch.int8).index_add(0, row, x[row]),
    ]  # fmt: skip


def test_reads(far: torch.Tensor) -> None:
    index = torch.arange(8)
    f = tinycompile.compile(reads, fullgraph=True, backend="cpp")
    for got, want in zip(f(far, index), reads(far, index), strict=True):
        torch.testing.assert_close(got, want)


def test_writes(far: torch.Tensor) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[1].add_(1)
        return x + 0

    want = far.clone()
    write(want)
    got = tinycompile.compile(write, fullgraph=True, backend="cpp")(far)
    assert torch.equal(far, want) and torch.equal(got, want)


def test_small_after_large_and_large_after_small(far: torch.Tensor) -> None:
    """Symbolic strides: code for small tensors is not run on large ones."""
    f = tinycompile.compile(lambda x: x.sum(0) * 2, backend="cpp", dynamic=True)
    near = torch.arange(16, dtype=torch.int8).reshape(2, 8)
    for x in (near, far, near[:, ::2], far[:, ::2], far, near):
        assert torch.equal(f(x), x.sum(0) * 2)


MANY: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: x + 1,
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.reshape(-1, 2048).amax(1),
    "columns": lambda x: x.reshape(-1, 2048).sum(0),
    "transposed": lambda x: x.reshape(-1, 2048).t() * 2,
    "arange": lambda x: torch.arange(x.shape[0]) + x,
    "argmax": lambda x: x.argmax(),
}


@pytest.mark.parametrize("name", MANY)
def test_triton_counts_in_64_bits(name: str) -> None:
    """More elements than an int32 holds: only compiled, for both architectures."""
    x = torch.empty(2**31 + 2**21, dtype=torch.int8)
    graph = tinycompile.trace(MANY[name], x).graph
    for target, arch in ((A100, 80), (H100, 90)):
        _, source = generate(graph, target, Artifacts(), {})
        assert any("tl.int64" in k.text for k in source.kernels)
        for kernel in source.kernels:
            compile_offline(kernel, arch)


def test_triton_strides_in_64_bits(far: torch.Tensor) -> None:
    graph = tinycompile.trace(lambda x: x + 1, far).graph
    _, source = generate(graph, H100, Artifacts(), {})
    assert "tl.int64" in source.kernels[0].text
    near = torch.zeros(2, 8, dtype=torch.int8)
    _, source = generate(tinycompile.trace(lambda x: x + 1, near).graph, H100, Artifacts(), {})
    assert "tl.int64" not in source.kernels[0].text
