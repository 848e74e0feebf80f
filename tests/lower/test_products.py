"""What a library's product computes, as loops: of what the call is given, not of what that was copied from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile
from tests.fuse.support import BF16, clone, run_plan, traced
from tinycompile.base.target import H100
from tinycompile.fuse.planner import plan
from tinycompile.ir.loops import ExternCall, Load, Nest
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.verify_loops import VerifyError, verify_loops
from tinycompile.ir.verify_plan import verify_plan
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import optimize

pytestmark = pytest.mark.pure


def written(x: Tensor, w: Tensor) -> Tensor:
    """The copy that a reshape makes is older than what is written."""
    h = x.transpose(1, 2).reshape(8, 40)
    x.mul_(3)
    return F.linear(h, w)


def written_weights(x: Tensor, w: Tensor) -> Tensor:
    v = w.view(24, 8, 5).transpose(1, 2).reshape(24, 40)
    w.neg_()
    return F.linear(x.reshape(8, 40), v)


COPIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of an input that is written": written,
    "of weights that are written": written_weights,
    "of what a kernel made": lambda x, w: F.linear(F.relu(x).transpose(1, 2).reshape(8, 40), w),
    "with a view behind it": lambda x, w: w @ F.relu(x).transpose(1, 2).reshape(8, 40).t(),
    "of a copy": lambda x, w: F.linear(F.relu(x).transpose(1, 2).reshape(40, 8).t().reshape(8, 40).flip(0), w),
    "of an expanded row": lambda x, w: F.linear(F.relu(x[:1]).expand(8, 5, 8).transpose(1, 2).reshape(8, 40), w),
    "of the bias": lambda x, w: F.linear(x.reshape(8, 40), w, w[:6, :4].t().reshape(24)),
    "of many rows": lambda x, w: F.linear(F.relu(x).transpose(1, 2).repeat(20, 1, 1).transpose(0, 1).reshape(160, 40), w),
}


@pytest.mark.parametrize("contests", [False, True])
@pytest.mark.parametrize("what", COPIES)
def test_copies(what: str, contests: bool) -> None:
    x, w = torch.randn(8, 5, 8).to(BF16), torch.randn(24, 40).to(BF16)
    graph = tinycompile.trace(COPIES[what], *clone((x, w))).graph
    args = [{"x": x, "w": w}[p.name] for p in graph.placeholders]
    loops = lower(optimize(graph), products=True)
    verify_loops(loops)
    made = plan(loops, H100, contests)
    verify_plan(made)
    if not contests:
        (want, *_), (got, *_) = run_loops(loops, clone(args)), run_plan(made, clone(args))
        torch.testing.assert_close(got, want, rtol=2e-2, atol=0.1)
        torch.testing.assert_close(want, COPIES[what](*clone((x, w))), rtol=2e-2, atol=0.1)


def test_loops_that_read_something_else_are_refused() -> None:
    loops = traced(lambda x, w: F.linear(x, w), torch.randn(8, 40).to(BF16), torch.randn(24, 40).to(BF16), products=True)
    (call,) = (s for s in loops.steps if isinstance(s, ExternCall))
    assert call.body is not None
    view = call.args[0]
    broken = replace(call, args=(call.args[1], *call.args[1:]))
    with pytest.raises(VerifyError, match="is not given"):
        verify_loops(replace(loops, steps=(broken,)))
    assert any(isinstance(s, Load) and s.buffer == view.buffer for s in call.body.body) and isinstance(call.body, Nest)
