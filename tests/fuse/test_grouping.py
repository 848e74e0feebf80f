"""Nests that share a kernel and a value: counts that must hold, fits of axes, and what is refused with which rule."""

from __future__ import annotations

import pytest
import torch

from tests.fuse.support import BF16, F32, Program, check, kernel_names, rules
from tinycompile.base import expr as ex
from tinycompile.base.target import H100
from tinycompile.fuse.planner import plan
from tinycompile.ir.loops import Load, Reduce
from tinycompile.ir.plan import Plan

pytestmark = pytest.mark.pure


def softmax(rows: int, columns: int, dtype: torch.dtype = F32) -> Program:
    p = Program()
    p.input("x", rows, columns, dtype=dtype)
    p.row_reduce("top", "max", "x")
    p.over_rows("below", "sub", "x", "top")
    p.map("e", "exp", "below")
    p.row_reduce("total", "sum", "e")
    p.over_rows("y", "div", "e", "total")
    return p


def layer_norm(p: Program, x: str, n: int) -> str:
    mean, m2 = p.row_reduce("stats", "welford", x)
    p.map("var", "mul", m2, 1 / n)
    p.map("eps", "add", "var", 1e-5)
    p.map("rstd", "rsqrt", "eps")
    p.over_rows("centred", "sub", x, mean)
    return p.over_rows("normed", "mul", "centred", "rstd")


def refusal(p: Plan, rule: str) -> bool:
    return rule in rules(p, fused=False)


class TestOneKernel:
    @pytest.mark.parametrize("shape", [(8, 64), (3, 1000)])
    @pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
    def test_softmax(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        (kernel,) = check(softmax(*shape, dtype).loops("y")).kernels
        assert (kernel.reads, kernel.writes) == (("x",), ("y",))
        assert [a.kind for a in kernel.nest.axes] == ["parallel", "reduction"]

    def test_softmax_over_long_rows(self) -> None:
        assert len(plan(softmax(512, 131072).loops("y"), H100).kernels) == 1

    def test_layer_norm_of_a_sum_with_both_outputs(self) -> None:
        p = Program()
        for name in ("x", "r"):
            p.input(name, 16, 64, dtype=BF16)
        p.input("w", 64, dtype=BF16)
        p.map("s", "add", "x", "r")
        layer_norm(p, "s", 64)
        p.map("y", "mul", "normed", "w")
        found = check(p.loops("s", "y"))
        (kernel,) = found.kernels
        assert kernel.writes == ("s", "y")
        assert kernel.bytes_moved == found.bytes_minimum

    def test_siblings_that_read_the_same(self) -> None:
        p = Program()
        p.input("x", 16, 64)
        p.row_reduce("a", "sum", "x")
        p.row_reduce("b", "max", "x")
        p.map("c", "exp", "x")
        found = check(p.loops("a", "b", "c"))
        assert len(found.kernels) == 1
        assert "siblings" in rules(found, fused=True)

    def test_two_results_of_one_nest(self) -> None:
        p = Program()
        p.input("x", 16, 64)
        p.row_reduce("stats", "online_softmax", "x")
        p.map("y", "add", "stats_0", "stats_1")
        assert len(check(p.loops("y")).kernels) == 1

    def test_a_scan_with_what_comes_before_and_after(self) -> None:
        p = Program()
        p.input("x", 4, 16)
        p.map("a", "mul", "x", 2.0)
        m = p.nest("c", 4, 16)
        p.buffer("c", (4, 16))
        m.store("c", m.scan("sum", m.load("a", *m.i), 1), *m.i)
        m.done()
        p.map("y", "add", "c", 1.0)
        assert len(check(p.loops("y")).kernels) == 1

    def test_transposed_consumer(self) -> None:
        p = Program()
        p.input("x", 8, 16)
        p.map("e", "exp", "x")
        m = p.nest("t", 16, 8)
        p.buffer("t", (16, 8))
        m.store("t", m.op("neg", m.load("e", m.i[1], m.i[0])), *m.i)
        m.done()
        assert len(check(p.loops("e", "t")).kernels) == 1


class TestFits:
    def test_group_statistics_fit_a_consumer_that_splits_the_channel_axis(self) -> None:
        n, g, c, hw = 2, 4, 3, 5
        p = Program()
        p.input("x", n, g * c, hw)
        m = p.nest("mean", n, g, c, hw)
        p.buffer("mean", (n, g))
        total = m.reduce("sum", m.load("x", m.i[0], m.i[1] * c + m.i[2], m.i[3]), 2, 3)
        m.store("mean", m.op("mul", total, 1 / (c * hw)), m.i[0], m.i[1])
        m.done()
        m = p.nest("y", n, g * c, hw)
        p.buffer("y", (n, g * c, hw))
        m.store("y", m.op("sub", m.load("x", *m.i), m.load("mean", m.i[0], ex.floordiv(m.i[1], c))), *m.i)
        m.done()
        (kernel,) = check(p.loops("y")).kernels
        assert sum(isinstance(s, Load) for s in kernel.nest.body) == 1

    def test_a_reshaped_consumer_fits_when_the_points_pair_up(self) -> None:
        p = Program()
        p.input("x", 6, 4)
        p.map("e", "exp", "x")
        m = p.nest("flat", 24)
        p.buffer("flat", (24,))
        m.store("flat", m.op("neg", m.load("e", ex.floordiv(m.i[0], 4), ex.mod(m.i[0], 4))), *m.i)
        m.done()
        (kernel,) = check(p.loops("e", "flat")).kernels
        assert [a.extent for a in kernel.nest.axes] == [24]

    def test_a_slice_does_not_fit(self) -> None:
        p = Program()
        p.input("x", 6, 8)
        p.map("e", "lgamma", "x")
        m = p.nest("half", 6, 4)
        p.buffer("half", (6, 4))
        m.store("half", m.op("neg", m.load("e", m.i[0], 2 * m.i[1])), *m.i)
        m.done()
        found = check(p.loops("e", "half"))
        assert len(found.kernels) == 2
        assert refusal(found, "axes-differ")

    def test_rows_join_the_reduction_before_them(self) -> None:
        """The loss of each row belongs to the row's kernel, not to the one program that averages."""
        p = Program()
        p.input("x", 512, 1000)
        p.input("t", 512, dtype=torch.int64)
        top, total = p.row_reduce("stats", "online_softmax", "x")
        p.map("lse", "log", total)
        m = p.nest("loss", 512)
        p.buffer("loss", (512,))
        picked = m.load("x", m.i[0], ex.sym(m.load("t", m.i[0]), 0, 1000))
        m.store("loss", m.op("sub", m.op("add", m.load("lse", *m.i), m.load(top, *m.i)), picked), *m.i)
        m.done()
        p.row_reduce("mean", "sum", "loss")
        found = check(p.loops("mean"), rounding=1e-4)
        first, second = found.kernels
        assert (first.reads, second.reads) == (("x", "t"), ("loss",))
        assert refusal(found, "rows-of-a-reduction") or refusal(found, "reductions-differ")


class TestRefusals:
    def test_results_of_other_rows(self) -> None:
        p = Program()
        p.input("x", 8, 16)
        p.row_reduce("s", "sum", "x")
        m = p.nest("y", 8, 16)
        p.buffer("y", (8, 16))
        m.store("y", m.op("add", m.load("x", *m.i), m.load("s", 7 - m.i[0])), *m.i)
        m.done()
        found = check(p.loops("y"))
        assert len(found.kernels) == 2
        assert refusal(found, "other-points")

    def test_reductions_over_different_axes(self) -> None:
        p = Program()
        p.input("x", 8, 16)
        p.row_reduce("s", "sum", "x")
        m = p.nest("c", 8, 16)
        p.buffer("c", (16,))
        m.store("c", m.reduce("sum", m.load("x", *m.i), 0), m.i[1])
        m.done()
        found = check(p.loops("s", "c"))
        assert len(found.kernels) == 2
        assert refusal(found, "reductions-differ")

    def test_a_reduction_of_row_results(self) -> None:
        p = Program()
        p.input("x", 8, 16)
        p.row_reduce("s", "sum", "x")
        p.row_reduce("t", "sum", "s")
        assert len(check(p.loops("t")).kernels) == 2

    def test_a_cycle_through_a_library_call(self) -> None:
        p = Program()
        p.input("x", 8, 8)
        p.map("a", "exp", "x")
        p.extern("b", "torch.relu", "a", shape=(8, 8))
        p.map("y", "add", "a", "b")
        found = check(p.loops("y"))
        assert len(found.kernels) == 2
        assert refusal(found, "cycle")

    def test_a_cycle_through_a_third_nest(self) -> None:
        p = Program()
        p.input("x", 8, 16)
        p.map("a", "lgamma", "x")
        m = p.nest("c", 8, 16)  # a column sum: its result is needed by rows that it is made of
        p.buffer("c", (16,))
        m.store("c", m.reduce("sum", m.load("a", *m.i), 0), m.i[1])
        m.done()
        p.row_reduce("s", "sum", "a")
        p.over_rows("d", "sub", "a", "s")
        p.map("y", "add", "d", "c")
        check(p.loops("y"), rounding=1e-3)

    def test_an_argmax_is_not_refitted_to_another_order(self) -> None:
        p = Program()
        p.input("x", 4, 6)
        m = p.nest("s", 4, 6)
        p.buffer("s", ())
        m.store("s", m.reduce("sum", m.load("x", *m.i), 0, 1))
        m.done()
        m = p.nest("a", 6, 4)
        p.buffer("a", (), torch.int64)
        m.store("a", m.reduce("argmax", m.load("x", m.i[1], m.i[0]), 0, 1))
        m.done()
        check(p.loops("s", "a"))

    def test_independent_kernels_that_share_little(self) -> None:
        p = Program()
        p.input("b", 4096)
        for name in ("x", "y"):
            p.input(name, 4096, 4096)
            p.map(f"{name}_b", "add", name, "b")
        found = plan(p.loops("x_b", "y_b"), H100)
        assert len(found.kernels) == 2
        assert refusal(found, "little-shared")

    def test_small_independent_kernels_fuse_anyway(self) -> None:
        p = Program()
        p.input("b", 64)
        for name in ("x", "y"):
            p.input(name, 64, 64)
            p.map(f"{name}_b", "add", name, "b")
        assert len(check(p.loops("x_b", "y_b")).kernels) == 1

    def test_few_rows_leave_the_full_space_its_own_kernel(self) -> None:
        p = Program()
        p.input("x", 1, 1 << 18)
        p.row_reduce("s", "sum", "x")
        p.over_rows("y", "sub", "x", "s")
        found = check(p.loops("y"), rounding=1e-2)
        assert len(found.kernels) == 3
        assert refusal(found, "split-reduction")


def test_a_two_layer_perceptron() -> None:
    p = Program()
    for name, shape in (("x", (8, 16)), ("w1", (16, 32)), ("w2", (32, 16)), ("b1", (32,)), ("b2", (16,))):
        p.input(name, *shape)
    p.extern("h", "torch.matmul", "x", "w1", shape=(8, 32))
    p.map("hb", "add", "h", "b1")
    p.map("act", "tanh", "hb")
    p.extern("o", "torch.matmul", "act", "w2", shape=(8, 16))
    p.map("y", "add", "o", "b2")
    found = check(p.loops("y"), rounding=1e-4)
    assert len(found.kernels) == 2


def test_batch_statistics_then_normalise() -> None:
    n, c, h, w = 8, 4, 32, 32
    p = Program()
    p.input("x", n, c, h, w)
    m = p.nest("stats", n, c, h, w)
    mean, m2 = m.reduce("welford", m.load("x", *m.i), 0, 2, 3)
    for name, value in (("mean", mean), ("m2", m2)):
        p.buffer(name, (c,))
        m.store(name, value, m.i[1])
    m.done()
    m = p.nest("y", n, c, h, w)
    p.buffer("y", (n, c, h, w))
    rstd = m.op("rsqrt", m.op("add", m.op("mul", m.load("m2", m.i[1]), 1 / (n * h * w)), 1e-5))
    normed = m.op("mul", m.op("sub", m.load("x", *m.i), m.load("mean", m.i[1])), rstd)
    m.store("y", m.op("maximum", normed, 0.0), *m.i)
    m.done()
    found = check(p.loops("y"), rounding=1e-4)
    assert len(found.kernels) <= 3
    assert any(isinstance(s, Reduce) and s.kind == "welford" for s in found.kernels[0].nest.body)


def test_every_decision_has_words() -> None:
    found = check(softmax(8, 64).loops("y"))
    assert found.decisions
    assert all(d.rule and d.why and d.first != d.second for d in found.decisions)


def test_kernel_names_are_short_unique_and_no_buffers() -> None:
    p = Program()
    p.input("x", 8, 16)
    last = "x"
    for k in range(40):
        last = p.map(f"some_long_name_{'abcdefgh'[k % 8]}_{k}", "neg" if k % 3 else "exp", last)
        if k % 10 == 9:
            last = p.extern(f"call_{k}", "torch.relu", last, shape=(8, 16))
    names = kernel_names(check(p.loops(last)))
    assert len(names) == len(set(names)) == 4
    assert all(n.isidentifier() and len(n) <= 48 and n not in p.buffers for n in names)
