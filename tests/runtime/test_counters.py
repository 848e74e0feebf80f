"""Every launch finds zeros, whichever kernel, stream and number of rows came before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tinycompile
from tinycompile.runtime.counters import LEAST, Counters

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def normalised(x: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def twice(x: Tensor) -> Tensor:
    top = x.amax(-1, keepdim=True)
    return (x - top) / (x - top).exp().sum(-1, keepdim=True)


def counters_of(fn: object) -> Counters:
    return fn.all_entries[0].compiled.call.__globals__["counters"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("fn", [softmax, normalised, twice])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_every_launch_finds_zeros(fn: object, rows: int) -> None:
    compiled = tinycompile.compile(fn)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for turn in range(6):
        x = torch.randn(rows, 70000, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[turn % 2]):
            got = compiled(x)
        torch.cuda.synchronize()
        torch.testing.assert_close(got, fn(x.double()).float(), rtol=2e-5, atol=2e-6)  # type: ignore[operator]
        sets = counters_of(compiled).held.values()
        assert sets and all(not int(s.ready.count_nonzero()) and not int(s.other[s.used :].count_nonzero()) for s in sets)
    assert len(counters_of(compiled).held) == 2


def test_fewer_rows_after_more() -> None:
    compiled = tinycompile.compile(softmax, dynamic=True)
    for rows in (130, 3, 130, 2, 2, 131, 5, 131):
        x = torch.randn(rows, 70000, device="cuda")
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1), rtol=2e-5, atol=1e-7)


def test_a_recorded_graph_has_its_own() -> None:
    compiled = tinycompile.compile(softmax, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(64, 70000, device="cuda")
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1), rtol=2e-5, atol=1e-7)


def test_two_sets_take_turns_and_grow() -> None:
    counters = Counters(0)
    first, _ = counters(3)
    second, spare = counters(3)
    assert first.numel() == LEAST and spare is first and second is not first
    first.fill_(1), first[3:].zero_()  # type: ignore[func-returns-value]  # as a launch leaves it
    first[:3] = 0  # what the second one cleared
    given, spare = counters(2)
    assert given is first and spare is second and not int(spare.count_nonzero())
    assert all(x.numel() == LEAST + 1 for x in counters(LEAST + 1))
