"""The timing protocol: contenders take turns, caches are flushed before each call, medians are reported. Who follows whom is
drawn anew for each round: some caches keep a part of what was read two calls ago.

On a GPU the time between two CUDA events is taken. Before the first event a large buffer is *read*: that empties the L2
without leaving dirty lines behind, and keeps the card busy while the host enqueues the call, so launch latency stays out.
On a CPU the wall time of the call is taken; results are fresh tensors, so page faults of their memory count, for all
contenders and for the copy alike.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

Call = Callable[[], object]

FLUSH_BYTES = {"cuda": 512 << 20, "cpu": 256 << 20}


def flusher(device: str) -> Call:
    """A call that reads a buffer larger than the last-level cache."""
    buffer = torch.zeros(FLUSH_BYTES[device] // 4, device=device)
    return buffer.sum


def interleaved(calls: Mapping[str, Call], device: str, seconds: float, least: int = 5) -> dict[str, float]:
    """The median time of each call in seconds. About ``seconds`` of measuring in all, at least ``least`` rounds."""
    return {name: statistics.median(times) for name, times in samples(calls, device, seconds, least).items()}


def spread(times: Sequence[float]) -> float:
    """The middle half of some measurements over their median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def samples(calls: Mapping[str, Call], device: str, seconds: float, least: int = 5) -> dict[str, tuple[float, ...]]:
    """All times of each call in seconds, taken in turns."""
    flush = flusher(device)
    measure = _cuda_seconds if device == "cuda" else _cpu_seconds
    measure(list(calls.values()), flush)  # warm-up, not counted
    times: dict[str, list[float]] = {name: [] for name in calls}
    order, rng = list(calls), random.Random(0)
    start, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - start < seconds:
        rng.shuffle(order)
        for name, taken in zip(order, measure([calls[name] for name in order], flush), strict=True):
            times[name].append(taken)
        rounds += 1
    return {name: tuple(taken) for name, taken in times.items()}


def _cuda_seconds(calls: Sequence[Call], flush: Call) -> list[float]:
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
    for call, (before, after) in zip(calls, marks, strict=True):
        flush()
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in marks]


def _cpu_seconds(calls: Sequence[Call], flush: Call) -> list[float]:
    times = []
    for call in calls:
        flush()
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return times


def host_seconds(calls: Mapping[str, Call], device: str, seconds: float, batch: int = 50) -> dict[str, float]:
    """Host time of one call. ``batch`` calls are enqueued without waiting, which stays below what a stream's queue holds. The
    first calls of a batch find in the CPU's caches what the last batch left."""
    best: dict[str, list[float]] = {name: [] for name in calls}
    order, rng = list(calls.items()), random.Random(0)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        rng.shuffle(order)
        for name, call in order:
            synchronize(device)
            before = time.perf_counter()
            for _ in range(batch):
                call()
            best[name].append((time.perf_counter() - before) / batch)
    synchronize(device)
    return {name: statistics.median(times) for name, times in best.items()}


def copy_call(bytes_moved: int, device: str) -> Call:
    """A copy that reads half of ``bytes_moved`` and writes the other half: what defines the bandwidth."""
    source = torch.randint(0, 256, (max(bytes_moved // 2, 1),), dtype=torch.uint8, device=device)  # zeros may move faster
    if device == "cpu":
        return source.clone  # a fresh result, as the contenders make
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
