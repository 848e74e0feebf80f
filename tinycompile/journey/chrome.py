"""A profile in Chrome's trace format: host threads and device streams as rows, an arrow from each launch to its kernel.

The format: "Trace Event Format" (complete events ``X``, flow events ``s`` and ``f``, metadata ``M``); times in microseconds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tinycompile.journey.events import KernelRun, Step

if TYPE_CHECKING:
    from tinycompile.journey.session import Profile

HOST, DEVICE = 1, 2


def trace(p: Profile) -> dict[str, Any]:
    """The JSON object, ready for ``json.dumps``."""
    events = [_named("process_name", HOST, 0, f"host (pid {os.getpid()})"), _named("process_name", DEVICE, 0, p.card.name)]
    threads: set[int] = set()
    streams: set[int] = set()
    for number, step in enumerate(p.walk()):
        threads.add(step.thread)
        events += _host(p, step)
        for i, run in enumerate(step.kernels):
            if run.device == "cpu":
                continue
            streams.add(run.stream or 0)
            events += _device(p, step, run, f"{number}.{i}")
    events += [_named("thread_name", HOST, t, f"thread {t}") for t in sorted(threads)]
    events += [_named("thread_name", DEVICE, s, f"stream {s}") for s in sorted(streams)]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"made by": "tinycompile.profile()"}}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _span(p: Profile, name: str, cat: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    at, length = (start - p.start) / 1e3, max(end - start, 0) / 1e3
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": at, "dur": length, "args": args}


def _host(p: Profile, step: Step) -> list[dict[str, Any]]:
    """The step, and its handlers inside it."""
    args = {"keys": step.keyset, "line": step.line, "operands": step.operands, "results": step.results, "bytes": step.moved}
    told = {k: v for k, v in args.items() if v not in ("", None)}
    spans = [_span(p, step.name, step.kind, HOST, step.thread, step.start, step.end, told)]
    for h in step.handlers:
        spans.append(_span(p, f"{h.key} {h.name}", "handler", HOST, step.thread, h.start, h.end, {"keys": h.keyset}))
    return spans


def _device(p: Profile, step: Step, run: KernelRun, flow: str) -> list[dict[str, Any]]:
    args = {
        "grid": run.grid, "block": run.block, "registers": run.registers, "shared": run.shared, "occupancy": run.occupancy,
        "bytes": step.moved, "op": step.name,
    }  # fmt: skip
    tid = run.stream or 0
    told = {k: v for k, v in args.items() if v is not None}
    arrow = {"cat": "launch", "name": "launch", "id": flow}
    return [
        _span(p, run.name, "kernel", DEVICE, tid, run.start, run.end, told),
        {"ph": "s", "pid": HOST, "tid": step.thread, "ts": (step.start - p.start) / 1e3, **arrow},
        {"ph": "f", "bp": "e", "pid": DEVICE, "tid": tid, "ts": (run.start - p.start) / 1e3, **arrow},
    ]
