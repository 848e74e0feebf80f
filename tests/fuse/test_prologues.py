"""What is made in the kernel of the product that reads it: random programs of norms, streams and products of few rows, whose
plans are run step by step on numpy, with memory as planned.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tinycompile.ops  # noqa: F401  (fills OPS)
from tests.fuse.support import BF16, clone, run_plan, traced
from tinycompile.base.target import A100, H100, Target
from tinycompile.fuse.planner import plan as make_plan
from tinycompile.fuse.products import AGAIN
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.plan_text import print_plan
from tinycompile.ir.verify_plan import verify_plan

pytestmark = pytest.mark.pure

Pick = Callable[[int], int]
WIDTHS = (8, 24)


class RandomBlocks:
    """A function of rows and weights that is another for each ``pick``; a value is a tensor [rows, width] or a view of one."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.rows = (1, 3, 8)[pick(3)]
        self.plan = [(pick(10), pick(1 << 16), pick(1 << 16), pick(1 << 16)) for _ in range(3 + pick(8))]
        self.returned = [pick(len(self.plan)) for _ in range(pick(3))]
        self.args = [torch.randn(self.rows, w).to(BF16) for w in WIDTHS]
        self.args += [torch.randn(b, a).mul(0.3).to(BF16) for a in WIDTHS for b in WIDTHS]

    def __call__(self, *args: Tensor, noise: float = 0.0) -> tuple[Tensor, ...]:
        """``noise``: each value is off by up to this share of itself."""
        values, weights = [*args[:2]], args[2:]
        for kind, a, b, c in self.plan:
            x = values[-1 - min(a, b) % min(3, len(values))]
            made = self.one(kind, x, values, weights, c)
            values.append(made * (1 + noise * (2 * torch.rand(made.shape) - 1)) if noise else made)
        return (values[-1], *(values[2 + i] for i in self.returned))

    def judged(self) -> list[tuple[Tensor, float]]:
        """The results in float64, and by which norm they move where each value is rounded to bfloat16 (2**-9 of itself) at random:
        much, where a softmax is sharp."""
        args = [a.double() for a in self.args]
        exact = self(*args)
        draws = [self(*args, noise=2.0**-9) for _ in range(8)]
        return [(e, max(float((d[i] - e).norm()) for d in draws)) for i, e in enumerate(exact)]

    def one(self, kind: int, x: Tensor, values: list[Tensor], weights: tuple[Tensor, ...], c: int) -> Tensor:
        same = [v for v in values if v.shape == x.shape]
        width = x.shape[-1]
        if kind == 0:
            return F.rms_norm(x, (width,), weights[0][0].repeat(3)[:width])
        if kind == 1:
            return F.layer_norm(x, (width,))
        if kind == 2:
            return F.softmax(x.float(), -1).to(x.dtype)
        if kind == 3:
            return F.silu(x) * same[c % len(same)]
        if kind == 4:
            return x + same[c % len(same)]
        if kind == 5:
            return x - x.amax((-1,), keepdim=True)
        usable = [w for w in weights if w.shape[1] == width]
        out = F.linear(x, usable[c % len(usable)])
        return out if kind < 9 else out + F.gelu(out)


def compare(blocks: RandomBlocks, target: Target) -> int:
    """Plan, verify and run; how many products make their rows. Values that stay in registers are not rounded, so results are
    judged by what rounding does to them (of 400 seen, the largest was 2.7 times the noise)."""
    loops = traced(blocks, *blocks.args, products=True)
    plan = make_plan(loops, target)
    verify_plan(plan)
    want, got = run_loops(loops, clone(blocks.args)), run_plan(plan, clone(blocks.args))
    for (exact, noise), *found in zip(blocks.judged(), want, got, strict=True):
        for result in found:
            assert result.shape == exact.shape and (result.double() - exact).norm() <= 8 * noise, print_plan(plan)
    return sum(d.why == AGAIN for d in plan.decisions)


def test_random_blocks() -> None:
    made = 0
    for seed in range(150):
        torch.manual_seed(seed)
        made += compare(RandomBlocks(random.Random(seed).randrange), A100 if seed % 3 else H100)
    assert made >= 30


def test_hypothesis() -> None:
    """The same, drawn by hypothesis, which shrinks what fails."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies

    @hypothesis.settings(max_examples=40, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.data())
    def run(data: object) -> None:
        torch.manual_seed(0)
        compare(RandomBlocks(lambda n: data.draw(st.integers(0, n - 1))), H100)  # type: ignore[attr-defined]

    run()
