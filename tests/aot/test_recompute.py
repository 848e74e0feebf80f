"""A memory budget for whole steps: less is held at a time as it falls, and the numbers stay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tinycompile
from tinycompile.aot.recompute import FENCE
from tinycompile.base.target import H100, Target
from tinycompile.fuse.deps import views_in
from tinycompile.fuse.planner import plan
from tinycompile.ir.graph import Graph
from tinycompile.ir.loops import ExternCall
from tinycompile.ir.plan import Alloc, Free, Plan
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import optimize

pytestmark = pytest.mark.cpu
CPU = Target("cpp", "x86-64-v3", 8, 1 << 20, vector=32)
BUDGETS = (1.0, 0.5, 0.0)


class Block(nn.Module):
    """A hidden layer four times as wide, a norm, and random numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(16) for _ in range(3)))


def one_batch(model: nn.Module, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def two_batches(model: nn.Module, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for part in x.chunk(2):
        loss = model(part).square().mean()
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


def trained(step: Callable[..., Any], budget: float, backend: Any = "aot_eager") -> tuple[list[torch.Tensor], Graph]:
    """Losses and parameters after two steps, and the graph."""
    run = tinycompile.compile(step, fullgraph=True, backend=backend, options={"activation_memory_budget": budget})
    torch.manual_seed(1)
    model = network()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(256, 16)
    losses = [run(model, optimizer, x).detach() for _ in range(2)]
    assert run.cache_info()["recompiles"] == 0
    return [*losses, *(p.detach() for p in model.parameters())], run._latest().compiled.graph


def peak(made: Plan) -> int:
    """The most bytes of buffers that are alive at a time, inputs aside. What the fence hands through is the same memory."""
    sizes = {b.name: int(b.meta.numel) * b.meta.dtype.itemsize for b in made.buffers}
    memory: dict[str, str] = {}
    names: dict[str, int] = {}
    live = most = 0
    for step in made.steps:
        if isinstance(step, Free):
            base = memory.get(step.buffer, "")
            if base:
                names[base] -= 1
                live -= 0 if names[base] else sizes[base]
            continue
        new = [(step.buffer, step.reuses)] if isinstance(step, Alloc) else []
        if isinstance(step, ExternCall):
            given = views_in(step.args) if step.target == FENCE else [None] * len(step.outputs)
            new = [(o, g) for o, g in zip(step.outputs, given, strict=True) if o is not None]
        for name, old in new:
            if old is None:
                memory[name], names[name] = name, 1
                live += sizes[name]
            elif old in memory:
                memory[name] = memory[old]
                names[memory[old]] += 0 if isinstance(step, Alloc) else 1
        most = max(most, live)
    return most


@pytest.mark.parametrize("step", [one_batch, two_batches], ids=lambda f: f.__name__)
def test_less_memory_and_the_same_numbers(step: Callable[..., Any]) -> None:
    found = [trained(step, budget) for budget in BUDGETS]
    for values, _ in found[1:]:
        torch.testing.assert_close(values, found[0][0], rtol=1e-5, atol=1e-6)
    for target in (CPU, H100):
        peaks = [peak(plan(lower(optimize(graph)), target)) for _, graph in found]
        assert all(b <= 1.01 * a for a, b in itertools.pairwise(peaks)) and peaks[-1] < 0.75 * peaks[0], peaks
    fences = [sum(n.target == FENCE for n in graph.nodes) for _, graph in found]
    assert fences == [0, *[2 if step is two_batches else 1] * 2]


def test_generated_code_gives_the_same_numbers() -> None:
    (whole, _), (less, _) = trained(one_batch, 1.0, None), trained(one_batch, 0.3, None)
    torch.testing.assert_close(less, whole, rtol=1e-5, atol=1e-6)


def test_random_numbers_are_those_of_the_forward() -> None:
    """With a dropout of ones and a loss that is linear, each gradient says which elements were kept."""

    def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x * w, 0.5)
        (y * torch.exp(y.detach())).sum().backward()
        return y

    for budget in (1.0, 0.0):
        run = tinycompile.compile(step, fullgraph=True, options={"activation_memory_budget": budget})
        w, x = torch.ones(256, requires_grad=True), torch.ones(256)
        y = run(w, x)
        assert torch.equal(y != 0, w.grad != 0) and 0 < int((y != 0).sum()) < 256


def test_what_is_dropped_is_computed_between_the_fence_and_its_use() -> None:
    _, graph = trained(one_batch, 0.3)
    names = [n.name for n in graph.nodes]
    again = [n for n in graph.nodes if n.name.rpartition("_again")[1]]
    fence = next(n for n in graph.nodes if n.target == FENCE)
    assert any(n.target in ("linear", "addmm", "mm") for n in again)
    assert all(names.index(n.name) > names.index(fence.name) for n in again)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, True, "0.5"])
def test_a_budget_is_a_share(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="activation_memory_budget"):
        tinycompile.compile(one_batch, options={"activation_memory_budget": wrong})
