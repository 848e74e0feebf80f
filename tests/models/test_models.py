"""Unmodified models in one graph, as good as eager: forward, and gradients of all parameters and inputs.

By default each is compiled with gradients in float32, and some without in bfloat16. TINYCOMPILE_TESTS=full: all of it.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch

import tinycompile
from tests.models.zoo import MODELS, Model, assert_as_good, outcome, wide, widened

pytestmark = pytest.mark.cpu
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
DRAWS = 3
HALVES = ("gpt", "llama", "resnet_training")  # in bfloat16 by default
CASES = [
    pytest.param(m, dtype, gradients, id=f"{m.name}-{str(dtype)[6:]}-{'gradients' if gradients else 'forward'}")
    for m in MODELS
    for dtype in (torch.float32, torch.bfloat16)
    for gradients in (False, True)
    if FULL or (not m.wide_only and gradients == (dtype is torch.float32) and (gradients or m.name in HALVES))
]


@pytest.mark.parametrize("model,dtype,gradients", CASES)
def test_model(model: Model, dtype: torch.dtype, gradients: bool) -> None:
    module = model.make().to(dtype).train(model.training)
    exact, eager = wide(module), copy.deepcopy(module)
    compiled = tinycompile.compile(module, fullgraph=True)
    got, want, true = [], [], []
    for _ in range(DRAWS):
        inputs = model.inputs(dtype)
        got.append(outcome(module, compiled, inputs, gradients))
        want.append(outcome(eager, eager, inputs, gradients))
        true.append(outcome(exact, exact, tuple(widened(x) for x in inputs), gradients))
    assert_as_good(got, want, true)
    assert compiled.compiled.cache_info()["entries"] == 1
