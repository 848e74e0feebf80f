"""``profile()``: a ``with`` block in which everything that runs is written down, and what it then shows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import torch

from tinycompile.api import compiled_functions
from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.compiler import CompiledGraph
from tinycompile.dispatch import dispatcher
from tinycompile.eager import torch_calls
from tinycompile.ir.source import KernelSource
from tinycompile.journey import calls, chrome, matching, profile_page, table
from tinycompile.journey.card import Card, card_of
from tinycompile.journey.events import KernelRun, Step
from tinycompile.journey.recorder import Recorder
from tinycompile.journey.tracer import Tracer
from tinycompile.report import halves
from tinycompile.runtime import linked


class Profile:
    """What ran inside ``with tinycompile.profile() as p:``, by op.

    ``steps``: a tree for each thread (see :class:`~tinycompile.journey.events.Step`); ``card``: the device's numbers;
    ``problem``: why kernels on the device were not traced, if so. ``print(p)`` is a table, :meth:`html` a page,
    :meth:`chrome_trace` a trace for Perfetto. It can be entered once.
    """

    def __init__(self, *, events: bool = False) -> None:
        """``events``: time kernels on CUDA by events around each launch and not by the device's tracer."""
        self.steps: list[Step] = []
        self.start = self.end = 0
        self.problem: str | None = None
        self.device = Device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else Device("cpu")
        self._events = events and self.device.type == "cuda"
        self._recorder = Recorder(self._events)
        self._tracer = Tracer(self.device.type == "cuda")
        self._zero: Any = None

    @property
    def card(self) -> Card:
        """The device's numbers; a CPU's bandwidth is measured when first asked for."""
        return card_of(self.device)

    def __enter__(self) -> Profile:
        if self.start:
            raise RuntimeError("a profile can be entered once: make another")
        self.start = perf_counter_ns()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if not self._events:
            self._tracer.start()
        else:
            self._zero = torch.cuda.Event(enable_timing=True)
            self._zero.record()
        dispatcher.watch(self._recorder.handler)
        torch_calls.watch(self._recorder.torchs_call)
        linked.watch(self._recorder.function)
        calls.watch(self._recorder)
        self.start = perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if not self.start or self.end:
            raise RuntimeError("a profile is left once, after it was entered")
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.end = perf_counter_ns()
        recorder, tracer = self._recorder, self._tracer
        recorder.close(self.end)
        calls.unwatch(recorder)
        linked.unwatch(recorder.function)
        torch_calls.unwatch(recorder.torchs_call)
        dispatcher.unwatch(recorder.handler)
        tracer.stop()
        self.problem = tracer.problem
        self.steps = recorder.steps
        ops = matching.outside_of(tracer.ops, recorder.asides)
        matching.assign(self.steps, ops, tracer.launched, self.device.type == "cpu")
        if tracer.thread is not None and (recorder.threads or recorder.untraced - {tracer.thread}):
            self.problem = self.problem or _ONE_THREAD
        if self.device.type == "cpu" and not self._events:
            self._by_the_hosts_clock(tracer.thread)
        if tracer.heard:
            matching.drop(self.steps, recorder.unsure)
        self._by_events()
        self._tell_kernels()

    # -- after the block -------------------------------------------------------------------------------------------------

    def _by_the_hosts_clock(self, traced: int | None) -> None:
        """Kernels of ops and library calls in threads that torch's tracer doesn't see, timed as generated ones are."""
        for step in self.walk():
            if step.thread != traced and step.kind in ("op", "library") and step.moved and not step.children:
                last = step.handlers[-1] if step.handlers else step
                step.kernels.append(KernelRun(step.name, last.start, last.end, "cpu"))

    def _by_events(self) -> None:
        """Kernels as events saw them: from the one before to the one after, on the device's clock."""
        for step, before, after in self._recorder.marks:
            start = self.start + int(self._zero.elapsed_time(before) * 1e6)
            end = start + int(before.elapsed_time(after) * 1e6)
            step.kernels.append(KernelRun(step.name, start, end, str(self.device), step.stream))

    def _tell_kernels(self) -> None:
        """Facts of generated kernels, from the compiled graphs that they belong to."""
        known = {id(half.source): half for half in _compiled_halves()}
        for step in self.walk():
            if step.source is not None:
                _tell_line(step, known.get(id(step.source)))
            if step.kind == "kernel" and step.source is not None:
                source = next(k for k in step.source.kernels if k.name == step.name)
                half = known.get(id(step.source))
                hints = dict(half.graph.hints) if half is not None else {}
                step.moved = _number(source, "bytes_moved", {**hints, **step.sizes})
                step.flops = _number(source, "flops", {**hints, **step.sizes})
                step.facts = half
                if self.device.type == "cpu":
                    step.kernels.append(KernelRun(step.name, step.start, step.end, "cpu"))
        if self.device.type == "cuda":
            for step in self.walk():
                for run in step.kernels:
                    self._tell_occupancy(run)

    def _tell_occupancy(self, run: KernelRun) -> None:
        if run.block is not None and run.registers is not None:
            threads = run.block[0] * run.block[1] * run.block[2]
            run.occupancy = self.card.occupancy(threads, run.registers, run.shared or 0)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def walk(self) -> Iterator[Step]:
        """Every step, parents before children."""
        for step in self.steps:
            yield from step.walk()

    def share(self, step: Step) -> float | None:
        """The share of the device's bandwidth that a step's kernels reached; None where bytes or times are not known."""
        if not step.moved or not step.busy:
            return None
        return step.moved / (step.busy / 1e9) / self.card.bandwidth

    def __str__(self) -> str:
        """A table with a line for each op, kernel and call; inside the block, that there is none yet."""
        return table.text(self) if self.end else "a profile of what has not ended: print it behind its block"

    def html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One page with everything in it: timeline, routes, code, roofline. Written to ``path`` too, if given."""
        return _written(profile_page.page(self), path)

    def chrome_trace(self, path: str | os.PathLike[str] | None = None) -> str:
        """A trace in Chrome's JSON format, which https://ui.perfetto.dev opens. Written to ``path`` too, if given."""
        return _written(json.dumps(chrome.trace(self)), path)


def profile(*, events: bool = False) -> Profile:
    """``with tinycompile.profile() as p:`` records each op that runs inside: its key set, its route through the dispatcher, the
    kernels that ran, their launch and time, bytes moved, and the user's line. ``print(p)`` shows a table, ``p.html()`` a page,
    ``p.chrome_trace()`` a trace for Perfetto.

    ``events``: time kernels on CUDA devices by events around each launch (coarser: the launch's own latency counts), for
    machines where the device's tracer (CUPTI) is not to be had. Recording slows ops down by some microseconds each.
    """
    return Profile(events=events)


_ONE_THREAD = "torch's tracer sees one thread: what torch did in others, but for calls of ours, is not told"


def _tell_line(step: Step, half: CompiledGraph | None) -> None:
    """For work of a module of torch's, whose lines are none of the program's: where that called it."""
    nodes = () if half is None or step.lines else half.graph.nodes
    files = {f"{os.path.basename(n.loc.file)}:{n.loc.line}": n.loc.file for n in nodes if n.loc is not None}
    if all(not line or line.startswith(_TORCHS) for line in step.lines or (files.get(step.line, step.line),)):
        step.line, step.lines = step.called, ()


_TORCHS = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _compiled_halves() -> Iterator[CompiledGraph]:
    for function in compiled_functions():
        for entry in function.all_entries:
            yield from halves(entry.compiled)


def _number(source: KernelSource, name: str, sizes: dict[str, int]) -> int | None:
    value = getattr(source, name)
    if isinstance(value, int):
        return value
    return ex.evaluate(value, sizes) if {s.name for s in ex.symbols(value)} <= sizes.keys() else None
