"""``python -m benchmarks --suite kernels|shapes|cpu|overhead|compile|memory|streams|models|zoo``: measure, print, save
JSON, Markdown and a plot."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.compile_suite import run_compile
from benchmarks.contenders import CONTENDERS, DEFAULT, Settings
from benchmarks.cpu_suite import run_cpu
from benchmarks.cpu_workloads import CPU
from benchmarks.memory_suite import run_memory
from benchmarks.model_suite import run_models
from benchmarks.plain_models import PLAIN
from benchmarks.results import Results
from benchmarks.runtime_suites import run_kernels, run_overhead
from benchmarks.shapes import SHAPES
from benchmarks.streams_suite import StreamResults, run_streams
from benchmarks.workloads import WORKLOADS, Workload, select
from benchmarks.zoo import ZOO

SUITES: dict[str, Callable[[Sequence[Workload], Settings], Results | StreamResults]] = {
    "kernels": run_kernels,
    "shapes": functools.partial(run_kernels, suite="shapes"),
    "cpu": run_cpu,
    "overhead": run_overhead,
    "streams": run_streams,
}


MODEL_SUITES = {"models": PLAIN, "zoo": ZOO}
COMPILED = ("gpt2_124m",)  # the models in the suite ``compile``; others join where ``--only`` names them


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    p.add_argument("--suite", choices=[*SUITES, "compile", "memory", *MODEL_SUITES, "all"], default="kernels")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--quick", action="store_true", help="a few workloads, fewer rounds")
    p.add_argument("--only", default="", metavar="TEXT", help="only workloads with this in their name; A|B: either")
    p.add_argument("--seconds", type=float, default=None, help="of measuring, a row of the suites kernels and shapes")
    p.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(DEFAULT), help="default: %(default)s")
    p.add_argument("--out", type=Path, default=Path("benchmarks/out"), metavar="DIR", help="where files go (%(default)s)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 0 if everything of ours was right."""
    options = parser().parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no CUDA device here; --device cpu runs smaller sizes on the CPU", file=sys.stderr)
        return 2
    settings = Settings(options.device, options.quick, tuple(options.contenders), options.seconds, options.out)
    right = True
    for suite in (*SUITES, "compile", "memory", *MODEL_SUITES) if options.suite == "all" else [options.suite]:
        results = _run(suite, options.only, settings)
        print(results.text())
        print("\nsaved " + ", ".join(map(str, results.save(options.out))) + "\n")
        right &= results.right
    return 0 if right else 1


def _run(suite: str, only: str, settings: Settings) -> Results | StreamResults:
    if suite == "memory":
        return run_memory(only, settings)
    if suite in MODEL_SUITES:
        subjects = [s for s in MODEL_SUITES[suite] if only in s.name]
        return run_models(suite, subjects, settings)
    if suite == "compile":
        sizes = {w.name: w.sizes(settings.device) for w in select(suite, only, settings.quick)}
        models = [s for s in PLAIN if (only in s.name if only else s.name in COMPILED and not settings.quick)]
        return run_compile(sizes | {s.name: s.sizes for s in models}, settings)
    with torch.no_grad():
        return SUITES[suite](select(suite, only, settings.quick, (*WORKLOADS, *SHAPES, *CPU)), settings)


if __name__ == "__main__":
    sys.exit(main())
