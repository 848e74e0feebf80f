"""What a run over the op database found: the results file, the table on the screen, and the page in the documentation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.opinfo_entry import Outcome


@dataclass(frozen=True)
class Run:
    """What a results file is about, its first line. ``samples``: how many an entry and dtype at most; None: all."""

    check: str
    backend: str
    device: str
    samples: int | None
    versions: str
    date: str

    @property
    def title(self) -> str:
        """In a table's first column."""
        what = f"{self.check} on {self.device}" if self.backend == self.device else f"{self.check}, {self.backend}"
        return f"{what}, {'all samples' if self.samples is None else f'up to {self.samples} samples'}"

    def same(self, other: Run) -> bool:
        """Whether results of the one may stand in a table beside results of the other."""
        mine, theirs = (asdict(r) | {"date": ""} for r in (self, other))
        return mine == theirs


def start(path: Path, run: Run) -> None:
    """Begin a results file, or go on with one. Raises ValueError where it holds results of another kind of run."""
    if path.exists() and path.stat().st_size:
        before = read_run(path)
        if not run.same(before):
            raise ValueError(f"{path} holds results of another run: {before}; this one is {run}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")


def read_run(path: Path) -> Run:
    """The first line."""
    with path.open(encoding="utf-8") as file:
        return Run(**json.loads(file.readline()))


def read(path: Path) -> list[Outcome]:
    """The results so far; the last line of an entry and dtype counts."""
    if not path.exists():
        return []
    lines = [Outcome(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return list({(o.entry, o.dtype): o for o in lines}.values())


def is_right(outcome: Outcome) -> bool:
    """Whether every sample equals eager."""
    return outcome.status == "done" and not outcome.failed


def is_fused(outcome: Outcome) -> bool:
    """Whether, on top of that, no sample needs a library call."""
    return is_right(outcome) and 0 < outcome.samples == outcome.fused


_COUNTS = ("entries", "fused", "right", "samples", "no call", "calls", "breaks", "lucky", "wrong")


def _counts(of: Sequence[Outcome]) -> tuple[int, ...]:
    """Entries, those without library calls, those that are right; samples, without and with library calls, with graph breaks,
    right though eager was more exact by luck, wrong."""
    samples = [(o.samples, o.fused, o.extern, sum(o.broken.values()), o.lucky, sum(o.failed.values())) for o in of]
    return len(of), sum(map(is_fused, of)), sum(map(is_right, of)), *(sum(column) for column in zip(*samples, strict=True))


def by_dtype(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """In the order of first appearance."""
    found: dict[str, list[Outcome]] = {}
    for o in outcomes:
        found.setdefault(o.dtype, []).append(o)
    return found


def summary(outcomes: Sequence[Outcome], details: bool) -> str:
    """Counts by dtype, failures by kind, and one line for each entry that failed."""
    rows = [f"{'dtype':10} " + " ".join(f"{t:>9}" for t in _COUNTS)]
    for dtype, of in by_dtype(outcomes).items():
        rows.append(f"{dtype:10} " + " ".join(f"{n:9}" for n in _counts(of)))
    kinds: Counter[str] = Counter()
    for o in outcomes:
        kinds.update(o.failed | o.broken)
    rows += ["", *(f"{n:6} {kind}" for kind, n in kinds.most_common())]
    rows += [f"{o.entry} {o.dtype}: {o.status}" for o in outcomes if o.status != "done"]
    if details:
        rows += [f"{o.entry} {o.dtype}: {n} {k}: {o.messages[k]}" for o in outcomes for k, n in (o.failed | o.broken).items()]
    return "\n".join(rows)


def markdown(results: Mapping[Path, Sequence[Outcome]], names: Mapping[str, str]) -> str:
    """Counts by run and dtype, the op names that need no library call on any float32 sample, each entry and dtype of the
    first file, and what differs or was not finished."""
    lines = [
        "# torch's op database",
        "",
        "Written by `python -m benchmarks.opinfo --markdown`. *Fused*: no sample needs a library call; *right*: every sample "
        "equals eager (value judged by float64, shape, strides, dtype, aliasing, writes to arguments, or the exception). "
        "*Lucky*: within twice the error that eager has an ulp away from the sample, where by luck it has less.",
        "",
    ]
    runs = {path: read_run(path) for path in results}
    lines += [f"* {r.title}: {r.versions}, {r.date}" for r in runs.values()]
    lines += ["", f"| run | dtype | {' | '.join(_COUNTS)} |", "|---|---|" + "---|" * len(_COUNTS)]
    for path, outcomes in results.items():
        for dtype, of in by_dtype(outcomes).items():
            lines.append("| " + " | ".join(map(str, (runs[path].title, dtype, *_counts(of)))) + " |")
    first = next(iter(results.values()), [])
    fused, rest = fused_by_name(first, names)
    lines += ["", f"## {len(fused)} op names without a library call on any float32 sample", "", _listed(fused)]
    lines += ["", f"## {len(rest)} op names with library calls or graph breaks", "", _listed(rest)]
    every = [(runs[path].title, o) for path, outcomes in results.items() for o in outcomes]
    wrong = [f"* {t}: `{o.entry}` {o.dtype}: {n} x {k}: {o.messages[k][:200]}" for t, o in every for k, n in o.failed.items()]
    unfinished = [f"* {t}: `{o.entry}` {o.dtype}: {o.status}" for t, o in every if o.status != "done"]
    lines += ["", f"## Wrong: {len(wrong)}", "", *wrong, "", f"## Not finished: {len(unfinished)}", "", *unfinished]
    return "\n".join([*lines, "", *_by_entry(first)]).rstrip() + "\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _by_entry(outcomes: Sequence[Outcome]) -> list[str]:
    """A row an entry, a column a dtype: samples passed, with an f where none needs a library call, and what failed."""
    dtypes = list(by_dtype(outcomes))
    cells: dict[str, dict[str, str]] = {}
    for o in outcomes:
        failed = sum(o.failed.values())
        text = f"{o.samples - failed}{'f' if is_fused(o) else ''}" + (f", {failed} wrong" if failed else "")
        cells.setdefault(o.entry, {})[o.dtype] = text if o.status == "done" else o.status.partition(":")[0]
    lines = [
        "## By entry",
        "",
        "Samples that equal eager; `f`: none of them needs a library call.",
        "",
        f"| entry | {' | '.join(dtypes)} |",
        "|---|" + "---|" * len(dtypes),
    ]
    return [*lines, *(f"| `{e}` | {' | '.join(row.get(d, '') for d in dtypes)} |" for e, row in sorted(cells.items()))]


def fused_by_name(outcomes: Sequence[Outcome], names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Op names all of whose float32 entries have samples and no library call; and the rest."""
    whole: dict[str, bool] = {}
    for o in outcomes:
        if o.dtype == "float32" and o.samples:
            name = names.get(o.entry, o.entry)
            whole[name] = whole.get(name, True) and is_fused(o)
    return sorted(n for n, w in whole.items() if w), sorted(n for n, w in whole.items() if not w)


def as_json(results: Mapping[Path, Sequence[Outcome]]) -> str:
    """The same for programs: runs, and their outcomes without what is empty."""
    empty = {f.name for f in fields(Outcome)}
    found = [
        {**asdict(read_run(path)), "outcomes": [{k: v for k, v in asdict(o).items() if v or k not in empty} for o in outcomes]}
        for path, outcomes in results.items()
    ]
    return json.dumps(found, indent=0)
