"""``tensor_split`` and its kin at changing sizes: compiled once for each remainder, or for each way in which indices fall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tests.capture.corpus import r

pytestmark = pytest.mark.pure

Tensor = torch.Tensor
SPLITS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "into two": (lambda x: x.tensor_split(2, 1), 3),
    "into three": (lambda x: torch.tensor_split(x, 3, dim=-1), 4),
    "at an index": (lambda x: x.tensor_split([2], 1), 2),
    "at indices from the end": (lambda x: torch.tensor_split(x, (1, -2), 1), 2),
    "at indices beyond": (lambda x: x.tensor_split((3, 100), 1), 2),
    "at a half": (lambda x: x.tensor_split((x.shape[1] // 2,), dim=1), 2),
    "before the last": (lambda x: x.tensor_split([x.shape[0] - 1], 0), 2),
    "hsplit": (lambda x: x.hsplit([2]), 2),
    "hsplit at a half": (lambda x: torch.hsplit(x, [x.shape[1] // 2, x.shape[1]]), 2),
    "vsplit": (lambda x: torch.vsplit(x, (1, 2)), 2),
    "rows in two": (lambda x: x.T.reshape(-1, 2).hsplit(2), 2),
}
SIZES = [(4, 6), (6, 7), (8, 9), (10, 12), (12, 15), (14, 20)]


def grown(fn: Callable[[Tensor], Any], size: tuple[int, int], grad: bool) -> list[Tensor]:
    x = r(*size).requires_grad_(grad)
    parts = list(fn(x))
    if grad:
        torch.autograd.backward([(p * (i + 2)).sum() for i, p in enumerate(parts)])
        parts.append(x.grad)
    return parts


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", SPLITS)
def test_splits(name: str, grad: bool, backend: str) -> None:
    fn, most = SPLITS[name]
    compiled = tinycompile.compile(fn, backend=backend)
    for size in SIZES:
        got, want = grown(compiled, size, grad), grown(fn, size, grad)
        assert [(t.shape, t.stride(), t.storage_offset()) for t in got] == [
            (t.shape, t.stride(), t.storage_offset()) for t in want
        ]
        assert all(map(torch.equal, got, want))
    assert len(compiled._entries) <= most and not compiled.breaks, compiled.recompiles


@pytest.mark.parametrize("at", [(2,), (5, 3), (-1, -3), (7,), (0, 4), (-9, 2)])
def test_where_indices_fall(at: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the end, before the start and back again, at each size."""
    monkeypatch.setattr(tinycompile.config, "recompile_limit", 20)
    fn: Callable[[Tensor], Any] = lambda x: [p + 1 for p in x.tensor_split(at)]
    compiled = tinycompile.compile(fn, backend="eager")
    for size in (4, 3, 5, 2, 1, 0, 6, 9, 8):
        for got, want in zip(compiled(r(size)), fn(r(size)), strict=True):
            assert torch.equal(got, want)


def test_what_does_not_divide_is_refused() -> None:
    compiled = tinycompile.compile(lambda x: x.hsplit(2), backend="eager")
    for size in (4, 6, 8, 10):
        assert [p.tolist() for p in compiled(r(size))] == [p.tolist() for p in r(size).hsplit(2)]
    with pytest.raises(RuntimeError, match="not divisible by the split_size"):
        compiled(r(5))
