"""Reading what torch's tracers report: clocks, launches matched by correlation, steps matched by time and thread."""

from __future__ import annotations

from typing import Any

import pytest

from tinycompile.journey.events import Step
from tinycompile.journey.matching import assign, drop, outermost, outside_of
from tinycompile.journey.tracer import _RUNNING, MARK, MARKS, Segment, TorchOp, Tracer

pytestmark = pytest.mark.pure
THREAD, OTHER = 100, 200


def span(name: str, cat: str, ts: float, dur: float, tid: Any = THREAD, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def kineto(*events: dict[str, Any]) -> Segment:
    """A segment that has read these, with marks such that their clock is ours in microseconds plus 500."""
    tracer = Segment(cuda=True)
    tracer._marks = [(i * 10_000, i * 10_000 + 1000) for i in range(MARKS)]
    tracer._marks += [(9_000_000 + i * 10_000, 9_000_000 + i * 10_000 + 1000) for i in range(MARKS)]
    marks = [span(MARK, "user_annotation", a / 1e3 + 500, (b - a) / 1e3) for a, b in tracer._marks]
    tracer._read_trace([{"ph": "M", "name": "process_name"}, *marks, *events])
    return tracer


LAUNCHED = span(
    "void gemm<bf16>(int)", "kernel", 1600, 40, 7, correlation=3, device=0, stream=7, grid=[8, 4, 1], block=[128, 2, 1],
    **{"registers per thread": 90, "shared memory": 4096},
)  # fmt: skip


def test_a_kernel_knows_its_launch() -> None:
    tracer = kineto(
        span("aten::mm", "cpu_op", 1500, 80),
        span("cudaLaunchKernel", "cuda_runtime", 1550, 5, correlation=3),
        LAUNCHED,
        span("Memcpy HtoD", "gpu_memcpy", 1700, 10, 13, correlation=4, device=0, stream=13),
        span("cudaMemcpyAsync", "cuda_runtime", 1690, 5, OTHER, correlation=4),
    )
    assert tracer.problem is None
    assert [(o.name, o.start, o.end, o.thread) for o in tracer.ops] == [("aten::mm", 1_000_000, 1_080_000, THREAD)]
    gemm, copy = tracer.launched
    assert (gemm.asked, gemm.thread, gemm.run.start, gemm.run.nanoseconds) == (1_050_000, THREAD, 1_100_000, 40_000)
    run = gemm.run
    assert (run.grid, run.block, run.warps, run.registers, run.shared, run.stream) == ((8, 4, 1), (128, 2, 1), 8, 90, 4096, 7)
    assert (copy.run.stream, copy.thread, copy.run.grid) == (13, OTHER, None)


def test_no_kernels_is_a_problem_that_is_told() -> None:
    assert not kineto(span("aten::mm", "cpu_op", 1500, 80)).kernels
    assert kineto(span("cudaLaunchKernel", "cuda_runtime", 1550, 5, correlation=3), LAUNCHED).kernels
    tracer = Tracer(cuda=True)
    _RUNNING.tracers.append(tracer)  # whose segments saw none
    tracer.stop()
    assert "no kernels" in (tracer.problem or "")


def step(kind: str, name: str, start: int, end: int, *children: Step, thread: int = THREAD) -> Step:
    return Step(kind, name, start, end, thread, children=list(children))


def test_kernels_go_to_the_innermost_step_that_asked_for_them() -> None:
    tracer = kineto(
        span("cudaLaunchKernel", "cuda_runtime", 1550, 5, correlation=3),
        LAUNCHED,
        span("aten::add", "cpu_op", 3000, 50),
        span("cuLaunchKernelEx", "cuda_driver", 3010, 5, correlation=5),
        span("add", "kernel", 3100, 5, 7, correlation=5, device=0, stream=7),
    )
    inner = step("library", "matmul", 1_040_000, 1_090_000)
    steps = [step("compiled", "f", 900_000, 2_000_000, inner), step("op", "late", 1_050_000, 1_060_000, thread=OTHER)]
    assign(steps, tracer.ops, tracer.launched, on_cpu=False)
    assert [k.name for k in inner.kernels] == ["void gemm<bf16>(int)"] and not steps[0].kernels
    (outside,) = [s for s in steps if s.kind == "torch"]
    assert outside.name == "aten::add" and [k.name for k in outside.kernels] == ["add"]


def test_a_node_of_the_backward_takes_in_what_runs_inside_it() -> None:
    node = "autograd::engine::evaluate_function: CompiledFunctionBackward"
    ops = [TorchOp(node, 100, 900, THREAD), TorchOp("CompiledFunctionBackward", 110, 890, THREAD)]
    ops.append(TorchOp("aten::mm", 300, 400, THREAD))
    ours = [step("kernel", "k", 200, 250), step("library", "mm", 290, 410)]
    steps = list(ours)
    assign(steps, ops, [], on_cpu=True)
    (backward,) = steps
    assert (backward.kind, backward.name) == ("backward", "CompiledFunctionBackward") and backward.children == ours
    assert [k.name for k in ours[1].kernels] == ["aten::mm"]


def test_only_ops_that_no_other_called_are_told() -> None:
    ops = [TorchOp("aten::linear", 0, 100, 1), TorchOp("aten::addmm", 10, 90, 1), TorchOp("aten::relu", 100, 120, 1)]
    ops.append(TorchOp("aten::mm", 20, 80, 2))
    assert [o.name for o in outermost(ops)] == ["aten::linear", "aten::mm", "aten::relu"]


def test_what_began_in_a_block_that_is_ours_is_left_out() -> None:
    asides = [(1, 10, 50), (1, 20, 30), (1, 45, 60), (2, 0, 5)]
    ops = [TorchOp(f"aten::{thread}.{start}", start, start + 1, thread) for thread in (1, 2) for start in (3, 25, 40, 70)]
    assert [o.name for o in outside_of(ops, asides)] == ["aten::1.3", "aten::1.70", "aten::2.25", "aten::2.40", "aten::2.70"]


def test_steps_in_which_nothing_ran_go() -> None:
    idle, parent, busy = step("op", "size", 3, 4), step("op", "f", 0, 9, step("op", "g", 1, 2)), step("op", "equal", 10, 11)
    steps = [idle, parent, busy]
    assign(steps, [TorchOp("aten::equal", 10, 11, THREAD)], [], on_cpu=True)
    drop(steps, [idle, parent, busy])
    assert steps == [parent, busy] and parent.children
