"""Buffer lifetimes: made late, freed early, reused when the layout is the same and nobody else can see the memory."""

from __future__ import annotations

import pytest

from tests.fuse.support import Program, check
from tinycompile.ir.loops import ExternCall
from tinycompile.ir.plan import Alloc, Free, Kernel, Plan

pytestmark = pytest.mark.pure


def rounds(count: int) -> Program:
    """Each round's result is needed across rows, so it is stored; nothing else is."""
    p = Program()
    p.input("x", 8, 16)
    last = "x"
    for k in range(count):
        row = p.row_reduce(f"s{k}", "sum", last)
        m = p.nest(f"y{k}", 8, 16)
        p.buffer(f"y{k}", (8, 16))
        m.store(f"y{k}", m.op("lgamma", m.op("sub", m.load(last, *m.i), m.load(row, 7 - m.i[0]))), *m.i)
        m.done()
        last = f"y{k}"
    return p


def allocs(p: Plan) -> list[Alloc]:
    return [s for s in p.steps if isinstance(s, Alloc)]


def test_dead_memory_is_reused() -> None:
    found = check(rounds(6).loops("y5"))
    fresh = [a.buffer for a in allocs(found) if a.reuses is None]
    assert len(found.kernels) > 6
    assert len(fresh) <= 5


def test_everything_is_freed_or_reused_but_what_is_returned() -> None:
    found = check(rounds(6).loops("y2", "y5"))
    ended = {s.buffer for s in found.steps if isinstance(s, Free)} | {a.reuses for a in allocs(found) if a.reuses}
    made = {a.buffer for a in allocs(found)}
    assert made - ended == {"y2", "y5"}


def test_memory_that_a_call_saw_is_freed_not_reused() -> None:
    p = Program()
    p.input("x", 8, 8)
    last = "x"
    for k in range(4):
        p.map(f"a{k}", "exp", last)
        last = p.extern(f"b{k}", "torch.relu", f"a{k}", shape=(8, 8))
    p.map("y", "neg", last)
    found = check(p.loops("y"))
    assert all(a.reuses is None for a in allocs(found))
    freed = [s.buffer for s in found.steps if isinstance(s, Free)]
    assert sorted(freed) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]


def test_a_buffer_is_made_just_before_it_is_written() -> None:
    found = check(rounds(3).loops("y2"))
    for at, step in enumerate(found.steps):
        if isinstance(step, Alloc):
            following = next(s for s in found.steps[at:] if isinstance(s, (Kernel, ExternCall)))
            assert isinstance(following, Kernel) and step.buffer in following.writes


def test_an_empty_output_is_only_allocated() -> None:
    p = Program()
    p.input("x", 0, 4)
    p.map("y", "exp", "x")
    found = check(p.loops("y"))
    assert (found.kernels, len(allocs(found))) == ((), 1)


def test_a_reduction_over_nothing_still_runs() -> None:
    p = Program()
    p.input("x", 4, 0)
    p.row_reduce("s", "sum", "x")
    assert len(check(p.loops("s")).kernels) == 1


def test_an_input_returned_as_it_is() -> None:
    p = Program()
    p.input("x", 4)
    found = check(p.loops("x"))
    assert found.steps == ()
    assert found.bytes_minimum == 0
