"""Whole training steps of models, in one graph: five steps leave parameters as close to float64's as eager steps do."""

from __future__ import annotations

import copy
import functools
import os
from typing import Any

import pytest
import torch
from torch import nn

import tinycompile
from tests.models.zoo import MODELS, Model, tensors, wide, widened

pytestmark = pytest.mark.cpu
CHOSEN = [m for m in MODELS if m.name in ("gpt", "vit", "resnet_tiny", "resnet", "lstm", "llama")]
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"


def step(half: bool, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[Any, ...]) -> torch.Tensor:
    with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=half):
        outputs = model(*inputs)
    loss = sum(t.float().pow(2).mean() for t in tensors(outputs) if t.requires_grad)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def trained(call: Any, module: nn.Module, inputs: tuple[Any, ...], steps: int = 5) -> torch.Tensor:
    """All parameters after the steps, in float64."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(steps):
        call(module, optimizer, inputs)
    return torch.cat([p.detach().double().flatten() for p in module.parameters()])


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("model", CHOSEN if FULL else CHOSEN[:2], ids=lambda m: m.name)
def test_five_steps(model: Model, half: bool) -> None:
    torch.manual_seed(0)
    module, inputs = model.make().train(model.training), model.inputs(torch.float32)
    fn = functools.partial(step, half)
    start = torch.cat([p.detach().double().flatten() for p in module.parameters()])
    exact = trained(functools.partial(step, False), wide(module), widened(inputs))
    eager = trained(fn, copy.deepcopy(module), inputs)
    run = tinycompile.compile(step)
    ours = trained(functools.partial(run, half), copy.deepcopy(module), inputs)
    assert [str(b) for b in run.breaks] == [] and run.cache_info() | {"from_disk": 0} == {
        "entries": 1,
        "recompiles": 0,
        "from_disk": 0,
    }
    moved = (exact - start).norm()
    error, allowed = (ours - exact).norm() / moved, (eager - exact).norm() / moved
    assert error <= 2 * allowed + 1e-6, (float(error), float(allowed))
