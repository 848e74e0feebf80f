"""How many kernels backward graphs cost, on an H100's plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.aot.test_partition import joint_of, leaf
from tinycompile.aot.partition import partition
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.target import H100
from tinycompile.compiler import generate
from tinycompile.report import library_calls

pytestmark = pytest.mark.pure


@dataclass(frozen=True)
class Backward:
    """``kernels``, ``externs``: the most that the backward may cost. A column sum over many rows is two kernels."""

    name: str
    fn: Any
    inputs: Any
    kernels: int
    externs: int = 0


CASES = (
    Backward("gelu", lambda x: F.gelu(x), lambda: (leaf(2048, 512),), 1),
    Backward("swiglu", lambda a, b: F.silu(a) * b, lambda: (leaf(2048, 512), leaf(2048, 512)), 1),
    Backward("softmax", lambda x: torch.softmax(x, -1), lambda: (leaf(2048, 512),), 1),
    Backward("log_softmax", lambda x: torch.log_softmax(x, -1), lambda: (leaf(2048, 512),), 1),
    Backward(
        "cross_entropy", lambda x, t: F.cross_entropy(x, t), lambda: (leaf(2048, 1000), torch.randint(0, 1000, (2048,))), 1
    ),
    Backward("layer_norm", lambda x, w, b: F.layer_norm(x, (512,), w, b), lambda: (leaf(2048, 512), leaf(512), leaf(512)), 3),
    Backward("rms_norm", lambda x, w: F.rms_norm(x, (512,), w), lambda: (leaf(2048, 512), leaf(512)), 3),
    Backward("bias_gelu", lambda x, b: F.gelu(x + b), lambda: (leaf(2048, 512), leaf(512)), 2),
    Backward("dropout", lambda x: F.dropout(F.gelu(x), 0.1), lambda: (leaf(2048, 512),), 1),
    Backward(
        "mlp",
        lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c),
        lambda: (leaf(1024, 128), leaf(512, 128), leaf(512), leaf(128, 512), leaf(128)),
        4,
        4,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_backward_kernels(case: Backward) -> None:
    split = partition(joint_of(case.fn, *case.inputs()))
    plan, source = generate(split.backward, H100, Artifacts(), {})
    names = [k.nest.name for k in plan.kernels]
    assert len(names) <= case.kernels, names
    assert len(library_calls(source)) <= case.externs, library_calls(source)
