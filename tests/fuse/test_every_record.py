"""Every op record's first samples, through the passes, lowering and fusion: the plan's answer is the unfused program's."""

from __future__ import annotations

import pytest
import torch

import tinycompile.ops  # noqa: F401  (fills OPS)
from tests.fuse.support import CPU_TARGET, check
from tests.lower.support import bind_sample, graph_of_call, run_eager
from tinycompile.base.target import H100
from tinycompile.ir.effects import is_random
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Op, Sample
from tinycompile.passes.pipeline import optimize

pytestmark = pytest.mark.pure

SAMPLES = 2
UNINITIALISED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize"}


@pytest.mark.parametrize("name", sorted(set(OPS) - UNINITIALISED))
def test_record(name: str) -> None:
    for k, sample in enumerate(list(OPS[name].samples())[:SAMPLES]):
        try:
            _check(OPS[name], sample, k)
        except Exception as error:
            raise AssertionError(f"{name}: {sample}: {error}") from error


def _check(op: Op, sample: Sample, k: int) -> None:
    torch.manual_seed(0)
    args = bind_sample(op, sample)
    try:
        run_eager(op.eager, args)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return  # what torch refuses, the meta rule refuses: tests/ops
    graph, inputs = graph_of_call(op, args)
    if not any(is_random(n) for n in graph.nodes):
        check(lower(optimize(graph)), inputs, target=CPU_TARGET if k % 2 else H100, rounding=1e-4)
