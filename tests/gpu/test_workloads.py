"""The issue's functions on a real card: right, and launched the fast way."""

from __future__ import annotations

import pytest
import torch

import tinycompile
from tests.end_to_end.judge import assert_as_good_as_eager
from tests.end_to_end.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.gpu

each = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)


@each
def test_as_good_as_eager(workload: Workload) -> None:
    inputs = [x.cuda() for x in workload.inputs()]
    f = tinycompile.compile(workload.fn, fullgraph=True)
    assert_as_good_as_eager(f, workload.fn, inputs)
    assert len(f.kernels) <= workload.kernels


@each
def test_symbolic_sizes(workload: Workload) -> None:
    f = tinycompile.compile(workload.fn, fullgraph=True, dynamic=True)
    assert_as_good_as_eager(f, workload.fn, [x.cuda() for x in workload.inputs()])


def test_a_side_stream() -> None:
    f = tinycompile.compile(lambda x: x * 2 + 1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(50):
            x = torch.randn(1 << 20, device="cuda")
            assert torch.equal(f(x), x * 2 + 1)


def test_unaligned_input() -> None:
    f = tinycompile.compile(lambda x: x * 2 + 1)
    base = torch.randn(4097, device="cuda")
    for x in (base[:4096], base[1:]):
        assert torch.equal(f(x), x * 2 + 1)
