"""Graphs over a CPU and a card: both parts are compiled, and answers are eager's."""

from __future__ import annotations

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.gpu


def across(x, w, scale):
    y = torch.relu(x) * 2 + 1
    there = y.to("cuda")
    h = torch.tanh(there @ w) * scale + 1
    back = h.sum(1).cpu()
    return h, torch.exp(-back) + y.mean(1), there[:, 1:].relu() + 1


@pytest.mark.parametrize("grad", [False, True])
def test_both_parts_are_compiled(grad: bool) -> None:
    f = tinycompile.compile(across, fullgraph=True)
    scale = torch.tensor(1.5)  # a CPU scalar among CUDA tensors
    for rows in (8, 12, 20):
        x, w = torch.randn(rows, 16, requires_grad=grad), torch.randn(16, 4, device="cuda", requires_grad=grad)
        got, want = f(x, w, scale), across(x, w, scale)
        for a, b in zip(got, want, strict=True):
            assert (a.device, a.dtype, a.shape, a.stride(), a.requires_grad) == (b.device, b.dtype, b.shape, b.stride(), grad)
            torch.testing.assert_close(a, b)
        if grad:
            mine, theirs = (torch.autograd.grad(sum(t.sum().cpu() for t in r), (x, w)) for r in (got, want))
            torch.testing.assert_close(mine, theirs)
    assert {k.language for k in f.kernels} == {"cpp", "triton"}


def test_a_part_of_a_regions_result_may_begin_anywhere() -> None:
    def f(x):
        a = (x + 1)[1:]
        there = a.cpu() * 2
        return torch.sin(a) + 1, there + 1

    compiled, x = tinycompile.compile(f), torch.randn(1001, device="cuda")
    for got, want in zip(compiled(x), f(x), strict=True):
        torch.testing.assert_close(got, want)
