"""What was measured, and how it is shown: a table on the terminal, JSON, Markdown, and a plot where matplotlib is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy import Verdict
from benchmarks.contenders import EAGER, INDUCTOR, INDUCTOR_GRAPHS, INDUCTOR_MAX, LIBRARY, OURS, OURS_GRAPHS, OURS_MAX, PAIRS
from benchmarks.workloads import geometric_mean

NAMES = {
    EAGER: "eager", OURS: "ours", INDUCTOR: "torch", OURS_MAX: "ours max", INDUCTOR_MAX: "torch max",
    OURS_GRAPHS: "ours graphs", INDUCTOR_GRAPHS: "torch graphs", LIBRARY: "library",
}  # fmt: skip


@dataclass
class Row:
    """The numbers of one workload, by contender. Times in seconds; what was not measured is absent. ``operations``: what our
    kernels compute; ``spread``: of our time, the middle half of the measurements over their median; ``note``: what bounds it,
    where that isn't memory."""

    workload: str
    sizes: str
    bytes: int = 0
    kernels: int | None = None
    copy: float | None = None
    run: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    cold: dict[str, float] = field(default_factory=dict)
    warm: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    correct: dict[str, bool] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    operations: int = 0
    spread: float | None = None
    note: str = ""

    def take(self, who: str, verdict: Verdict) -> None:
        """How right a contender's results are."""
        if verdict.problem:
            self.failed[who] = verdict.problem
        self.correct[who], self.error[who] = verdict.ok, verdict.error


@dataclass
class Results:
    """All rows of a run, where they were measured, and how."""

    suite: str
    device: str
    about: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing of ours failed or was wrong."""
        return not any(OURS in row.failed or not row.correct.get(OURS, True) for row in self.rows)

    def save(self, folder: Path) -> list[Path]:
        """Write ``<suite>_<device>.json`` and ``.md``, and ``.png`` where matplotlib is installed; the paths written."""
        stem = folder / f"{self.suite}_{self.device}"
        written = [self.write_json(folder), stem.with_suffix(".md")]
        written[1].write_text(self.markdown())
        return written + plot(self, stem.with_suffix(".png")) + plot_roofline(self, folder / f"roofline_{self.suite}.png")

    def write_json(self, folder: Path) -> Path:
        """Write ``<suite>_<device>.json``; the path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.suite}_{self.device}.json"
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        return path

    def markdown(self) -> str:
        """The table with what it says about the machine and the protocol."""
        head, *body = self.table()
        lines = [f"# Suite {self.suite} on {self.device}", ""]
        lines += [f"* {name}: {value}" for name, value in self.about.items()]
        lines += ["", "| " + " | ".join(head) + " |", "|" + "|".join(["---", "---"] + ["--:"] * (len(head) - 2)) + "|"]
        lines += ["| " + " | ".join(cells) + " |" for cells in body]
        return "\n".join([*lines, "", *self.remarks(), ""])

    def text(self) -> str:
        """The table for a terminal."""
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
            for r in table
        ]
        lines.insert(1, "  ".join("-" * w for w in widths))
        return "\n".join([*(f"{name}: {value}" for name, value in self.about.items()), "", *lines, "", *self.remarks()])

    def table(self) -> list[list[str]]:
        """Head and body, as text; only columns that hold something."""
        columns = [column for column in COLUMNS if any(column[1](row) for row in self.rows)]
        return [[title for title, _ in columns], *([cell(row) or "-" for _, cell in columns] for row in self.rows)]

    def remarks(self) -> list[str]:
        """Geometric means, wrong results, failures."""
        lines = []
        for what, kind in (
            ("run time", "run"),
            ("host time", "host"),
            ("cold compile time", "cold"),
            ("warm compile time", "warm"),
        ):
            for mine, other in ((OURS, EAGER), *PAIRS):
                ratios = [r for row in self.rows if (r := ratio(getattr(row, kind), other, mine))]
                if ratios:
                    lines.append(
                        f"* {what}: {mine} / {other}, geometric mean {geometric_mean(ratios):.2f}, worst {max(ratios):.2f}"
                    )
        lines += self._below_copy()
        for row in self.rows:
            lines += [
                f"* over the error bound: {who} on {row.workload}, relative error {row.error[who]:.1e}"
                for who, ok in row.correct.items()
                if not ok
            ]
            lines += [f"* FAILED: {who} on {row.workload}: {why}" for who, why in row.failed.items()]
        return lines

    def _below_copy(self) -> list[str]:
        """What bounds the rows under 90% of the copy's bandwidth; those without a note in one line."""
        measured = [r for r in self.rows if r.copy and OURS in r.run and r.bytes >= 1 << 20]
        under = [(r.workload, share, r.note) for r in measured if r.copy and (share := r.copy / r.run[OURS]) < 0.9]
        lines = [f"* {name} is at {share:.0%} of the copy's bandwidth: {note}" for name, share, note in under if note]
        rest = ", ".join(f"{name} {share:.0%}" for name, share, note in under if not note)
        return [*lines, f"* under 90% of the copy's bandwidth, not explained: {rest}"] if rest else lines


def about(device: str) -> dict[str, str]:
    """The machine and the versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{_cpu_name()}, {torch.get_num_threads()} threads",
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, triton {_triton_version()}",
    }


def one_line(error: Exception) -> str:
    """Its type and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]


def ratio(times: dict[str, float], other: str, mine: str = OURS) -> float | None:
    """Our time over another's; below 1 we are faster."""
    return times[mine] / times[other] if mine in times and other in times else None


def _milliseconds(who: str, kind: str = "run") -> Any:
    return lambda row: f"{getattr(row, kind)[who] * 1e3:.3f}" if who in getattr(row, kind) else ""


def _microseconds(who: str) -> Any:
    return lambda row: f"{row.host[who] * 1e6:.1f}" if who in row.host else ""


def _seconds(who: str, kind: str) -> Any:
    return lambda row: f"{getattr(row, kind)[who]:.2f}" if who in getattr(row, kind) else ""


def _ratio(kind: str, other: str, mine: str = OURS) -> Any:
    return lambda row: f"{r:.2f}" if (r := ratio(getattr(row, kind), other, mine)) else ""


def _share(row: Row) -> str:
    return f"{row.copy / row.run[OURS]:.0%}" if row.copy and OURS in row.run and row.bytes >= 1 << 20 else ""


COLUMNS: tuple[tuple[str, Any], ...] = (
    ("workload", lambda row: row.workload),
    ("first argument", lambda row: row.sizes),
    ("MB", lambda row: f"{row.bytes / 1e6:.1f}" if row.bytes else ""),
    ("kernels", lambda row: "" if row.kernels is None else str(row.kernels)),
    *((f"{name} ms", _milliseconds(who)) for who, name in NAMES.items()),
    ("ours/eager", _ratio("run", EAGER)),
    ("ours/torch", _ratio("run", INDUCTOR)),
    ("max ours/torch", _ratio("run", INDUCTOR_MAX, OURS_MAX)),
    ("graphs run ours/torch", _ratio("run", INDUCTOR_GRAPHS, OURS_GRAPHS)),
    ("ours/library", _ratio("run", LIBRARY)),
    ("% of copy", _share),
    ("GB/s", lambda row: f"{row.bytes / row.run[OURS] / 1e9:.0f}" if OURS in row.run and row.bytes >= 1 << 20 else ""),
    ("op/byte", lambda row: f"{row.operations / row.bytes:.1f}" if row.operations and row.bytes else ""),
    ("Gop/s", lambda row: f"{row.operations / row.run[OURS] / 1e9:.0f}" if row.operations and OURS in row.run else ""),
    ("spread", lambda row: f"{row.spread:.0%}" if row.spread is not None else ""),
    *((f"{name} host us", _microseconds(who)) for who, name in NAMES.items()),
    ("host ours/torch", _ratio("host", INDUCTOR)),
    ("graphs ours/torch", _ratio("host", INDUCTOR_GRAPHS, OURS_GRAPHS)),
    *((f"{NAMES[who]} cold s", _seconds(who, "cold")) for who in (OURS, INDUCTOR)),
    ("cold ours/torch", _ratio("cold", INDUCTOR)),
    *((f"{NAMES[who]} warm s", _seconds(who, "warm")) for who in (OURS, INDUCTOR)),
    ("warm ours/torch", _ratio("warm", INDUCTOR)),
    ("right", lambda row: ("yes" if row.correct[OURS] else "NO") if OURS in row.correct else ""),
)


class Progress:
    """A bar on stderr; one line a step where stderr is no terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def step(self, what: str) -> None:
        """Say what is being done now, and that everything before is done."""
        filled = 24 * self.done // max(self.total, 1)
        bar = f"[{'#' * filled}{'.' * (24 - filled)}] {self.done}/{self.total} {what}"
        print(
            f"\r{bar[:110]:<110}" if sys.stderr.isatty() else bar,
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )
        self.done += 1

    def close(self) -> None:
        """Leave the bar's line."""
        self.done = self.total
        self.step("done")
        if sys.stderr.isatty():
            print(file=sys.stderr)


_MEASURED = {"run": "time", "host": "host time of a call", "cold": "cold compile time", "peak": "peak of allocated bytes"}


def plot(results: Results, path: Path) -> list[Path]:
    """Bars of times, or of bytes, relative to eager (torch.compile where eager has none); [] without matplotlib or numbers."""
    kind = {"overhead": "host", "compile": "cold", "memory": "peak"}.get(results.suite, "run")
    base = INDUCTOR if kind == "cold" else EAGER
    rows = [row for row in results.rows if base in getattr(row, kind)]
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install -e '.[bench]')", file=sys.stderr)
        return []
    if not rows:
        return []
    figure, axes = pyplot.subplots(figsize=(9, 0.45 * len(rows) + 1.5))
    for i, (who, colour) in enumerate(((EAGER, "#b8b8b8"), (INDUCTOR, "#ee8866"), (OURS, "#4477aa"))):
        values = [getattr(row, kind).get(who, 0.0) / getattr(row, kind)[base] for row in rows]
        if any(values):
            axes.barh([y + 0.27 * (i - 1) for y in range(len(rows))], values, height=0.25, label=who, color=colour)
    axes.set_yticks(range(len(rows)), _labels(rows))
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.6)
    axes.set_xlabel(f"{_MEASURED[kind]} relative to {base}")
    axes.set_title(results.about["device"])
    axes.legend(loc="best", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return [path]


def plot_roofline(results: Results, path: Path) -> list[Path]:
    """Operations a second over operations a byte, with the copy's bandwidth as the roof; [] without matplotlib or numbers."""
    rows = [r for r in results.rows if r.operations and r.copy and OURS in r.run and r.bytes >= 1 << 20]
    if importlib.util.find_spec("matplotlib") is None or not rows:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    bandwidth = max(r.bytes / r.copy for r in rows if r.copy)
    reach = [r.operations / r.bytes for r in rows]
    ends = (min(reach) / 1.5, max(reach) * 1.5)
    axes.loglog(ends, [x * bandwidth for x in ends], color="black", linewidth=0.8, label=f"copy, {bandwidth / 1e9:.0f} GB/s")
    for who, colour in ((INDUCTOR, "#ee8866"), (OURS, "#4477aa")):
        points = [(r.operations / r.bytes, r.operations / r.run[who]) for r in rows if who in r.run]
        if points:
            axes.scatter(*zip(*points, strict=True), label=who, color=colour, s=22)
    for r in rows:
        axes.annotate(r.workload, (r.operations / r.bytes, r.operations / r.run[OURS]), fontsize=5)
    axes.set_xlabel("operations a byte (arguments and results once)")
    axes.set_ylabel("operations a second")
    axes.set_title(results.about["device"])
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return [path]


def _labels(rows: Iterable[Row]) -> list[str]:
    return [f"{row.workload}\n{row.sizes}" for row in rows]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _triton_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"
