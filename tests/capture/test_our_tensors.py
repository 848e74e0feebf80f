"""Capture of functions called with ``tinycompile.Tensor``: the same records, and results of the same class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tinycompile.capture.frame import capture
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ir.interpreter import run_graph

pytestmark = pytest.mark.pure


def test_ours_in_ours_out():
    def f(x, y):
        h = F.gelu(x + 1) * y.sum(1, keepdim=True)
        return h, x, h.shape[0], [h.t()]

    x, y = from_torch(torch.randn(4, 8)), from_torch(torch.randn(4, 8))
    captured = capture(f, (x, y), {})
    assert captured.graph is not None, str(captured.breaks[0])
    assert captured.guard(x, y)
    assert all(isinstance(t, torch.Tensor) for t in captured.example_inputs)
    run = captured.bind(lambda *a: run_graph(captured.graph, a))
    got, want = run(x, y), f(x, y)
    assert type(got[0]) is Tensor and got[1] is x and got[2] == 4 and type(got[3][0]) is Tensor
    torch.testing.assert_close(got[0].torch(), want[0].torch())


@pytest.mark.parametrize(
    "other", [torch.zeros(3), torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2]], ids=["size", "dtype", "stride"]
)
def test_signature(other):
    captured = capture(lambda x: x + 1, (from_torch(torch.zeros(4)),), {})
    assert captured.guard(from_torch(torch.ones(4)))
    assert not captured.guard(from_torch(other)) and not captured.guard(torch.zeros(4))
    assert not capture(lambda x: x + 1, (torch.zeros(4),), {}).guard(from_torch(torch.zeros(4)))
