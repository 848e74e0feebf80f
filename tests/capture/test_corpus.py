"""Every function of the corpus: one graph, the same answer as eager, and guards that hold for the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.corpus import CASES
from tinycompile.capture.captured import Captured
from tinycompile.capture.frame import capture
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.verify_graph import verify_graph

pytestmark = pytest.mark.pure


def same(got: Any, want: Any, at: str = "result") -> None:
    """Equal in type, structure, and to the bit (the graph calls the same kernels)."""
    assert type(got) is type(want), f"{at}: {type(got)} for {type(want)}"
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape, f"{at}: {got.dtype}{got.shape} for {want.dtype}{want.shape}"
        assert got.stride() == want.stride(), f"{at}: strides {got.stride()} for {want.stride()}"
        assert got.requires_grad == want.requires_grad, f"{at}: requires_grad"
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True, msg=lambda m: f"{at}: {m}")
    elif isinstance(want, dict):
        assert list(got) == list(want), at
        for k in want:
            same(got[k], want[k], f"{at}[{k!r}]")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), at
        for i, (g, w) in enumerate(zip(got, want)):
            same(g, w, f"{at}[{i}]")
    else:
        assert got == want, f"{at}: {got!r} for {want!r}"


def rebuilt(captured: Captured):
    return captured.bind(lambda *inputs: run_graph(captured.graph, inputs))


@pytest.mark.parametrize("name", list(CASES))
def test_captured_equals_eager(name):
    fn, args = CASES[name]
    captured = capture(fn, args(), {})
    assert captured.graph is not None, str(captured.breaks[0])
    verify_graph(captured.graph)
    compile(print_graph(captured.graph), name, "exec")
    given = args()
    if isinstance(given[0], torch.nn.Module) or all(type(a) in (torch.Tensor, int, float, str, bool) for a in given):
        assert captured.guard(*given), captured.explain_failure(given, {})
    run = rebuilt(captured)
    same(run(*given), fn(*given))
    same(run(*given), fn(*given))
