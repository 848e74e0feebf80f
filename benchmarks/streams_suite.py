"""Suite ``streams``: what streams and pinned memory are for, and why a time taken without synchronising is none.

Batches come from the host, and a compiled function works on each. On one stream copy and compute take turns; on two the next
batch is copied while this one is computed. A CPU runs the same program in order: its rows show that the calls cost nothing.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import tinycompile
from benchmarks.contenders import Settings
from benchmarks.workloads import Workload
from tinycompile import cuda

BATCHES, ROUNDS = 8, 7


@dataclass
class StreamResults:
    """Rows of (what, milliseconds, remark). ``right``: whether every way of copying gave the same values."""

    suite: str
    device: str
    about: dict[str, str]
    rows: list[tuple[str, float, str]] = field(default_factory=list)
    right: bool = True

    def text(self) -> str:
        """A table for a terminal."""
        width = max(len(what) for what, _, _ in self.rows)
        head = [f"{name}: {value}" for name, value in self.about.items()]
        return "\n".join([*head, "", *(f"{what:<{width}}  {ms:9.3f} ms  {told}".rstrip() for what, ms, told in self.rows)])

    def markdown(self) -> str:
        """The same as Markdown."""
        lines = [f"# Suite {self.suite} on {self.device}", "", *(f"* {n}: {v}" for n, v in self.about.items()), ""]
        lines += ["| what | ms | |", "|---|--:|---|"]
        return "\n".join([*lines, *(f"| {what} | {ms:.3f} | {told} |" for what, ms, told in self.rows), ""])

    def save(self, folder: Path) -> list[Path]:
        """Write ``streams_<device>.json`` and ``.md``; the paths written."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / f"{self.suite}_{self.device}"
        stem.with_suffix(".json").write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        stem.with_suffix(".md").write_text(self.markdown())
        return [stem.with_suffix(".json"), stem.with_suffix(".md")]


def run_streams(workloads: Sequence[Workload], settings: Settings) -> StreamResults:
    """All rows. ``workloads`` are other suites' and play no part."""
    on_card = settings.device == "cuda"
    side = 128 if settings.quick else 4096 if on_card else 512
    host = [torch.randn(side, side) for _ in range(BATCHES)]
    pinned = [x.pin_memory() if on_card else x for x in host]
    w = torch.randn(side, side, device=settings.device)

    @tinycompile.compile
    def work(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w).mean(1)

    name = torch.cuda.get_device_name() if on_card else f"CPU, {torch.get_num_threads()} threads"
    about = {
        "device": name,
        "versions": f"torch {torch.__version__}",
        "batches": f"{BATCHES} of {side} x {side} float32, {side * side * 4 / 1e6:.1f} MB each",
        "protocol": f"median of {ROUNDS} rounds after one to warm up; the host's clock, synchronised at both ends",
    }
    results = StreamResults("streams", settings.device, about)
    there = host[0].to(settings.device)
    work(there)
    _timing_lies(results, work, there)
    _overlap(results, work, host, pinned, settings.device)
    _host_cost(results)
    return results


def _timing_lies(results: StreamResults, work: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
    """One call, timed in three ways."""
    launch = _median(lambda: work(x), synchronised=False)
    whole = _median(lambda: work(x))
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    start.record()
    work(x)
    end.record()
    cuda.synchronize()
    results.rows += [
        ("one call, the clock stopped when it returns", launch * 1e3, "the launch alone, where there is a device"),
        ("one call, synchronised", whole * 1e3, f"{whole / launch:.1f} times as long"),
        ("one call, by events", start.elapsed_time(end), "the device's own clock"),
    ]


def _overlap(
    results: StreamResults,
    work: Callable[..., torch.Tensor],
    host: Sequence[torch.Tensor],
    pinned: Sequence[torch.Tensor],
    device: str,
) -> None:
    """Copy and compute: each alone, in turns, and at the same time."""
    copies = cuda.Stream(device)
    there = [x.to(device) for x in host]

    def in_turns(batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [work(x.to(device, non_blocking=True)) for x in batches]

    def at_once() -> list[torch.Tensor]:
        found = []
        for x in pinned:
            with cuda.stream(copies):
                y = x.to(device, non_blocking=True)
            now = cuda.current_stream(device)
            now.wait_stream(copies)
            if now.raw is not None:
                y.record_stream(now.raw)  # not given away before the work on it is done
            found.append(work(y))
        return found

    copy = _median(lambda: [x.to(device, non_blocking=True) for x in pinned])
    compute = _median(lambda: [work(x) for x in there])
    pageable, serial, overlapped = _median(lambda: in_turns(host)), _median(lambda: in_turns(pinned)), _median(at_once)
    wanted = [work(x) for x in there]
    results.right = all(torch.equal(a, b) for a, b in zip(at_once(), wanted, strict=True))
    hidden, speed = (serial - overlapped) / min(copy, compute), sum(x.nbytes for x in host) / copy / 1e9
    on_card = device == "cuda"
    results.rows += [
        ("copies alone, pinned", copy * 1e3, f"{speed:.1f} GB/s" if on_card else "there is nothing to copy"),
        ("compute alone", compute * 1e3, ""),
        ("in turns, pageable memory", pageable * 1e3, ""),
        ("in turns, pinned memory", serial * 1e3, ""),
        (
            "at once: copies on a stream of their own",
            overlapped * 1e3,
            f"{hidden:.0%} of the shorter part is hidden" if on_card else "",
        ),
        ("the longer of both parts", max(copy, compute) * 1e3, "the least there can be"),
    ]


def _host_cost(results: StreamResults) -> None:
    """What entering a stream and waiting costs the host."""
    side = cuda.Stream()

    def enter() -> None:
        for _ in range(100):
            with cuda.stream(side):
                pass
            cuda.current_stream().wait_stream(side)

    results.rows.append(("host time to enter a stream and wait for it", _median(enter) * 10, ""))


def _median(call: Callable[[], object], synchronised: bool = True) -> float:
    """Seconds."""
    times = []
    for _ in range(ROUNDS + 1):
        cuda.synchronize()
        start = time.perf_counter()
        call()
        if synchronised:
            cuda.synchronize()
        times.append(time.perf_counter() - start)
    cuda.synchronize()
    return statistics.median(times[1:])
