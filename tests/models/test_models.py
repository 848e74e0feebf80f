"""Unmodified models in one graph, as good as eager: forward, and gradients of all parameters and inputs."""

from __future__ import annotations

import copy

import pytest
import torch

import tinycompile
from tests.models.zoo import MODELS, Model, assert_as_good, outcome, wide, widened

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_model(model: Model, dtype: torch.dtype, gradients: bool) -> None:
    module = model.make().to(dtype).train(model.training)
    inputs = model.inputs(dtype)
    exact = wide(module)
    eager = copy.deepcopy(module)
    compiled = tinycompile.compile(module, fullgraph=True)
    got = outcome(module, compiled, inputs, gradients)
    want = outcome(eager, eager, inputs, gradients)
    assert_as_good(got, want, outcome(exact, exact, tuple(widened(x) for x in inputs), gradients))
    assert compiled.compiled.cache_info()["entries"] == 1
