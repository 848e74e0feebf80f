"""The suites that run in this process: ``kernels`` (time on the device) and ``overhead`` (time on the host)."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks import eager_calls, empty_calls, profile_calls
from benchmarks.accuracy import judge
from benchmarks.contenders import CONTENDERS, LIBRARY, OURS, Settings
from benchmarks.results import Progress, Results, Row, about, one_line
from benchmarks.timing import FLUSH_BYTES, copy_call, host_seconds, samples, spread, synchronize
from benchmarks.workloads import Workload, count_bytes, tensors

KERNELS_PROTOCOL = {
    "cuda": (
        "CUDA events around one call; contenders and a copy of as many bytes take turns; "
        f"before each, {FLUSH_BYTES['cuda'] >> 20} MB are read to empty the L2; medians"
    ),
    "cpu": (
        "wall time of one call; contenders and a copy of as many bytes take turns; "
        f"before each, {FLUSH_BYTES['cpu'] >> 20} MB are read to empty the caches; "
        "page faults of fresh results count, for all; medians"
    ),
}


def run_kernels(workloads: Sequence[Workload], settings: Settings, suite: str = "kernels") -> Results:
    """Device time of each contender and of a copy of the same number of bytes."""
    device = settings.device
    results = Results(suite, device, {**about(device), "protocol": KERNELS_PROTOCOL[device], "bytes": BYTES})
    usual = {"cuda": 1.0, "cpu": 3.0}[device] / (4 if suite == "shapes" else 1)
    budget = settings.seconds or (0.2 if settings.quick else usual)
    progress = Progress(len(workloads))
    for workload in workloads:
        progress.step(workload.name)
        row, inputs, calls = _prepare(workload, settings)
        calls["copy"] = copy_call(row.bytes, device)
        if workload.library is not None:
            calls[LIBRARY] = functools.partial(workload.library, *inputs)
        times = samples(calls, device, budget)
        row.copy = statistics.median(times.pop("copy"))
        row.run = {who: statistics.median(taken) for who, taken in times.items()}
        row.spread = spread(times[OURS]) if OURS in times else None
        results.rows.append(row)
        if settings.out is not None:
            results.write_json(settings.out)
        del calls, inputs
        _free(device)
    progress.close()
    return results


def run_overhead(workloads: Sequence[Workload], settings: Settings) -> Results:
    """Host time of each contender on inputs so small that nothing else matters."""
    device = settings.device
    protocol = "wall time of 50 calls enqueued without waiting, over 50; contenders take turns; medians"
    results = Results("overhead", device, {**about(device), "protocol": protocol})
    progress = Progress(len(workloads))
    for workload in workloads:
        progress.step(workload.name)
        row, _, calls = _prepare(workload, settings)
        row.host = host_seconds(calls, device, 0.3 if settings.quick else 1.5)
        results.rows.append(row)
    progress.close()
    results.rows += empty_calls.rows(settings, 0.5 if settings.quick else 4.0)
    results.rows += eager_calls.rows(settings, 0.3 if settings.quick else 2.0)
    results.rows += profile_calls.rows(settings, 0.3 if settings.quick else 2.0)
    return results


BYTES = "MB are arguments read once plus results written once; '% of copy' is the copy's time over ours"


def _prepare(workload: Workload, settings: Settings) -> tuple[Row, list[Tensor], dict[str, Callable[[], Any]]]:
    """Inputs, calls that did not fail, and a row with their verdicts."""
    device = settings.device
    inputs = workload.inputs(device)
    row = Row(workload.name, workload.sizes(device), note=workload.note if device == "cuda" else "")
    expected, eager = workload.expected(inputs), tensors(workload.fn(*inputs))
    row.bytes = count_bytes(inputs, eager)
    calls: dict[str, Callable[[], Any]] = {}
    for who in settings.contenders:
        try:
            fn = CONTENDERS[who](workload.fn)
            got = tensors(fn(*inputs))
            synchronize(device)
        except Exception as error:  # noqa: BLE001  # a contender that fails is a result, and the others go on
            row.failed[who] = one_line(error)
            continue
        if who == OURS:
            row.kernels, row.operations = len(fn.kernels), sum(k.flops for k in fn.kernels)
        row.take(who, judge(got, eager, expected))
        calls[who] = lambda fn=fn: fn(*inputs)  # type: ignore[misc]
    del expected, eager
    return row, inputs, calls


def _free(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
