"""``python -m benchmarks --suite cpu --device cpu``: 43 workloads beside eager and ``torch.compile``, in one process.

Per row: run times in turns, the share of the bandwidth that a copy (or, where twice as much is read as written, a triad) of as
many bytes reaches, what the call takes on data in the cache, and the seconds of the first call with empty caches. All results
are judged by float64.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy import judge
from benchmarks.cached import cached_seconds, can_fold
from benchmarks.contenders import CONTENDERS, EAGER, INDUCTOR, OURS, Settings
from benchmarks.results import COLUMNS, Progress, Results, Row, about, one_line, ratio
from benchmarks.timing import FLUSH_BYTES, copy_call, samples, spread
from benchmarks.workloads import Workload, count_bytes, geometric_mean, tensors
from tinycompile.base.config import config

PROTOCOL = (
    "wall time of one call, contenders and the copy or triad in turns whose order is drawn, medians; the share of the "
    "bandwidth is the median over rounds of the copy's or triad's time over ours in the same round; before each, "
    f"{FLUSH_BYTES['cpu'] >> 20} MB are read to empty the caches; page faults of fresh results count, for all. "
    "Cold compile: the first call with empty caches on disk, all in one process; torch.compile's first is shown apart. Cached: "
    "the same code on tensors of the same sizes whose pages are all the same 64 KB, one thread's time over the number of "
    "threads. Memory bounds a row of 1 MB or more if the better cached time, of ours and torch.compile's, is below the "
    "copy's or triad's"
)
SECONDS = 5.0  # of measuring, a row: some 60 rounds, each of which reads 1 GB to empty the caches
CACHED_SECONDS = 0.5  # of that, on data in the cache, a row


@dataclass
class CpuRow(Row):
    """``reference``: what the bandwidth is measured with, copy or triad. ``share``: of the measured bandwidth, by rounds: that
    of a shared machine drifts. ``cached``: seconds on data in the cache. ``note``: what takes long where memory does not."""

    reference: str = "copy"
    share: float | None = None
    cached: dict[str, float] = field(default_factory=dict)

    @property
    def by_memory(self) -> bool:
        """Whether memory bounds it: the least time of its arithmetic that was seen is below that of its bytes, of which there
        are so many that the call's own time does not count."""
        return bool(self.copy and self.cached) and self.bytes >= 1 << 20 and min(self.cached.values()) < (self.copy or 0)


Column = tuple[str, Callable[[Any], str]]


def _cached(who: str) -> Callable[[Any], str]:
    return lambda r: f"{r.cached[who] * 1e3:.3f}" if who in r.cached else ""


CACHED: tuple[Column, ...] = (
    ("copy ms", lambda r: f"{r.copy * 1e3:.3f}" if r.copy else ""),
    ("ours cached ms", _cached(OURS)),
    ("torch cached ms", _cached(INDUCTOR)),
)


class CpuResults(Results):
    """The table and the bars of the issue."""

    def table(self) -> list[list[str]]:
        """As of any suite, with the share of the bandwidth by copy or triad."""
        bandwidth: Column = ("bandwidth", lambda r: f"{r.share:.0%} {r.reference}" if r.by_memory and r.share else "")
        columns: list[Column] = []
        for title, cell in COLUMNS:
            if title == "% of copy":
                columns += [*CACHED, bandwidth]
            elif title not in ("op/byte", "Gop/s"):
                columns.append((title, cell))
        columns = [c for c in columns if any(c[1](row) for row in self.rows)]
        return [[title for title, _ in columns], *([cell(row) or "-" for _, cell in columns] for row in self.rows)]

    def remarks(self) -> list[str]:
        """The bars, then what failed."""
        rows = [r for r in self.rows if isinstance(r, CpuRow)]
        lines = []
        for other in (INDUCTOR, EAGER):
            found = {r.workload: q for r in rows if (q := ratio(r.run, other))}
            if found:
                above = ", ".join(f"{n} {q:.2f}" for n, q in sorted(found.items(), key=lambda i: -i[1]) if q > 1.15)
                lines.append(f"* run time: ours / {other}, geometric mean {geometric_mean(list(found.values())):.2f}; "
                             f"above 1.15: {above or 'none'}")  # fmt: skip
        bound = [r for r in rows if r.by_memory and r.share]
        low = [f"{r.workload} {r.share:.0%}" for r in bound if r.share and r.share < 0.85]
        arithmetic = [f"{r.workload} {min(r.cached.values()) / r.copy:.2f}{f' ({r.note})' if r.note else ''}"
                 for r in rows if r.cached and r.copy and not r.by_memory]  # fmt: skip
        if arithmetic:
            lines.append(f"* bound by arithmetic, the better cached time over the copy's or triad's: {', '.join(arithmetic)}")
        if bound:
            lines.append(f"* at 85% of the bandwidth: {len(bound) - len(low)} of {len(bound)} bound by memory; below: "
                         f"{', '.join(low) or 'none'}")  # fmt: skip
        lines += _compile_remarks(rows)
        wrong = [(who, r) for r in rows for who, ok in r.correct.items() if not ok]
        lines += [f"* over the error bound: {who} on {r.workload}: {r.error[who]:.1e}" for who, r in wrong]
        return lines + [f"* FAILED: {who} on {r.workload}: {why}" for r in rows for who, why in r.failed.items()]


def _compile_remarks(rows: Sequence[CpuRow]) -> list[str]:
    both = [r.cold for r in rows if {OURS, INDUCTOR} <= set(r.cold)]
    if not both:
        return []
    first, later = both[0], both[1:]
    lines = [f"* cold compile, the first: ours {first[OURS]:.2f} s, {INDUCTOR} {first[INDUCTOR]:.2f} s: "
             f"{first[OURS] / first[INDUCTOR]:.2f}"]  # fmt: skip
    if later:
        ratios = [c[OURS] / c[INDUCTOR] for c in later]
        lines.append(f"* cold compile, later ones: ours / {INDUCTOR}, geometric mean {geometric_mean(ratios):.2f}, worst "
                     f"{max(ratios):.2f}; medians {statistics.median(c[OURS] for c in later):.2f} s and "
                     f"{statistics.median(c[INDUCTOR] for c in later):.2f} s")  # fmt: skip
    return lines


def run_cpu(workloads: Sequence[Workload], settings: Settings) -> CpuResults:
    """Compile and measure each row; finished rows are kept on disk while others run."""
    results = CpuResults(
        "cpu", "cpu", {**about("cpu"), "load": f"{os.getloadavg()[0]:.1f} when it began", "protocol": PROTOCOL}
    )
    progress = Progress(len(workloads))
    with (
        tempfile.TemporaryDirectory(prefix="tinycompile-cpu-") as root,
        config.patch(cache_dir=str(Path(root) / "tinycompile")),
    ):
        before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(root) / "inductor")
        try:
            for workload in workloads:
                progress.step(workload.name)
                results.rows.append(_measured(workload, settings))
                if settings.out is not None:
                    results.write_json(settings.out)
        finally:
            if before is None:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            else:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
    progress.close()
    return results


def _measured(workload: Workload, settings: Settings) -> CpuRow:
    inputs = workload.inputs("cpu")
    row = CpuRow(workload.name, workload.sizes("cpu"), note=workload.note)
    expected, eager = workload.expected(inputs), tensors(workload.fn(*inputs))
    row.bytes = count_bytes(inputs, eager)
    written = count_bytes([], eager)
    row.reference = "triad" if row.bytes - written >= 2 * written > row.bytes // 8 else "copy"
    calls: dict[str, Callable[[], Any]] = {}
    for who in settings.contenders:
        start = time.perf_counter()
        try:
            fn = CONTENDERS[who](workload.fn)
            got = tensors(fn(*inputs))
        except Exception as error:  # noqa: BLE001  # a contender that fails is a result, and the others go on
            row.failed[who] = one_line(error)
            continue
        if who != EAGER:
            row.cold[who] = time.perf_counter() - start
        if who == OURS:
            row.kernels, row.stages = len(fn.kernels), dict(fn.stage_times)
        row.take(who, judge(got, eager, expected))
        calls[who] = lambda fn=fn: fn(*inputs)  # type: ignore[misc]
    del expected, eager
    calls["copy"] = triad_call(row.bytes) if row.reference == "triad" else copy_call(row.bytes, "cpu")
    times = samples(calls, "cpu", settings.seconds or (0.2 if settings.quick else SECONDS))
    copies = times.pop("copy")
    row.copy = statistics.median(copies)
    row.run = {who: statistics.median(taken) for who, taken in times.items()}
    if OURS in times:
        row.spread = spread(times[OURS])
        row.share = statistics.median(copy / ours for copy, ours in zip(copies, times[OURS], strict=True))
    row.cached = _on_cached_data(workload, settings, [who for who in (OURS, INDUCTOR) if who in calls], inputs)
    return row


def _on_cached_data(workload: Workload, settings: Settings, who: Sequence[str], inputs: Sequence[Any]) -> dict[str, float]:
    """What the arithmetic takes, by contender."""
    seconds = 0.1 if settings.quick else CACHED_SECONDS
    return cached_seconds({w: CONTENDERS[w] for w in who}, workload.fn, inputs, seconds) if can_fold() else {}


def triad_call(bytes_moved: int) -> Callable[[], object]:
    """``a = b + 3c`` that reads two thirds of ``bytes_moved`` and writes a fresh third."""
    b, c = (torch.rand(max(bytes_moved // 12, 1)) for _ in range(2))
    return lambda: torch.add(b, c, alpha=3)
