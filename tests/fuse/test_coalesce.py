"""Axes of final nests: as few as memory allows, in memory order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fuse.support import Program, check
from tinycompile.base import expr as ex
from tinycompile.ir.plan import Kernel

pytestmark = pytest.mark.pure


def extents(k: Kernel) -> list[tuple[Any, str]]:
    return [(a.extent, a.kind) for a in k.nest.axes]


def kernel(p: Program, *outputs: str) -> Kernel:
    (found,) = check(p.loops(*outputs), rounding=1e-4).kernels
    return found


def test_contiguous_pointwise_is_one_axis() -> None:
    p = Program()
    p.input("x", 2, 3, 4, 5)
    p.map("y", "exp", "x")
    assert extents(kernel(p, "y")) == [(120, "parallel")]


def test_a_broadcast_operand_keeps_its_axis() -> None:
    p = Program()
    p.input("x", 2, 3, 4, 5)
    p.input("b", 5)
    p.map("y", "add", "x", "b")
    assert extents(kernel(p, "y")) == [(24, "parallel"), (5, "parallel")]


def test_reduction_axes_merge_and_rows_merge() -> None:
    p = Program()
    p.input("x", 2, 3, 4, 5)
    m = p.nest("s", 2, 3, 4, 5)
    p.buffer("s", (2, 3))
    m.store("s", m.reduce("sum", m.load("x", *m.i), 2, 3), m.i[0], m.i[1])
    m.done()
    assert extents(kernel(p, "s")) == [(6, "parallel"), (20, "reduction")]


def test_axes_around_a_kept_one_do_not_merge() -> None:
    p = Program()
    p.input("x", 2, 3, 4, 5)
    m = p.nest("s", 2, 3, 4, 5)
    p.buffer("s", (3,))
    m.store("s", m.reduce("sum", m.load("x", *m.i), 0, 2, 3), m.i[1])
    m.done()
    assert extents(kernel(p, "s")) == [(2, "reduction"), (3, "parallel"), (20, "reduction")]


def test_unit_axes_go() -> None:
    p = Program()
    p.input("x", 1, 7, 1)
    m = p.nest("s", 1, 7, 1)
    p.buffer("s", (1, 1, 1))
    m.store("s", m.reduce("sum", m.load("x", *m.i), 0, 1), 0, 0, m.i[2])
    m.done()
    assert extents(kernel(p, "s")) == [(7, "reduction")]


def test_axes_that_nothing_mentions_go() -> None:
    """The value of an empty reduction: a constant, with the reduced axis of extent 0 left over."""
    p = Program()
    p.input("x", 3, 0)
    m = p.nest("y", 3, 0)
    p.buffer("y", (3,))
    m.store("y", m.const(1.0), m.i[0])
    m.done()
    assert extents(kernel(p, "y")) == [(3, "parallel")]


@pytest.mark.parametrize("kind", ["sum", "argmax", "welford", "online_softmax"])
def test_a_reduction_of_one_element_stays_one(kind: str) -> None:
    p = Program()
    p.input("x", 7, 1)
    names = p.row_reduce("s", kind, "x")
    kernel(p, *((names,) if isinstance(names, str) else names))


def test_the_fastest_axis_comes_last() -> None:
    """A nest written over (w, h, c, n) of channels-last memory ends as one axis."""
    p = Program()
    p.input("x", 2, 3, 4, 5)
    m = p.nest("y", 5, 4, 3, 2)
    p.buffer("y", (2, 3, 4, 5))
    m.store("y", m.op("exp", m.load("x", *reversed(m.i))), *reversed(m.i))
    m.done()
    assert extents(kernel(p, "y")) == [(120, "parallel")]


def test_a_transposed_operand_keeps_two_axes() -> None:
    p = Program()
    p.input("x", 6, 4)
    p.input("y", 4, 6)
    m = p.nest("z", 6, 4)
    p.buffer("z", (6, 4))
    m.store("z", m.op("add", m.load("x", *m.i), m.load("y", m.i[1], m.i[0])), *m.i)
    m.done()
    found = kernel(p, "z")
    assert [a.extent for a in found.nest.axes] == [6, 4]  # by the store's strides


def test_a_reshaped_read_merges() -> None:
    p = Program()
    p.input("x", 24)
    m = p.nest("y", 2, 3, 4)
    p.buffer("y", (2, 3, 4))
    m.store("y", m.op("exp", m.load("x", m.i[0] * 12 + m.i[1] * 4 + m.i[2])), *m.i)
    m.done()
    assert extents(kernel(p, "y")) == [(24, "parallel")]


def test_a_mask_keeps_its_axis() -> None:
    p = Program()
    p.input("x", 6, 4)
    m = p.nest("y", 6, 8)
    p.buffer("y", (6, 8))
    m.store("y", m.op("exp", m.load("x", m.i[0], m.i[1], mask=(3 - m.i[1],))), *m.i)
    m.done()
    assert extents(kernel(p, "y")) == [(6, "parallel"), (8, "parallel")]


def test_argmax_over_two_axes_counts_in_their_order() -> None:
    for order in ((0, 1), (1, 0)):
        p = Program()
        p.input("x", 6, 4)
        m = p.nest("a", 6, 4)
        p.buffer("a", (), torch.int64)
        m.store("a", m.reduce("argmax", m.load("x", *m.i), *order))
        m.done()
        found = kernel(p, "a")
        assert len(found.nest.axes) == (1 if order == (0, 1) else 2)


def test_symbolic_extents_merge() -> None:
    from dataclasses import replace

    from tinycompile.ir.loops import SizeBinding

    s, t = ex.sym("s", 2), ex.sym("t", 2)
    p = Program()
    p.input("x", s, t)
    p.map("y", "exp", "x")
    p.hints = {"s": 5, "t": 7}
    sizes = (SizeBinding("s", "x", 0), SizeBinding("t", "x", 1))
    views = replace(_loops_with_sizes(p, sizes, "y"))
    (found,) = check(views, [torch.randn(5, 7)]).kernels
    assert extents(found) == [(s * t, "parallel")]


def _loops_with_sizes(p: Program, sizes: Any, output: str) -> Any:
    from tinycompile.ir.loops import Buffer, Loops, TensorView

    b = p.buffers[output]
    p.buffers[output] = Buffer(output, b.meta, "output")
    hints = tuple(p.hints.items())
    return Loops("f", tuple(p.inputs), sizes, tuple(p.buffers.values()), tuple(p.steps), (TensorView(output, b.meta),), hints)
