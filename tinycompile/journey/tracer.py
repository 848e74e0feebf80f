"""torch's own tracer, beside our recorder: which ops of torch's ran, and which kernels on which stream.

On CUDA it is the profiler that reads CUPTI, the source of grids, registers and exact times; elsewhere the light one, which sees
torch's CPU ops. Either sees the thread that starts it (and the backward that this runs), and one runs at a time: torch's
profiler can be told to record every thread, but then it writes to freed memory when it is stopped while another thread is in an
op, and so does the light one where it runs in two (torch 2.13). Its clock is fitted to ours by marks that both see.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.journey.events import KernelRun

MARK = "tinycompile.clock"
MARKS = 12  # at each end: a thread that waits for Python's lock inside one says little by it
USER_SCOPE = 7  # at::RecordScope: a label of the program's


@dataclass(frozen=True)
class TorchOp:
    """An op of torch's on the host. ``thread``: the system's id, or None where the tracer doesn't know it."""

    name: str
    start: int
    end: int
    thread: int | None


@dataclass(frozen=True)
class Launched:
    """A kernel, copy or fill on a device, and when (and in which thread) the host asked for it."""

    run: KernelRun
    asked: int
    thread: int


class _Told:
    """What torch's tracer told of ``ops`` and of what was ``launched``. ``problem``: why nothing; ``kernels``: whether a device
    reported any; ``heard``: whether anything was read."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.heard = cuda, False
        self.ops: list[TorchOp] = []
        self.launched: list[Launched] = []
        self.problem: str | None = None
        self.kernels = False


class Segment(_Told):
    """One run of torch's tracer, in one thread; it is told after ``end()``."""

    def __init__(self, cuda: bool) -> None:
        super().__init__(cuda)
        self.thread = threading.get_ident()
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
            self._profiler = torch.profiler.profile(activities=activities, acc_events=True)  # or it warns
            self._profiler.start()
        else:
            self._profiler = torch.autograd.profiler.profile(use_kineto=False)
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
            if self.cuda:
                self._read_trace(_exported(profiler))
            else:
                self._read_events(profiler.function_events)
            self.heard = True
        except ValueError as error:  # somebody stopped it, or started another, inside the block
            self.problem = f"torch's tracer was disturbed: {error}"

    def _mark(self) -> None:
        """Spans that both clocks see."""
        for _ in range(MARKS):
            start = perf_counter_ns()
            with torch.profiler.record_function(MARK):
                pass
            self._marks.append((start, perf_counter_ns()))

    def _read_events(self, events: Any) -> None:
        """The light tracer's: microseconds, and threads numbered from 1. Ours is the one with the marks."""
        seen = [(e.time_range.start, e.time_range.end) for e in events if e.name == MARK]
        clock = fit(self._marks, seen)
        home = next((e.thread for e in events if e.name == MARK), None)
        us = threading.get_native_id()
        self.ops = [
            TorchOp(e.name, clock(e.time_range.start), clock(e.time_range.end), us if e.thread == home else None)
            for e in events
            if e.scope != USER_SCOPE
        ]

    def _read_trace(self, events: list[dict[str, Any]]) -> None:
        """The Chrome trace that kineto writes: microseconds, host ops in ``cpu_op``, device work by correlation id."""
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
    """Started by ``start()``; after ``stop()`` there are ``ops`` and ``launched``. ``problem`` says why there are none;
    ``thread``: the one that it sees.

    torch has one tracer, so tracers that run at the same time share its segments: where one starts or stops a segment ends, and
    what it saw belongs to all that were running."""

    def __init__(self, cuda: bool) -> None:
        super().__init__(cuda)
        self.thread: int | None = None
        self.over = False

    def start(self) -> None:
        """Raises nothing: a tracer that is taken, by the user's own profiler or in another thread, is a ``problem``."""
        with _RUNNING.lock:
            if not _RUNNING.has_tracer():
                self.problem = "torch's tracer is in use: kernels of torch's are not told"
                return
            self.thread = threading.get_native_id()
            _RUNNING.turn([*_RUNNING.tracers, self], self.cuda)

    def stop(self) -> None:
        """End the trace. In another thread than where it began that can't be done: the next one that starts there does it."""
        with _RUNNING.lock:
            if self in _RUNNING.tracers and _RUNNING.has_tracer():
                _RUNNING.turn([t for t in _RUNNING.tracers if t is not self], self.cuda)
            elif self.thread is not None:
                self.problem = "the profile was left in another thread than it was entered in: kernels of torch's are not told"
            self.over = True
        if self.cuda and not self.kernels:
            self.problem = self.problem or "the device's tracer (CUPTI) reported no kernels"

    def take(self, segment: Segment) -> None:
        """What a segment saw."""
        self.ops += segment.ops
        self.launched += segment.launched
        self.problem = self.problem or segment.problem
        self.kernels |= segment.kernels
        self.heard |= segment.heard


class _Running:
    """The tracers that run, and the segment that they are in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tracers: list[Tracer] = []
        self.segment: Segment | None = None

    def has_tracer(self) -> bool:
        """Whether this thread can have torch's tracer."""
        if self.segment is not None:
            return self.segment.thread == threading.get_ident()
        return not torch_private.profiler_runs()

    def turn(self, tracers: Sequence[Tracer], cuda: bool) -> None:
        """These run from here on."""
        if self.segment is not None:
            self.segment.end()
            for tracer in self.tracers:
                if not tracer.over:
                    tracer.take(self.segment)
        self.tracers = [t for t in tracers if not t.over]
        self.segment = Segment(cuda) if self.tracers else None
        if self.segment is not None:
            self.segment.begin()


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
    """From their microseconds to our nanoseconds. Each mark of theirs lies within ours, which bounds how far the clocks are
    apart; at each end, the middle of what all marks there allow.

    Raises ValueError when the marks don't match in number."""
    if len(ours) != len(theirs):
        raise ValueError(f"torch's tracer saw {len(theirs)} of {len(ours)} marks")
    half, zero = len(ours) // 2, theirs[0][0]
    points = []
    for part in (slice(half), slice(half, None)):
        since = [((start - zero) * 1000, (end - zero) * 1000) for start, end in theirs[part]]
        starts, ends = ([o[i] - t[i] for o, t in zip(ours[part], since, strict=True)] for i in (0, 1))
        x, apart = sum(map(sum, since)) / (2 * len(since)), max(starts) + min(ends)
        points.append((x, x + apart / 2))
    (x0, y0), (x1, y1) = points
    slope = (y1 - y0) / (x1 - x0) if x1 - x0 > 1e6 else 1.0  # a span under a millisecond fits no slope
    return lambda time: int(y0 + ((time - zero) * 1000 - x0) * slope)
