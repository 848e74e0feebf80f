"""``python -m benchmarks.fuzz``: random programs of 5 to 40 torch calls through a backend, compared with eager.

A program is Python source, made from a seed: views, pointwise ops, reductions, scans, joins, look-ups and writes to fresh
tensors, over random shapes, strides and dtypes. Many are built as one translation unit. What differs is printed with its seed
and source; ``--seed N --programs 1`` runs it again. What differs no more than the contract allows, op by op
(:mod:`benchmarks.fuzz_excuses`), is counted as excused.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence

import torch

import tinycompile
from benchmarks.fuzz_excuses import excused
from benchmarks.fuzz_programs import Program, make
from benchmarks.opinfo_backends import BACKENDS
from benchmarks.opinfo_judge import Call, DifferenceError, Judge, compare, run
from tinycompile.base.config import config


def check(programs: Sequence[Program], backend: str) -> tuple[list[tuple[Program, str]], list[int]]:
    """Programs that differ from eager, and how; the seeds of those whose differences the contract excuses."""
    wrong: list[tuple[Program, str]] = []
    pardoned: list[int] = []
    waiting = []
    the_backend = BACKENDS[backend]() if backend in BACKENDS else None
    for p in programs:
        call = Call(p.inputs, {})
        want = run(p.fn, theirs := call.copy(), 0)
        compiled = tinycompile.compile(p.fn, backend=the_backend or backend, fullgraph=True, dynamic=False)
        try:
            compiled.explain(*call.copy().args)
        except Exception as error:  # noqa: BLE001  # a finding
            wrong.append((p, f"{type(error).__name__}: {error}"))
            continue
        waiting.append((p, call, want, theirs, compiled))
    if the_backend is not None:
        the_backend.finish()
    for p, call, want, theirs, compiled in waiting:
        got = run(compiled, mine := call.copy(), 0)
        try:
            compare(got, want, mine, theirs, Judge(p.fn, call, 0))
        except DifferenceError as difference:
            if difference.kind == "value" and excused(p.fn, call, got, want):
                pardoned.append(p.seed)
            else:
                wrong.append((p, str(difference)))
    return wrong, pardoned


def main(argv: Sequence[str] | None = None) -> int:
    """Run programs batch by batch; 0 if none differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--backend", choices=[*BACKENDS, "triton"], default="loops")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--batch", type=int, default=50, help="programs a translation unit")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the tensors are small
    found, pardons, start = 0, 0, time.perf_counter()
    with config.patch(on_error="raise", disk_cache=False):
        for first in range(options.seed, options.seed + options.programs, options.batch):
            last = min(first + options.batch, options.seed + options.programs)
            wrong, pardoned = check([make(s) for s in range(first, last)], options.backend)
            found, pardons = found + len(wrong), pardons + len(pardoned)
            for p, what in wrong:
                print(f"--- seed {p.seed}: {what[:600]}\n{p.source}", flush=True)
            count, spent = last - options.seed, time.perf_counter() - start
            text = f"{count} programs, {found} differ, {pardons} excused, {spent:.0f} s"
            print(f"{text}; excused: {pardoned}" if pardoned else text, file=sys.stderr, flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
