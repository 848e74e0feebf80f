"""``python -m benchmarks.opinfo``: torch's op database through the compiler, every sample compared with eager.

Each entry and dtype is one line of JSON in the results file, so a run that was stopped goes on where it was. Processes of
their own do the work (``--jobs``): an entry that kills its process is a failure like any other.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.opinfo_backends import BACKENDS
from benchmarks.opinfo_entry import CHECKS, DTYPES, entries, wanted
from benchmarks.opinfo_table import Run, as_json, is_right, markdown, read, start, summary
from benchmarks.opinfo_workers import Task, check_all
from tinycompile.runtime.cpp_build import compiler_version


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.opinfo", description=__doc__)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--check", choices=CHECKS, default="forward", help="results, gradients, or the errors of bad arguments")
    p.add_argument("--entries", default="", metavar="REGEX", help="only entries whose name matches")
    p.add_argument("--dtypes", type=lambda text: text.split(","), metavar="NAMES", help="comma-separated (default: all)")
    p.add_argument("--samples", type=int, metavar="N", help="at most N samples an entry and dtype (default: all; 3 on cuda)")
    p.add_argument(
        "--backend",
        choices=list(BACKENDS),
        help="eager: the graph op by op; loops: numpy; cpp (default on cpu); triton: its interpreter; offline: only compile "
        "for sm_80 and sm_90; cuda (default on cuda)",
    )
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    p.add_argument("--minutes", type=float, metavar="N", help="start nothing after so long; another run goes on")
    p.add_argument("--out", type=Path, help="the results file (default: benchmarks/out/opinfo_CHECK_BACKEND.jsonl)")
    p.add_argument("--details", action="store_true", help="print a line for each failure")
    p.add_argument("--table-only", action="store_true", help="print what the results file holds, run nothing")
    p.add_argument("--markdown", type=Path, help="write the page (and the same as .json) of the files of --with, run nothing")
    p.add_argument("--with", dest="files", type=Path, nargs="*", default=[], metavar="FILE", help="results for --markdown")
    return p


def described(options: argparse.Namespace) -> Run:
    """What this run is about."""
    versions = f"torch {torch.__version__.partition('+')[0]}, Python {platform.python_version()}, "
    if options.device == "cuda":
        versions += torch.cuda.get_device_name()
    else:
        versions += f"{compiler_version()}, {torch.backends.cpu.get_cpu_capability()}"
    date = datetime.date.today().isoformat()
    return Run(options.check, options.backend, options.device, options.samples, versions, date)


def tasks(options: argparse.Namespace) -> list[Task]:
    """What is asked for and not in the results file yet, mixed: a run cut short has seen some of everything."""
    known = {(o.entry, o.dtype) for o in read(options.out)}
    found = [
        Task(e.formatted_name, d, options.device, options.backend, options.check, options.samples)
        for e in entries(options.entries)
        for d in options.dtypes
        if (e.formatted_name, d) not in known and wanted(e, d, options.device, options.check)
    ]
    return sorted(found, key=lambda t: zlib.crc32(f"{t.entry} {t.dtype}".encode()))


def write_page(options: argparse.Namespace) -> None:
    """The page and the JSON beside it."""
    names, results = {e.formatted_name: e.name for e in entries()}, {f: read(f) for f in options.files}
    options.markdown.write_text(markdown(results, names), encoding="utf-8")
    options.markdown.with_suffix(".json").write_text(as_json(results), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and print the table; 0 if nothing failed."""
    options = parser().parse_args(argv)
    on_cuda = options.device == "cuda"
    options.backend = options.backend or ("cuda" if on_cuda else "cpp")
    options.dtypes = options.dtypes or (["float32", "bfloat16", "int64"] if on_cuda else list(DTYPES))
    options.samples = 3 if on_cuda and options.samples is None else options.samples
    options.out = options.out or Path("benchmarks/out") / f"opinfo_{options.check}_{options.backend}.jsonl"
    if options.markdown:
        write_page(options)
        return 0
    if not options.table_only:
        start(options.out, described(options))
        check_all(tasks(options), options.out, options.jobs, options.minutes)
    outcomes = read(options.out)
    print(summary(outcomes, options.details))
    return 0 if all(map(is_right, outcomes)) else 1


if __name__ == "__main__":
    sys.exit(main())
