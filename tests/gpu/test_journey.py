"""The journey on a real card: launches, registers, occupancy and streams of our kernels and of torch's."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tinycompile import cuda
from tinycompile.journey.chrome import DEVICE
from tinycompile.journey.events import Step

pytestmark = pytest.mark.gpu


@tinycompile
def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + 1) * y.sum(1, keepdim=True)


@tinycompile
def trained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).sum()


def steps(p: tinycompile.Profile, name: str) -> list[Step]:
    return [s for s in p.walk() if s.name == name]


def x_of(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, device="cuda", requires_grad=grad)


def test_matmul_and_relu() -> None:
    a, b = (tinycompile.from_torch(x_of(1024, 1024)) for _ in range(2))
    torch.relu(a @ b)
    with tinycompile.profile() as p:
        torch.relu(a @ b)
    assert p.problem is None
    for name in ("matmul", "relu"):
        (step,) = steps(p, name)
        assert step.keyset == "{CUDA}" and [h.key for h in step.handlers] == ["CUDA"] and "test_journey.py" in step.line
        run = max(step.kernels, key=lambda k: k.nanoseconds)
        assert run.grid and run.block and run.registers and run.shared is not None and run.stream is not None
        assert run.warps and 0 < run.occupancy <= 1 and run.start >= step.start
        assert 0 < p.share(step) < 1.3
    assert "elementwise" in steps(p, "relu")[0].kernels[0].name


def test_a_fused_kernel_is_what_f_kernels_says() -> None:
    x, y = x_of(2048, 1024), x_of(2048, 1024)
    fused(x, y)
    with tinycompile.profile() as p:
        fused(x, y)
    (kernel,) = fused.kernels
    (step,) = steps(p, kernel.name)
    (run,) = step.kernels
    assert step.moved == kernel.bytes_moved and step.flops == kernel.flops and step.lines == kernel.lines
    assert run.registers == kernel.registers and run.shared == kernel.shared and run.warps == kernel.warps
    assert run.grid[0] == kernel.grid[0] if isinstance(kernel.grid[0], int) else run.grid[0] > 0
    page = p.html()
    assert f"registers a thread: <b>{kernel.registers}</b>" in page and "occupancy" in page


def test_a_backward_holds_its_kernels() -> None:
    x, w = x_of(512, 512, grad=True), x_of(512, 512, grad=True)
    trained(x, w).backward()
    with tinycompile.profile() as p:
        trained(x, w).backward()
    ours = [s for s in p.walk() if s.kind == "kernel"]
    assert {s.name for s in ours} == {k.name for k in trained.kernels} and all(len(s.kernels) == 1 for s in ours)
    (backward,) = [s for s in p.steps if s.kind == "backward" and any(c.kind == "kernel" for c in s.children)]
    assert backward.thread != p.steps[0].thread, "torch runs it in a thread of its own"
    assert all(s.kernels for s in p.walk() if s.kind == "library")


def test_the_traces_of_the_three_have_their_kernels() -> None:
    """One matmul and relu, one fused kernel, one backward: what Perfetto opens has a launch and a kernel for each."""
    a, x, y = (x_of(512, 512) for _ in range(3))
    ours, w = tinycompile.from_torch(a), x_of(512, 512, grad=True)
    fused(x, y), trained(x, w).backward()
    loss = trained(x, w)
    runs = {
        "eager": lambda: torch.relu(ours @ ours),
        "fused": lambda: fused(x, y),
        "backward": loss.backward,
    }
    for name, run in runs.items():
        with tinycompile.profile() as p:
            run()
        assert p.problem is None, name
        events = json.loads(p.chrome_trace())["traceEvents"]
        shown = [e["name"] for e in events if e["ph"] == "X" and e["pid"] == DEVICE]
        ran = [k.name for s in p.walk() for k in s.kernels]
        assert ran and sorted(shown) == sorted(ran), name
        assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) > 0, name
        assert all(k.end > k.start >= s.start for s in p.walk() for k in s.kernels), name


def test_profiles_inside_each_other_both_see_kernels() -> None:
    x, y = x_of(256, 256), x_of(256, 256)
    fused(x, y)
    with tinycompile.profile() as outer:
        x.sin()
        with tinycompile.profile() as inner:
            fused(x, y)
        x.cos()
    assert outer.problem is inner.problem is None
    names = [[k.name for s in p.walk() for k in s.kernels] for p in (outer, inner)]
    assert names[1] == [k.name for k in fused.kernels] != []  # one of this shape alone, two where the sizes are symbols
    assert names[0][1:-1] == names[1] and len(names[0]) == len(names[1]) + 2


def test_streams_are_told_apart() -> None:
    side, x, y = cuda.Stream(), x_of(256, 256), x_of(256, 256)
    fused(x, y)
    with tinycompile.profile() as p:
        fused(x, y)
        with cuda.stream(side):
            fused(x, y)
    runs = [k for s in p.walk() if s.kind == "kernel" for k in s.kernels]
    assert len({k.stream for k in runs}) == 2
    events = json.loads(p.chrome_trace())["traceEvents"]
    rows = {e["tid"] for e in events if e["ph"] == "X" and e["cat"] == "kernel"}
    assert rows >= {k.stream for k in runs}
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) > 0


def test_a_replayed_graph_tells_its_kernels() -> None:
    f, x, y = tinycompile.compile(fused.original, mode="reduce-overhead"), x_of(256, 256), x_of(256, 256)
    for _ in range(3):
        f(x, y)
    with tinycompile.profile() as p:
        f(x, y)
    (replay,) = [s for s in p.walk() if s.kind == "replay"]
    assert any(k.name == f.kernels[0].name for k in replay.kernels)


def test_by_events_where_there_is_no_tracer() -> None:
    x, y = x_of(4096, 4096), x_of(4096, 4096)
    fused(x, y)
    with tinycompile.profile(events=True) as p:
        fused(x, y)
    ran = [s for s in p.walk() if s.kind == "kernel"]
    assert ran and all(len(s.kernels) == 1 and s.kernels[0].grid is None for s in ran)
    assert all(s.kernels[0].nanoseconds > 5000 and 0.01 < p.share(s) < 1.3 for s in ran)
