"""The most bytes that torch's allocators had given out at once while a call ran.

On a GPU the caching allocator counts them. On a CPU torch's profiler reports each allocation and each release of the
allocator that eager, our wrapper and Inductor's take their tensors from; they are added up in order. What a kernel or a
library takes from ``malloc`` itself is in neither number.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_BETWEEN = "benchmarks: between forward and backward"


@dataclass(frozen=True)
class Use:
    """Bytes above what was held when the call began. ``peak``: the most at once; ``saved``: what was held when the forward
    had returned, results included."""

    peak: int
    saved: int


def use_of(forward: Callable[[], Any], backward: Callable[[Any], object], device: str) -> Use:
    """Of ``backward(forward())``. Both have run before, so that nothing of the first call counts."""
    gc.collect()
    return (_on_card if device == "cuda" else _on_cpu)(forward, backward)


def _on_card(forward: Callable[[], Any], backward: Callable[[Any], object]) -> Use:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    held = [forward()]
    saved = torch.cuda.memory_allocated() - before
    backward(held.pop())
    torch.cuda.synchronize()
    return Use(torch.cuda.max_memory_allocated() - before, saved)


def _on_cpu(forward: Callable[[], Any], backward: Callable[[Any], object]) -> Use:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        held = [forward()]
        with record_function(_BETWEEN):
            pass
        backward(held.pop())
    with tempfile.TemporaryDirectory(prefix="tinycompile-bench-") as folder:
        path = Path(folder) / "trace.json"
        made.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    between = next(e["ts"] for e in events if e["name"] == _BETWEEN)
    steps = sorted((e["ts"], e["args"]["Ev Idx"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    now = peak = saved = 0
    for at, _, size in steps:
        now += size
        peak = max(peak, now)
        saved = now if at < between else saved
    return Use(peak, saved)
