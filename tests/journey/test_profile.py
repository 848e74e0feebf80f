"""What ``profile()`` writes down, and that it leaves no trace."""

from __future__ import annotations

import json
import threading

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile.dispatch import dispatcher
from tinycompile.journey.events import Step
from tinycompile.journey.table import own_times
from tinycompile.journey.tracer import fit
from tinycompile.runtime import linked

pytestmark = pytest.mark.cpu
HERE = "test_profile.py"


def named(p: tinycompile.Profile, name: str) -> list[Step]:
    return [s for s in p.walk() if s.name == name]


def test_the_journey_of_an_eager_op() -> None:
    a, b = tinycompile.randn(32, 16), tinycompile.randn(16, 8)
    w = tinycompile.randn(32, 16, requires_grad=True)
    with tinycompile.profile() as p:
        torch.relu(a @ b)
        torch.relu(w @ b)
    first, second = named(p, "matmul")
    assert first.keyset == "{CPU}" and [h.key for h in first.handlers] == ["CPU"]
    assert second.keyset == "{AUTOGRAD, CPU}" and [(h.key, h.depth) for h in second.handlers] == [("AUTOGRAD", 0), ("CPU", 1)]
    assert second.handlers[1].keyset == "{CPU}"
    for step in (first, second, *named(p, "relu")):
        assert HERE in step.line and step.end > step.start > 0
        assert all(h.start <= h.end for h in step.handlers) and min(own_times(step)) >= 0
    assert first.operands == "f32[32, 16], f32[16, 8]" and first.results == "f32[32, 8]"
    assert first.moved == 4 * (32 * 16 + 16 * 8 + 32 * 8) and first.flops == 2 * 32 * 16 * 8
    assert [k.name for k in first.kernels] == ["aten::matmul"] and [k.name for k in named(p, "relu")[0].kernels] == [
        "aten::relu"
    ]
    assert first.start <= first.kernels[0].start <= first.kernels[0].end <= first.end


def test_transforms_are_on_the_route_and_bytes_are_those_of_all_examples() -> None:
    x = tinycompile.randn(5, 4)
    with tinycompile.profile() as p:
        tinycompile.vmap(lambda a: a.sin())(x)
        with tinycompile.autocast("cpu"):
            x @ x.t()
    (sin,) = named(p, "sin")
    assert [h.key for h in sin.handlers] == ["BATCHED", "CPU"] and sin.moved == 2 * 4 * 20 and sin.operands == "f32[4]"
    (matmul,) = named(p, "matmul")
    assert [h.key for h in matmul.handlers] == ["AUTOCAST", "CPU"] and {c.name for c in matmul.children} == {"to"}


def test_views_move_nothing_and_expanded_dims_cost_nothing() -> None:
    x = tinycompile.randn(4, 1)
    with tinycompile.profile() as p:
        (x.expand(4, 100) + 1).t()
    assert [named(p, n)[0].moved for n in ("expand", "add")] == [0, 4 * 4 + 4 * 400]
    assert not named(p, "expand")[0].kernels


def test_numbers_of_generated_kernels_are_those_of_f_kernels() -> None:
    @tinycompile
    def f(x, y):
        return F.gelu(x + 1) * y.sum(1, keepdim=True), (x @ y).softmax(-1)

    x, y = torch.randn(24, 24), torch.randn(24, 24)
    f(x, y)
    with tinycompile.profile() as p:
        f(x, y)
    (call,) = named(p, "f")
    assert call.kind == "compiled" and call.handlers[0].key == "GUARDS" and HERE in call.line
    ran = [s for s in call.children if s.kind == "kernel"]
    assert [(s.name, s.moved, s.flops, s.lines) for s in ran] == [(k.name, k.bytes_moved, k.flops, k.lines) for k in f.kernels]
    (library,) = [s for s in call.children if s.kind == "library"]
    assert library.name == "matmul" and [k.name for k in library.kernels] == ["aten::matmul"] and library.flops == 2 * 24**3
    assert library.line.startswith(f"{HERE}:") and library.line == ran[-1].lines[-1].rpartition("/")[2]


def test_symbolic_sizes_are_those_of_the_call() -> None:
    @tinycompile(dynamic=True)
    def f(x):
        return torch.sin(x) + 1

    f(torch.randn(8, 16))
    with tinycompile.profile() as p:
        f(torch.randn(5, 16))
    (step,) = [s for s in p.walk() if s.kind == "kernel"]
    assert step.moved == 2 * 4 * 5 * 16


def test_a_compile_inside_is_told_by_stages_and_its_tracing_is_not_recorded() -> None:
    @tinycompile
    def f(x):
        return torch.cos(x) * 2

    with tinycompile.profile() as p:
        f(torch.randn(7))
    (call,) = named(p, "f")
    stages = [h.name for h in call.handlers if h.key == "COMPILE"]
    assert stages[0] == "capture" and ("build" in stages or "load" in stages)
    assert not named(p, "cos") and [s.kind for s in call.children] == ["kernel"]


def test_what_runs_op_by_op_inside_a_compiled_call_is_told() -> None:
    def f(x):
        y = torch.sin(x)
        tinycompile.graph_break()
        return torch.fft.fft(y).real

    x = torch.randn(8)
    eager, broken = tinycompile.compile(f, backend="eager"), tinycompile.compile(f)
    for compiled in (eager, broken):
        compiled(x)
        with tinycompile.profile() as p:
            compiled(x)
        (call,) = [s for s in p.steps if s.kind == "compiled"]
        assert "aten::fft_fft" in [s.name for s in call.walk()] or any(
            k.name == "aten::fft_fft" for s in call.walk() for k in s.kernels
        )
        assert all(call.start <= s.start and s.end <= call.end for s in call.children)
    assert not any(s.name == "aten::sin" for s in p.walk()), "it is in a kernel"


def test_a_backward_holds_its_kernels() -> None:
    @tinycompile
    def g(x):
        return torch.relu(x @ x).sum()

    x = torch.randn(8, 8, requires_grad=True)
    g(x).backward()
    with tinycompile.profile() as p:
        g(x).backward()
    (backward,) = [s for s in p.steps if s.kind == "backward" and any(c.kind == "kernel" for c in s.children)]
    assert {c.name for c in backward.children if c.kind == "kernel"} <= {k.name for k in g.kernels}


def test_torchs_own_ops_are_there_too() -> None:
    x = torch.randn(8, 8)
    with tinycompile.profile() as p:
        torch.relu(x @ x)
    assert [(s.kind, s.name) for s in p.steps] == [("torch", "aten::matmul"), ("torch", "aten::relu")]


def test_every_thread_has_its_own_steps() -> None:
    x = tinycompile.randn(4)
    with tinycompile.profile() as p:
        thread = threading.Thread(target=lambda: x.sin())
        thread.start()
        thread.join()
        x.cos()
    assert named(p, "sin")[0].thread != named(p, "cos")[0].thread == threading.get_native_id()


def test_an_error_passes_through_and_ends_its_step() -> None:
    x = tinycompile.randn(3, 4)
    with tinycompile.profile() as p, pytest.raises(RuntimeError, match="mat1|shapes|size"):
        x @ x
    (step,) = named(p, "matmul")
    assert step.end >= step.start and not step.results


def test_profiles_nest_and_one_is_entered_once() -> None:
    """Each has what ran in its block, kernels too, however the blocks lie in each other."""
    x, y = tinycompile.randn(3), torch.randn(3)
    outer, inner, late = (tinycompile.profile() for _ in range(3))
    with outer:
        x.tan(), y.tan()
        with inner:
            x.sin(), y.sin()
        x.cos(), y.cos()
        late.__enter__()
        x.exp(), y.exp()
    x.abs(), y.abs()
    late.__exit__(None, None, None)
    for p, ran in ((outer, ["tan", "sin", "cos", "exp"]), (inner, ["sin"]), (late, ["exp", "abs"])):
        assert p.problem is None
        assert [s.name for s in p.walk()] == [name for op in ran for name in (op, f"aten::{op}")]
        assert [k.name for s in p.walk() for k in s.kernels] == [f"aten::{op}" for op in ran for _ in range(2)]
        assert all(s.start <= k.start <= k.end <= s.end for s in p.walk() for k in s.kernels)
    with pytest.raises(RuntimeError, match="once"), inner:
        pass


def test_torchs_own_profiler_is_not_disturbed_and_one_in_another_thread_neither() -> None:
    x = tinycompile.randn(3)
    with torch.autograd.profiler.profile(use_kineto=False) as theirs, tinycompile.profile() as p:
        x.sin()
    assert [e.name for e in theirs.function_events] == ["aten::sin"] and named(p, "sin") and "in use" in (p.problem or "")
    found: list[tinycompile.Profile] = []

    def other() -> None:
        with tinycompile.profile() as inside:
            x.cos()
        found.append(inside)

    with tinycompile.profile() as p:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        x.tan()
    assert [(s.name, [k.name for k in s.kernels]) for s in p.walk()] == [("cos", ["cos"]), ("tan", ["aten::tan"])]
    assert "in use" in (found[0].problem or "") and [(s.name, [k.name for k in s.kernels]) for s in found[0].walk()] == [
        ("cos", ["cos"])
    ]


def test_nothing_stays_when_it_is_over() -> None:
    @tinycompile
    def f(x):
        return torch.tanh(x) + 3

    x, ours = torch.randn(5), tinycompile.randn(5)
    f(x)
    launchers = [dict(one.namespace) for one in linked._live if one.source.name == "f"]
    call = type(f).__call__
    ours.tan()
    with tinycompile.profile():
        f(x), ours.tan()
        assert type(f).__call__ is not call
    assert type(f).__call__ is call and not dispatcher._WATCHERS and not linked._WATCHERS
    assert launchers == [dict(one.namespace) for one in linked._live if one.source.name == "f"]
    dispatcher.call("tan", ours)
    choices = dispatcher._ENTRIES["tan"].choices.values()
    assert all("recorded" not in choice[1].__qualname__ for choice in choices)


def test_a_profile_that_runs_says_so() -> None:
    with tinycompile.profile() as p:
        assert "has not ended" in str(p)
    assert "has not ended" not in str(p)


def test_table() -> None:
    x = tinycompile.randn(64, 64, requires_grad=True)
    with tinycompile.profile() as p:
        (x @ x).relu()
    head, _, names, _, first, second = str(p).splitlines()
    assert "GB/s" in head and names.split()[:3] == ["op", "keys", "route"]
    assert first.startswith("matmul") and "AUTOGRAD CPU" in first and "aten::matmul" in first and HERE in first
    assert second.startswith("relu")


def test_chrome_trace_has_what_perfetto_asks_for(tmp_path) -> None:
    @tinycompile
    def f(x):
        return torch.exp(x) - 1

    x = tinycompile.randn(16, requires_grad=True)
    with tinycompile.profile() as p:
        (x * 2).sum()
        f(torch.randn(16))
    text = p.chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text() == text
    events = json.loads(text)["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} <= {"X", "M", "s", "f"}
    assert all(isinstance(e["ts"], float) and e["dur"] >= 0 and e["name"] and {"pid", "tid"} <= e.keys() for e in spans)
    known = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} <= known
    by_row: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in spans:
        by_row.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for found in by_row.values():  # spans of a row nest: Perfetto drops those that cross
        open_: list[float] = []
        for start, end in sorted(found, key=lambda s: (s[0], -s[1])):
            while open_ and open_[-1] <= start + 1e-3:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1e-3
            open_.append(end)


def test_clocks_are_fitted_through_the_quickest_marks() -> None:
    ours = [
        (0, 9000),
        (10_000, 11_000),
        (20_000, 29_000),
        (5_000_000, 5_001_000),
        (5_010_000, 5_020_000),
        (5_030_000, 5_040_000),
    ]
    clock = fit(ours, [(s / 1e3 + 77, e / 1e3 + 77) for s, e in ours])
    assert abs(clock(77 + 2500.0) - 2_500_000) <= 1
    with pytest.raises(ValueError, match="marks"):
        fit(ours, [(0.0, 1.0)])


def test_clocks_are_fitted_by_marks_that_all_waited() -> None:
    """A thread that waits for Python's lock in each of its marks, before what the tracer times or behind it (it took kernels
    from their steps)."""
    theirs = [(at, at + 2000) for begin in (0, 9_000_000) for at in range(begin, begin + 400_000, 50_000)]
    ours = [(start - (8000 if i % 2 else 30), end + (30 if i % 2 else 8000)) for i, (start, end) in enumerate(theirs)]
    clock = fit(ours, [(s / 1e3 + 5e6, e / 1e3 + 5e6) for s, e in theirs])
    assert all(abs(clock(5e6 + at / 1e3) - at) <= 2 for at in (0, 3_000_000, 9_400_000))


def test_off_it_costs_nothing() -> None:
    """The hot path holds the very functions that it held before: there is nothing to pay. (The suite ``overhead`` has times.)"""
    x = tinycompile.randn(4)
    dispatcher.call("neg", x)
    held = {mask: choice[1] for mask, choice in dispatcher._ENTRIES["neg"].choices.items()}
    with tinycompile.profile():
        x.neg()
    dispatcher.call("neg", x)
    after = {mask: choice[1] for mask, choice in dispatcher._ENTRIES["neg"].choices.items()}
    assert after and after.items() <= held.items()
