"""``python -m benchmarks.opinfo``: torch's op database through the compiler, every sample compared with eager.

Each entry and dtype is one line of JSON in the results file, so a run that was stopped goes on where it was. A child process
does the work: an entry that kills it is a failure like any other, and the next child goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import tinycompile
from benchmarks.opinfo_backends import BACKENDS
from benchmarks.opinfo_backward import check_gradients
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run
from tinycompile.base.config import config
from tinycompile.base.errors import GraphBreakError

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool")
SECONDS = 60  # for one sample
_UNWRITTEN = ("empty", "new_empty")  # results are memory as it was found


@dataclass
class Outcome:
    """All samples of an entry and dtype. ``fused``: no library call was left; ``extern``: some; ``broken``: right, but with
    graph breaks, by kind; ``failed``: wrong, by kind. ``messages``: the first of each kind. ``externs``: which library calls.
    ``status``: ``done``, or what ended it early."""

    entry: str
    dtype: str
    samples: int = 0
    fused: int = 0
    extern: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    externs: list[str] = field(default_factory=list)
    seconds: float = 0.0
    status: str = "done"

    def fail(self, kind: str, message: str) -> None:
        """Count one failed sample."""
        self._count(self.failed, kind, message)

    def broke(self, error: GraphBreakError) -> None:
        """Count one sample that has graph breaks."""
        found = re.search(r"\[([\w-]+)\]", str(error))
        self._count(self.broken, f"break {found[1] if found else ''}".strip(), str(error))

    def _count(self, where: dict[str, int], kind: str, message: str) -> None:
        where[kind] = where.get(kind, 0) + 1
        self.messages.setdefault(kind, message[:600])


# --- one entry -----------------------------------------------------------------------------------------------------------


def entries(pattern: str = "") -> list[Any]:
    """The database's entries whose full name matches."""
    from torch.testing._internal import common_methods_invocations as database

    database.wrapper_set_seed = _call  # ``run`` sets the seed
    return [e for e in database.op_db if re.search(pattern, e.formatted_name)]


def _call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def calls(entry: Any, device: str, dtype: torch.dtype, limit: int | None) -> list[Call]:
    """The entry's samples."""
    torch.manual_seed(0)
    samples = entry.sample_inputs(device, dtype, requires_grad=False)
    return [Call((s.input, *s.args), dict(s.kwargs)) for s in itertools.islice(samples, limit)]


def check_entry(entry: Any, device: str, dtype: torch.dtype, backend: str, limit: int | None) -> Outcome:
    """Compile and compare every sample: first all are captured, then built at once, then run."""
    outcome = Outcome(entry.formatted_name, str(dtype).removeprefix("torch."))
    start = time.perf_counter()
    the_backend = BACKENDS[backend]()
    op = entry.get_op()
    values = not entry.name.startswith(_UNWRITTEN)
    prepared: list[tuple[int, Call, Any, bool]] = []
    for i, call in enumerate(calls(entry, device, dtype, limit)):
        outcome.samples += 1
        with _guarded(outcome, i):
            want = run(op, theirs := call.copy(), i)
            before = len(the_backend.externs)
            compiled = _compiled(op, the_backend)
            try:
                compiled.explain(*call.args, **call.kwargs)
            except GraphBreakError as error:
                compiled = _compiled(op, "eager", fullgraph=False)
                compare(run(compiled, mine := call.copy(), i), want, mine, theirs, Judge(op, call, i), values)
                outcome.broke(error)
                continue
            except Exception as error:
                if type(error) is not type(want):
                    raise
            prepared.append((i, call, (want, theirs, compiled), len(the_backend.externs) > before))
    try:
        the_backend.finish()
    except Exception as error:  # noqa: BLE001  # reported as a failure of the entry
        outcome.fail("build", str(error))
        prepared = []
    for i, call, (want, theirs, compiled), extern in prepared:
        with _guarded(outcome, i):
            got = run(compiled, mine := call.copy(), i)
            compare(got, want, mine, theirs, Judge(op, call, i), values)
            if extern:
                outcome.extern += 1
            else:
                outcome.fused += 1
    outcome.externs = sorted(set(the_backend.externs))
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def check_backward(entry: Any, device: str, dtype: torch.dtype, limit: int | None) -> Outcome:
    """Compare the gradients of every sample that has some; ``fused`` counts those that are right."""
    outcome = Outcome(entry.formatted_name, str(dtype).removeprefix("torch."))
    start = time.perf_counter()
    for i, call in enumerate(calls(entry, device, dtype, limit)):
        outcome.samples += 1
        with _guarded(outcome, i):
            check_gradients(entry.get_op(), call, i)
            outcome.fused += 1
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def _compiled(op: Callable[..., Any], backend: Any, fullgraph: bool = True) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return tinycompile.compile(call, backend=backend, fullgraph=fullgraph, dynamic=False)


@contextlib.contextmanager
def _guarded(outcome: Outcome, sample: int) -> Iterator[None]:
    """Whatever a sample raises is counted; one that takes too long is stopped."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    except DifferenceError as difference:
        outcome.fail(difference.kind, f"sample {sample}: {difference.message}")
    except Exception as error:  # noqa: BLE001  # the point of the exercise
        outcome.fail(f"internal {type(error).__name__}", f"sample {sample}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# --- the run -------------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """The child: every entry and dtype that the results file lacks; a line before each one and a line after."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    known = {(o.entry, o.dtype) for o in read(options.out)}
    with config.patch(on_error="raise", disk_cache=False), options.out.open("a", encoding="utf-8") as out:
        for entry, name in itertools.product(entries(options.entries), options.dtypes):
            dtype = getattr(torch, name)
            if (entry.formatted_name, name) in known or dtype not in entry.supported_dtypes(options.device):
                continue
            if options.backward and (not entry.supports_autograd or not dtype.is_floating_point):
                continue
            _write(out, Outcome(entry.formatted_name, name, status="crashed"))
            try:
                if options.backward:
                    outcome = check_backward(entry, options.device, dtype, options.samples)
                else:
                    outcome = check_entry(entry, options.device, dtype, options.backend, options.samples)
            except Exception as error:  # noqa: BLE001  # the database's own fault: samples that can't be made
                outcome = Outcome(entry.formatted_name, name, status=f"no samples: {type(error).__name__}: {error}"[:300])
            _write(out, outcome)


def _too_long(signal_number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def _write(out: Any, outcome: Outcome) -> None:
    out.write(json.dumps(asdict(outcome)) + "\n")
    out.flush()


def read(path: Path) -> list[Outcome]:
    """The results so far; the last line of an entry and dtype counts."""
    if not path.exists():
        return []
    lines = [Outcome(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(o.entry, o.dtype): o for o in lines}.values())


def summary(outcomes: Sequence[Outcome], details: bool) -> str:
    """Samples by dtype, failures by kind, and one line for each entry that failed."""
    titles = ("entries", "all fused", "right", "samples", "fused", "extern", "broken", "failed")
    rows = [f"{'dtype':10} " + " ".join(f"{t:>9}" for t in titles)]
    for dtype in dict.fromkeys(o.dtype for o in outcomes):
        of = [o for o in outcomes if o.dtype == dtype]
        right = [o for o in of if o.status == "done" and not o.failed]
        whole = [o for o in right if o.samples and o.fused == o.samples]
        failed, broken = sum(sum(o.failed.values()) for o in of), sum(sum(o.broken.values()) for o in of)
        samples = (sum(o.samples for o in of), sum(o.fused for o in of), sum(o.extern for o in of), broken, failed)
        rows.append(f"{dtype:10} " + " ".join(f"{n:9}" for n in (len(of), len(whole), len(right), *samples)))
    kinds = Counter({k: 0 for o in outcomes for k in o.failed})
    for o in outcomes:
        kinds.update(o.failed | o.broken)
    rows += ["", *(f"{n:6} {kind}" for kind, n in kinds.most_common())]
    rows += [f"{o.entry} {o.dtype}: {o.status}" for o in outcomes if o.status != "done"]
    if details:
        rows += [f"{o.entry} {o.dtype}: {n} {k}: {o.messages[k]}" for o in outcomes for k, n in (o.failed | o.broken).items()]
    return "\n".join(rows)


def markdown(results: Mapping[Path, Sequence[Outcome]], names: Mapping[str, str]) -> str:
    """Counts by file and dtype; the op names that need no library call on any sample; what differs or was not finished."""
    every = [o for outcomes in results.values() for o in outcomes]
    lines = [
        "# torch's op database",
        "",
        "Written by `python -m benchmarks.opinfo --markdown`. A row is a results file and a dtype. *Fused*: no library call is "
        "left on any sample; *right*: every sample equals eager (value judged by float64, shape, strides, dtype, aliasing, "
        "writes to arguments, or the type of the exception).",
        "",
        "| run | dtype | entries | fused | right | samples | fused | with library calls | with graph breaks | wrong |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path, outcomes in results.items():
        for dtype in dict.fromkeys(o.dtype for o in outcomes):
            of = [o for o in outcomes if o.dtype == dtype]
            right = [o for o in of if o.status == "done" and not o.failed]
            fused = [o for o in right if o.samples and o.fused == o.samples]
            rows = [(o.samples, o.fused, o.extern, sum(o.broken.values()), sum(o.failed.values())) for o in of]
            sums = (sum(column) for column in zip(*rows, strict=True))
            cells = (path.stem, dtype, len(of), len(fused), len(right), *sums)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    first = next(iter(results.values()), [])
    fused_names, rest = fused_by_name(first, names)
    lines += [
        "",
        f"## {len(fused_names)} op names without a library call on any float32 sample",
        "",
        ", ".join(f"`{n}`" for n in fused_names),
    ]
    lines += ["", f"## {len(rest)} op names with library calls or graph breaks", "", ", ".join(f"`{n}`" for n in rest)]
    wrong = [f"* `{o.entry}` {o.dtype}: {n} x {k}: {o.messages[k][:200]}" for o in every for k, n in o.failed.items()]
    unfinished = [f"* `{o.entry}` {o.dtype}: {o.status}" for o in every if o.status != "done"]
    lines += ["", f"## Wrong: {len(wrong)}", "", *wrong, "", f"## Not finished: {len(unfinished)}", "", *unfinished]
    return "\n".join(lines).rstrip() + "\n"


def fused_by_name(outcomes: Sequence[Outcome], names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Op names all of whose float32 entries have samples and no library call; and the rest."""
    whole: dict[str, bool] = {}
    for o in outcomes:
        if o.dtype == "float32" and o.samples:
            fused = o.status == "done" and o.fused == o.samples
            whole[names.get(o.entry, o.entry)] = whole.get(names.get(o.entry, o.entry), True) and fused
    return sorted(n for n, w in whole.items() if w), sorted(n for n, w in whole.items() if not w)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.opinfo", description=__doc__)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--entries", default="", metavar="REGEX", help="only entries whose name matches")
    p.add_argument("--dtypes", type=lambda text: text.split(","), default=list(DTYPES), help="comma-separated (default: all)")
    p.add_argument("--samples", type=int, metavar="N", help="at most N samples an entry and dtype (default: all)")
    p.add_argument("--backend", choices=list(BACKENDS), default="cpp")
    p.add_argument("--backward", action="store_true", help="compare gradients instead (through the joint graph, op by op)")
    p.add_argument("--out", type=Path, help="the results file (default: benchmarks/out/opinfo_BACKEND.jsonl)")
    p.add_argument("--details", action="store_true", help="print a line for each failure")
    p.add_argument("--table-only", action="store_true", help="print what the results file holds, run nothing")
    p.add_argument(
        "--markdown", type=Path, help="write the table of the results files given with --with as Markdown, run nothing"
    )
    p.add_argument("--with", dest="files", type=Path, nargs="*", default=[], metavar="FILE", help="results for --markdown")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and print the table; 0 if nothing failed."""
    given = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(given)
    if options.markdown:
        names = {e.formatted_name: e.name for e in entries()}
        options.markdown.write_text(markdown({f: read(f) for f in options.files}, names), encoding="utf-8")
        return 0
    options.out = options.out or Path("benchmarks/out") / f"opinfo_{'backward' if options.backward else options.backend}.jsonl"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.child:
        work(options)
        return 0
    command = [sys.executable, "-m", "benchmarks.opinfo", *given, "--child"]
    while not options.table_only and subprocess.run(command, check=False).returncode < 0:
        print(f"{read(options.out)[-1].entry} killed the process; going on behind it", file=sys.stderr)
    outcomes = read(options.out)
    print(summary(outcomes, options.details))
    return 0 if all(o.status == "done" and not o.failed for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
