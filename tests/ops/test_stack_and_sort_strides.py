"""Layouts that the fuzzer found wrong: ``stack`` is a ``cat`` whose dim is split, ``sort`` keeps the strides of dims of 1."""

from __future__ import annotations

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

STACKED = {
    "channels_last": torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels_last of one": torch.zeros(1, 3, 1, 5).contiguous(memory_format=torch.channels_last),
    "transposed": torch.zeros(2, 3, 5).transpose(1, 2),
    "strided": torch.zeros(12).as_strided((1, 2, 6), (12, 1, 2)),
    "scalar": torch.zeros(()),
    "empty": torch.zeros(0),
}
SORTED = [((4, 1), (1, 4)), ((4, 1), (1, 1)), ((2, 4, 1), (4, 1, 4)), ((1, 3), (7, 1)), ((3, 4), (1, 3))]


@pytest.mark.parametrize("name", STACKED)
def test_stack(name: str) -> None:
    x = STACKED[name]
    for dim in range(x.dim() + 1):
        for y in (x, x.clone(memory_format=torch.contiguous_format)):
            want = torch.stack([x, y], dim)
            got = tinycompile.compile(lambda a, b, d=dim: torch.stack([a, b], d), backend="aot_eager")(x, y)
            assert (got.shape, got.stride()) == (want.shape, want.stride()), dim


@pytest.mark.parametrize(("shape", "strides"), SORTED)
def test_sort(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x = torch.zeros(16).as_strided(shape, strides)
    got = tinycompile.compile(lambda a: (a.sort(0)[0], a.msort(), a.argsort(-1)), backend="aot_eager")(x)
    assert [g.stride() for g in got] == [w.stride() for w in (x.sort(0)[0], x.msort(), x.argsort(-1))]
