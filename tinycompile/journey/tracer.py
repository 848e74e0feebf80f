"""torch's own tracer, beside our recorder: which ops of torch's ran, and which kernels on which stream.

It is torch's profiler, told to record every thread. On CUDA it reads CUPTI, the source of grids, registers and exact times. Its
clock is fitted to ours by marks that both see.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.journey.events import KernelRun

MARK = "tinycompile.clock"
MARKS = 3  # at each end; the quickest counts


@dataclass(frozen=True)
class TorchOp:
    """An op of torch's on the host. ``thread``: the system's id."""

    name: str
    start: int
    end: int
    thread: int


@dataclass(frozen=True)
class Launched:
    """A kernel, copy or fill on a device, and when (and in which thread) the host asked for it."""

    run: KernelRun
    asked: int
    thread: int


class _Told:
    """What torch's tracer told of ``ops`` and of what was ``launched``. ``problem``: why nothing; ``kernels``: whether a device
    reported any; ``read``: whether it told of anything."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.read = cuda, False
        self.ops: list[TorchOp] = []
        self.launched: list[Launched] = []
        self.problem: str | None = None
        self.kernels = False


class Segment(_Told):
    """One run of torch's tracer; it is told after ``end()``. ``thread``: the one that alone is recorded, and can end it; None:
    all are, and each can."""

    def __init__(self, cuda: bool) -> None:
        super().__init__(cuda)
        self._options = torch_private.tracing_every_thread()
        self.thread = threading.get_ident() if self._options is None else None
        self._profiler: Any = None
        self._marks: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Raises nothing: a tracer that can't be had is a ``problem``."""
        try:
            with _without_chatter():
                self._begin()
        except RuntimeError as error:
            self.problem, self._profiler = f"torch's tracer can't be had: {error}", None
            return
        self._mark()

    def _begin(self) -> None:
        if self.cuda:
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            self._profiler = torch.profiler.profile(  # without acc_events it warns
                activities=activities, acc_events=True, experimental_config=self._options
            )
            self._profiler.start()
        else:
            self._profiler = torch.autograd.profiler.profile(use_kineto=True, experimental_config=self._options)
            self._profiler.__enter__()

    def end(self) -> None:
        """Stop, and read what was traced."""
        if self._profiler is None:
            return
        self._mark()
        profiler, self._profiler = self._profiler, None
        with _without_chatter():
            if self.cuda:
                profiler.stop()
            else:
                profiler.__exit__(None, None, None)
        try:
            self._read_trace(_exported(profiler))
            self.read = True
            if self.thread is not None:
                self.problem = "this torch's tracer records one thread: what torch does in others is not told"
        except ValueError as error:  # somebody stopped it, or started another, inside the block
            self.problem = f"torch's tracer was disturbed: {error}"

    def _mark(self) -> None:
        """A few spans that both clocks see."""
        for _ in range(MARKS):
            start = perf_counter_ns()
            with torch.profiler.record_function(MARK):
                pass
            self._marks.append((start, perf_counter_ns()))

    def _read_trace(self, events: list[dict[str, Any]]) -> None:
        """The Chrome trace that kineto writes: microseconds, host ops in ``cpu_op`` (labels of the program's are
        ``user_annotation``), device work by correlation id."""
        spans = [e for e in events if e.get("ph") == "X"]
        seen = [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] == MARK and e.get("cat") == "user_annotation"]
        clock = fit(self._marks, sorted(seen))
        asked: dict[int, dict[str, Any]] = {}
        for e in spans:
            if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]:
                asked[e["args"]["correlation"]] = e
        for e in spans:
            cat = e.get("cat")
            start, end = clock(e["ts"]), clock(e["ts"] + e["dur"])
            if cat == "cpu_op":
                self.ops.append(TorchOp(e["name"], start, end, e["tid"]))
            elif cat in ("kernel", "gpu_memcpy", "gpu_memset"):
                by = asked.get(e["args"].get("correlation", -1))
                if by is not None:
                    self.launched.append(Launched(_run(e, start, end), clock(by["ts"]), by["tid"]))
        self.kernels = any(e.get("cat") == "kernel" for e in spans)


class Tracer(_Told):
    """Started by ``start()``; after ``stop()`` there are ``ops`` and ``launched``. ``problem`` says why there are none.

    torch has one tracer, so tracers that run at the same time share its segments: where one starts or stops a segment ends, and
    what it saw belongs to all that were running."""

    def start(self) -> None:
        """Raises nothing: a tracer that is taken, by the user's own profiler or in another thread, is a ``problem``."""
        with _RUNNING.lock:
            if not _RUNNING.has_tracer():
                self.problem = "torch's tracer is in use: kernels of torch's are not told"
                return
            _RUNNING.end_segment()
            _RUNNING.tracers.append(self)
            _RUNNING.begin_segment(self.cuda)

    def stop(self) -> None:
        """End the trace."""
        with _RUNNING.lock:
            if self not in _RUNNING.tracers:
                return
            _RUNNING.end_segment()
            _RUNNING.tracers.remove(self)
            if _RUNNING.tracers:
                _RUNNING.begin_segment(self.cuda)
        if self.cuda and not self.kernels:
            self.problem = self.problem or "the device's tracer (CUPTI) reported no kernels"

    def take(self, segment: Segment) -> None:
        """What a segment saw."""
        self.ops += segment.ops
        self.launched += segment.launched
        self.problem = self.problem or segment.problem
        self.kernels |= segment.kernels
        self.read |= segment.read


class _Running:
    """The tracers that run, and the segment that they are in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tracers: list[Tracer] = []
        self.segment: Segment | None = None

    def has_tracer(self) -> bool:
        """Whether this thread can have torch's tracer."""
        if self.segment is not None:
            return self.segment.thread in (None, threading.get_ident())
        return not torch_private.profiler_runs()

    def begin_segment(self, cuda: bool) -> None:
        self.segment = Segment(cuda)
        self.segment.begin()

    def end_segment(self) -> None:
        if self.segment is not None:
            self.segment.end()
            for tracer in self.tracers:
                tracer.take(self.segment)
            self.segment = None


_RUNNING = _Running()


@contextmanager
def _without_chatter() -> Iterator[None]:
    """The tracer of some builds of torch tells stderr that it starts and stops: those lines are dropped, others kept."""
    try:
        kept = os.dup(2)
    except OSError:  # no stderr to chatter to
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said = [line for line in file.read().splitlines(keepends=True) if not line.startswith(b"USDT:")]
            os.write(2, b"".join(said))


def _run(e: dict[str, Any], start: int, end: int) -> KernelRun:
    args = e["args"]
    grid, block = args.get("grid"), args.get("block")
    return KernelRun(
        e["name"],
        start,
        end,
        f"cuda:{args.get('device', 0)}",
        args.get("stream"),
        tuple(grid) if grid else None,
        tuple(block) if block else None,
        args.get("registers per thread"),
        args.get("shared memory"),
    )


def _exported(profiler: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tinycompile-") as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def fit(ours: list[tuple[int, int]], theirs: list[tuple[float, float]]) -> Callable[[float], int]:
    """From their microseconds to our nanoseconds: through the middles of the quickest mark at each end.

    Raises ValueError when the marks don't match in number."""
    if len(ours) != len(theirs):
        raise ValueError(f"torch's tracer saw {len(theirs)} of {len(ours)} marks")
    half = len(ours) // 2
    points = []
    for part in (range(half), range(half, len(ours))):
        best = min(part, key=lambda i: ours[i][1] - ours[i][0])
        points.append((sum(theirs[best]) / 2, sum(ours[best]) / 2))
    (x0, y0), (x1, y1) = points
    slope = (y1 - y0) / (x1 - x0) if x1 - x0 > 1000 else 1000.0  # a span under a millisecond fits no slope
    return lambda x: int(y0 + (x - x0) * slope)
