"""Modules whose parameters were given data of other sizes: torch's own refusal comes, and no word of a fault of ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tinycompile

pytestmark = pytest.mark.cpu

# What makes a module, which parameter or buffer is wrong, its sizes, and the input's.
MODULES: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...], tuple[int, ...]]] = {
    "linear weight": (lambda: nn.Linear(2, 2), "weight", (3, 2), (1, 2)),
    "linear bias": (lambda: nn.Linear(2, 2), "bias", (3,), (1, 2)),
    "linear bias of rows": (lambda: nn.Linear(2, 2), "bias", (5, 2), (2, 3, 2)),
    "linear bias that fits": (lambda: nn.Linear(2, 2), "bias", (1,), (1, 2)),
    "convolution bias": (lambda: nn.Conv2d(2, 4, 1), "bias", (3,), (1, 2, 3, 3)),
    "convolution weight": (lambda: nn.Conv1d(2, 4, 1), "weight", (3, 2, 1), (1, 2, 3)),
    "transposed bias": (lambda: nn.ConvTranspose2d(2, 4, 1), "bias", (3,), (1, 2, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), "weight", (3,), (1, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(4), "running_mean", (3,), (2, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), "bias", (3,), (2, 4)),
    "prelu": (lambda: nn.PReLU(2), "weight", (3,), (1, 2)),
}


@pytest.mark.parametrize("name", MODULES)
def test_torchs_refusal_comes_alone(name: str) -> None:
    make, attribute, sizes, given = MODULES[name]
    module = make()
    getattr(module, attribute).data = torch.zeros(sizes)
    said = []
    for run in (module, tinycompile.compile(module)):
        try:
            said.append(str(run(torch.ones(given)).shape))
        except RuntimeError as error:
            said.append(f"{type(error).__name__}: {error}")
    assert said[0] == said[1]
