"""Autotuning: each candidate configuration of a kernel is timed on the arguments of its first call, and the fastest is kept.

The choice lies in a disk cache entry of its own, with the winner's binary: keyed on what the kernel computes (its name and
those of its variables don't count), its candidates, the card and the versions. A second process, or another graph with the
same kernel, does not time again.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tinycompile.base.logs import log
from tinycompile.ir.source import Config, KernelSource
from tinycompile.runtime.cache import DiskCache, Entry
from tinycompile.runtime.twins import canonical_text, signature

Launcher = Callable[..., Any]
Timer = Callable[[Sequence[Launcher], int, Sequence[Any]], list[float]]
CHOICE = "choice.json"
STEM = "kernel"  # of the winner's binary: the same for every kernel that computes this
FLUSH_BYTES = 256 << 20
ROUNDS, MOST_SECONDS = 15, 0.2
LEAD = 2.0  # times what a launch takes the host: the device is busy for so long before it


@dataclass(frozen=True)
class Choice:
    """What an earlier tuning found: the configuration, and the entry with its binary."""

    config: Config
    entry: Entry


@dataclass(frozen=True)
class Tuner:
    """Recalls and keeps choices. ``about``: what they depend on besides the kernel: card and versions. ``disk`` may be None.
    ``told``: by name, what was found so far, in words. ``timer``: None for the device's."""

    disk: DiskCache | None
    about: Mapping[str, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    timer: Timer | None = None

    def parts(self, source: KernelSource) -> dict[str, str]:
        """All that a choice depends on, by name."""
        return {
            "kernel": canonical_text(source),
            "arguments": signature(source),
            "grid": repr(tuple(map(str, source.grid))),
            "candidates": repr(source.configs),
            **self.about,
        }

    def recall(self, source: KernelSource) -> Choice | None:
        """The choice of an earlier process or graph; None where there is none that can be read."""
        entry = self.disk.get(DiskCache.key(self.parts(source))) if self.disk is not None else None
        if entry is None:
            return None
        chosen = json.loads(entry.text(CHOICE))["config"]
        return Choice(source.configs[chosen], entry) if 0 <= chosen < len(source.configs) else None

    def keep(self, source: KernelSource, chosen: int, seconds: Sequence[float], files: Mapping[str, bytes]) -> None:
        """Write a choice down."""
        if self.disk is not None:
            parts = self.parts(source)
            told = json.dumps({"config": chosen, "microseconds": [round(s * 1e6, 2) for s in seconds]})
            self.disk.put(DiskCache.key(parts), {CHOICE: told, **files}, parts)


class Tuned:
    """A launcher that times its candidates at its first call and launches the fastest from then on.

    Only for kernels without atomics or in-place updates: timing runs the kernel many times on the real arguments. ``keep``
    gets the winner's position and all times in seconds; ``settled``, if set, gets the winner, to call it directly.
    """

    def __init__(
        self,
        source: KernelSource,
        candidates: Sequence[Launcher],
        keep: Callable[[int, list[float]], None] | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.source, self.candidates = source, tuple(candidates)
        self.keep, self.timer = keep, timer or time_on_device
        self.settled: Callable[[Launcher], None] | None = None
        self.winner: Launcher | None = None
        self._lock = threading.Lock()

    def __call__(self, stream: int, *args: Any) -> None:
        winner = self.winner
        if winner is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                self.candidates[0](stream, *args)  # nothing can be timed inside a capture
                return
            winner = self._tune(stream, args)
        winner(stream, *args)

    def _tune(self, stream: int, args: Sequence[Any]) -> Launcher:
        with self._lock:
            if self.winner is not None:
                return self.winner
            seconds = self.timer(self.candidates, stream, args)
            best = min(range(len(seconds)), key=seconds.__getitem__)
            winner = self.winner = self.candidates[best]
            told = ", ".join(f"{describe(c)} {s * 1e6:.1f} us" for c, s in zip(self.source.configs, seconds, strict=True))
            log("kernels", f"{self.source.name}: configuration {best} is fastest ({told})")
            if self.keep is not None:
                self.keep(best, seconds)
            if self.settled is not None:
                self.settled(winner)
        return winner


def describe(config: Config) -> str:
    """``ROWS=4 COLS=1024 warps=8``."""
    return " ".join([*(f"{name}={value}" for name, value in config.constants), f"warps={config.num_warps}"])


def only(source: KernelSource, config: Config) -> KernelSource:
    """The kernel with one configuration left."""
    return replace(source, configs=(config,))


def time_on_device(candidates: Sequence[Launcher], stream: int, args: Sequence[Any]) -> list[float]:
    """The median seconds of each candidate on the device, taking turns. Before each launch memory is read: the L2 is flushed,
    and the device is busy until the host has enqueued all that the candidate does (a library's way may be several calls)."""
    flush = torch.zeros(FLUSH_BYTES // 4, device="cuda")
    read = _read_seconds(flush)
    reads = [1 + math.ceil(LEAD * _host_seconds(launch, stream, args) / read) for launch in candidates]
    rounds: list[list[float]] = []
    while len(rounds) < ROUNDS and (len(rounds) < 3 or sum(map(sum, rounds)) < MOST_SECONDS):
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in candidates]
        for launch, (before, after), count in zip(candidates, marks, reads, strict=True):
            for _ in range(count):
                flush.sum()
            before.record()
            launch(stream, *args)
            after.record()
        torch.cuda.current_stream().synchronize()
        rounds.append([before.elapsed_time(after) / 1e3 for before, after in marks])
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _host_seconds(launch: Launcher, stream: int, args: Sequence[Any]) -> float:
    """What a launch takes the host, after a first one."""
    launch(stream, *args)
    torch.cuda.current_stream().synchronize()
    start = time.perf_counter()
    launch(stream, *args)
    return time.perf_counter() - start


def _read_seconds(flush: torch.Tensor) -> float:
    """The least that a read of ``flush`` takes the device: the first ones find it asleep, and its clocks low."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(17)]
    for mark in marks:
        flush.sum()
        mark.record()
    marks[-1].synchronize()
    return min(before.elapsed_time(after) for before, after in itertools.pairwise(marks)) / 1e3
