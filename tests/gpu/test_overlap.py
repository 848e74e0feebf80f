"""Kernels that overlap in recorded graphs: the same bits as in default mode, whatever follows on what, over many replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from tinycompile.backends import cuda_target
from tinycompile.runtime import overlap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90"),
]


def of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").mul_(0.3).to(dtype)


def chain(x: Tensor, *weights: Tensor) -> Tensor:
    """Products of few rows, each on the one before, with norms between them."""
    for w in weights:
        x = F.layer_norm(F.silu(F.linear(x, w)) + x, (w.shape[0],))
    return x


def many_small(x: Tensor) -> Tensor:
    """Rows and columns in turns: each kernel reads what the one before wrote elsewhere."""
    for _ in range(5):
        x = torch.softmax(x * 1.5, 0)
        x = torch.softmax(x + 0.25, 1) * x.shape[1]
    return x


def mixed(x: Tensor, w: Tensor) -> Tensor:
    """Library calls between our kernels."""
    for _ in range(6):
        x = torch.tanh(torch.sort(x, -1).values) @ w
        x = x - x.mean(0)
    return x


def writes(x: Tensor, state: Tensor, count: Tensor) -> Tensor:
    """Inputs that are read by one kernel and written by the next."""
    total = (x * state).sum(0)
    state.mul_(0.5).add_(total)
    count.add_(1)
    state.sub_(state.amax())
    return (x + state).sum(1) * count


def shared_rows(x: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.softmax(x * 2, -1) * 100
    return x


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "chain": (chain, lambda: (of(8, 512), *(of(512, 512) for _ in range(12)))),
    "many small": (many_small, lambda: (of(257, 513, dtype=torch.float32),)),
    "large": (many_small, lambda: (of(4096, 2048, dtype=torch.float32),)),
    "mixed": (mixed, lambda: (of(64, 256), of(256, 256))),
    "writes": (writes, lambda: (of(300, 700, dtype=torch.float32), of(700, dtype=torch.float32), of(1, dtype=torch.float32))),
    "shared rows": (shared_rows, lambda: (of(3, 200000, dtype=torch.float32),)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_same_bits_as_in_order(name: str) -> None:
    fn, make = CASES[name]
    ordered, graphs = tinycompile.compile(fn), tinycompile.compile(fn, mode="reduce-overhead")
    fixed = make()
    with torch.no_grad():
        for step in range(40):
            fresh = make()[:1] + fixed[1:] if step % 3 else fixed
            theirs, ours = ([x.clone() for x in fresh[:3]] + list(fresh[3:]) for _ in range(2))
            expected, found = ordered(*theirs), graphs(*ours)
            assert torch.equal(found, expected), step
            assert all(map(torch.equal, ours, theirs))
    waits = {k.source.count("wait_for_previous()") for k in graphs.kernels}
    assert 0 in waits if name == "large" else waits == {1}, "kernels of many programs run in order: overlap costs them time"


def test_weights_that_change_between_replays() -> None:
    """Asked for early, they are read late: what a kernel right before the replay wrote counts."""
    x, weights = of(4, 512), [of(512, 512) for _ in range(8)]
    ordered, graphs = tinycompile.compile(chain), tinycompile.compile(chain, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(200):
            torch._foreach_mul_(weights, 0.99)
            found = graphs(x, *weights)
            assert torch.equal(found, ordered(x, *weights))


def test_this_card_can() -> None:
    assert overlap.possible(cuda_target(torch.cuda.current_device()))
