"""Split reductions: every kind, even and uneven chunks, symbolic sizes, rows of -inf; and what is left whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinycompile.ops  # noqa: F401  (fills OPS)
from tests.fuse.support import CPU_TARGET, F32, Program, check, rules
from tests.lower.support import GraphMaker
from tinycompile.base.target import H100, Target
from tinycompile.ir.loops import Loops
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import optimize

pytestmark = pytest.mark.pure

KINDS = ("sum", "max", "min", "welford", "online_softmax")
EVEN, PRIME = 1 << 17, 131101


def rows(kind: str, count: int, length: int, dtype: torch.dtype = F32) -> Loops:
    p = Program()
    p.input("x", count, length, dtype=dtype)
    p.map("twice", "mul", "x", 2.0) if dtype is F32 else p.map("twice", "neg", "x")
    names = p.row_reduce("r", kind, "twice")
    names = (names,) if isinstance(names, str) else names
    outputs = [p.map(f"after_{n}", "add", n, 1.0 if dtype is F32 else 1) for n in names]
    return p.loops(*outputs)


@pytest.mark.parametrize("length", [EVEN, PRIME], ids=["even", "uneven"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str, count: int, length: int) -> None:
    found = check(rows(kind, count, length), rounding=1e-3)
    assert len(found.kernels) == 2
    partial, combine = found.kernels
    assert partial.nest.name.endswith("_partial")
    assert combine.bytes_moved < partial.bytes_moved / 100  # type: ignore[operator]


@pytest.mark.parametrize("length", [EVEN, PRIME], ids=["even", "uneven"])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_integers(kind: str, length: int) -> None:
    loops = rows(kind, 1, length, torch.int64)
    found = check(loops, [torch.randint(-9, -2, (1, length))])
    assert len(found.kernels) == 2


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize("value", [False, True])
def test_bools(kind: str, value: bool) -> None:
    p = Program()
    p.input("x", PRIME)
    m = p.nest("r", PRIME)
    p.buffer("r", (), torch.bool)
    m.store("r", m.reduce(kind, m.op("gt", m.load("x", *m.i), 0.0), 0))
    m.done()
    x = torch.full((PRIME,), 1.0 if value else -1.0)
    assert len(check(p.loops("r"), [x]).kernels) == 2
    x[777] = -x[777]
    check(p.loops("r"), [x])


@pytest.mark.parametrize("length", [EVEN, PRIME], ids=["even", "uneven"])
@pytest.mark.parametrize("kind", KINDS)
def test_columns(kind: str, length: int) -> None:
    p = Program()
    p.input("x", length // 32, 32)
    m = p.nest("r", length // 32, 32)
    result = m.reduce(kind, m.load("x", *m.i), 0)
    names = []
    for k, value in enumerate((result,) if isinstance(result, str) else result):
        names.append(p.buffer(f"r{k}", (32,)))
        m.store(names[-1], value, m.i[1])
    m.done()
    found = check(p.loops(*names), rounding=1e-3)
    assert len(found.kernels) == 2
    part = next(b for b in found.buffers if b.name not in p.buffers)
    assert part.meta.shape[-1] == 32  # contiguous along the columns, as the data is


@pytest.mark.parametrize("fill", [float("-inf"), float("nan")])
def test_softmax_of_special_rows(fill: float) -> None:
    x = torch.randn(3, PRIME)
    x[0] = fill
    x[1, :70000] = float("-inf")  # whole chunks
    check(rows("online_softmax", 3, PRIME), [x], rounding=1e-3)


def test_large_mean_small_variance() -> None:
    x = torch.randn(1, PRIME) + 1000.0
    check(rows("welford", 1, PRIME), [x], rounding=2e-3)


def symbolic(build: Any, *shapes: tuple[int, ...]) -> tuple[Loops, list[Any], GraphMaker]:
    maker = GraphMaker()
    refs = [maker.input(torch.randn(s), symbolic=True) for s in shapes]
    results = build(maker, *refs)
    return lower(optimize(maker.graph(*results))), maker.inputs, maker


@pytest.mark.parametrize("other_size", [70001, 2, 500000])
@pytest.mark.parametrize("op", ["sum", "var", "logsumexp", "amax"])
def test_one_plan_serves_other_sizes(op: str, other_size: int) -> None:
    """Chunks that begin beyond the end contribute nothing."""

    def build(maker: GraphMaker, x: Any) -> Any:
        args = {"logsumexp": ([0],), "amax": ([0],)}.get(op, ())
        return (maker.call(op, x, *args),)

    loops, inputs, _ = symbolic(build, (262147,))
    found = check(loops, inputs, rounding=2e-3)
    assert len(found.kernels) == 2
    check(loops, [torch.randn(other_size)], rounding=2e-3)


class TestLeftWhole:
    def test_argmax(self) -> None:
        p = Program()
        p.input("x", 1, EVEN)
        p.row_reduce("a", "argmax", "x")
        assert len(check(p.loops("a")).kernels) == 1

    def test_many_rows(self) -> None:
        p = Program()
        p.input("x", 300, 1024)
        p.row_reduce("s", "sum", "x")
        assert len(check(p.loops("s")).kernels) == 1

    def test_little_work(self) -> None:
        assert len(check(rows("sum", 1, 4096)).kernels) == 1

    def test_what_a_cpu_can_share_out_by_rows(self) -> None:
        assert len(check(rows("sum", 8, EVEN), target=CPU_TARGET, rounding=1e-3).kernels) == 1

    def test_one_thread(self) -> None:
        assert len(check(rows("sum", 1, EVEN), target=Target("cpp", "avx2", 1, 1 << 20), rounding=1e-3).kernels) == 1

    def test_integer_division_beyond_the_end(self) -> None:
        p = Program()
        p.input("a", PRIME, dtype=torch.int64)
        p.input("b", PRIME, dtype=torch.int64)
        p.map("q", "floordiv", "a", "b")
        p.row_reduce("s", "sum", "q")
        found = check(p.loops("s"), [torch.arange(PRIME), torch.arange(1, PRIME + 1)])
        assert len(found.kernels) == 1


def test_a_cpu_splits_among_its_threads() -> None:
    found = check(rows("sum", 1, EVEN), target=CPU_TARGET, rounding=1e-3)
    assert found.kernels[0].nest.axes[0].extent == CPU_TARGET.units


def test_an_output_over_the_full_space_is_written_by_the_first_kernel() -> None:
    p = Program()
    p.input("x", 1, EVEN)
    p.map("y", "exp", "x")
    p.row_reduce("s", "sum", "y")
    found = check(p.loops("y", "s"), rounding=1e-3)
    first, second = found.kernels
    assert "y" in first.writes
    assert second.writes == ("s",)


def test_softmax_of_one_long_row_reads_three_times_and_stores_once() -> None:
    p = Program()
    p.input("x", 1, EVEN)
    p.row_reduce("top", "max", "x")
    p.over_rows("below", "sub", "x", "top")
    p.map("e", "exp", "below")
    p.row_reduce("total", "sum", "e")
    p.over_rows("y", "div", "e", "total")
    found = check(p.loops("y"), target=H100)
    assert len(found.kernels) == 5
    assert sum(k.bytes_moved for k in found.kernels) < 4.1 * EVEN * 4  # type: ignore[operator]
    assert "split-reduction" in rules(found, fused=False)
