"""Horizontal fusion: alike loops over many tensors in one launch, in an order that dependences allow."""

from __future__ import annotations

import re

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu
SHAPES = [(10,), (30, 7), (5, 3, 3, 3), (4096,), (20, 33), ()]


def momentum(ps, gs, ms, ns):
    for p, g, m, n in zip(ps, gs, ms, ns, strict=True):
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1 / n)
        n.add_(1)


def tensors(shapes=SHAPES):
    torch.manual_seed(0)
    return [[torch.randn(s) for s in shapes] for _ in range(3)] + [[torch.tensor(1.0) for _ in shapes]]


@pytest.mark.parametrize("backend", [None, "triton"])
def test_an_update_of_many_tensors_is_few_launches(backend: str | None) -> None:
    compiled = tinycompile.compile(momentum, fullgraph=True, backend=backend)
    ours, theirs = tensors(), tensors()
    for _ in range(2):
        compiled(*ours)
        momentum(*theirs)
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y)
    assert len(compiled.kernels) <= 3
    assert "horizontal" in compiled.source("plan")


def test_more_than_one_launch_holds() -> None:
    shapes = [(k + 1,) for k in range(75)]
    compiled = tinycompile.compile(momentum, fullgraph=True)
    ours, theirs = tensors(shapes), tensors(shapes)
    compiled(*ours)
    momentum(*theirs)
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y)
    assert 75 // 32 + 1 <= len(compiled.kernels) <= 10


def test_other_dtypes_and_constants_are_not_alike() -> None:
    def f(a, b, c, d):
        a.mul_(2.0), b.mul_(2.0), c.mul_(3.0), d.mul_(2.0)

    compiled = tinycompile.compile(f, fullgraph=True)
    given = [torch.ones(5), torch.ones(9), torch.ones(5), torch.ones(7, dtype=torch.float64)]
    compiled(*given)
    assert [x[0].item() for x in given] == [2, 2, 3, 2]
    assert len(compiled.kernels) == 3


def test_chains_keep_their_order() -> None:
    """Two chains whose links are alike crosswise: putting both pairs together would make a cycle."""

    def f(a, b):
        x = (a * 2.0).sum() + a  # first kind, then a reduction
        y = (b + 1.0).sum() * b
        return (x + 1.0).sum() * x, (y * 2.0).sum() + y

    compiled = tinycompile.compile(f, fullgraph=True)
    a, b = torch.randn(40), torch.randn(50)
    for x, y in zip(compiled(a, b), f(a, b), strict=True):
        torch.testing.assert_close(x, y)


def test_an_update_that_reads_another_waits() -> None:
    def f(a, b, c):
        a.mul_(2.0)
        b.mul_(2.0)
        c.copy_(a[:4] + b[:4])

    compiled = tinycompile.compile(f, fullgraph=True)
    a, b, c = torch.ones(8), torch.ones(6), torch.zeros(4)
    compiled(a, b, c)
    assert c.eq(4).all() and a.eq(2).all() and b.eq(2).all()


def test_the_common_body_loads_sixteen_bytes() -> None:
    compiled = tinycompile.compile(momentum, fullgraph=True)
    compiled(*tensors([(4096000,), (1000, 300), (10,)]))
    kernel = max(compiled.kernels, key=lambda k: len(k.source))
    assert re.search(r"LDG\.E\.128", kernel.sass) and kernel.spills == 0
