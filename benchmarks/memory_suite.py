"""The suite ``memory``: the most bytes that a forward with its backward, and a training step, hold at once beside eager's and
``torch.compile``'s; and that a thousand steps leave nothing behind (``growth.py``)."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import tinycompile
from benchmarks.accuracy import judge
from benchmarks.contenders import CONTENDERS, EAGER, INDUCTOR, OURS, Settings
from benchmarks.growth import measure_growth
from benchmarks.memory_peaks import Use, use_of
from benchmarks.memory_workloads import MEMORY
from benchmarks.results import COLUMNS, NAMES, Progress, Results, Row, about, one_line
from benchmarks.train_models import TRAININGS, Training
from benchmarks.workloads import Workload, geometric_mean, select, tensors

PROTOCOL = (
    "bytes of torch's allocator above what is held when the call begins, after a warm-up call, gradients None; "
    "saved: held when the forward has returned, its results included; "
    "rows 'train': a step of AdamW under autocast to bfloat16, held: parameters, optimizer state, batch"
)
COUNTED = {
    "cuda": "torch.cuda.max_memory_allocated",
    "cpu": "each allocation and release that torch's profiler reports, added up in order (malloc inside kernels is not seen)",
}


@dataclass
class MemoryRow(Row):
    """Bytes by contender, and ``held`` when the call begins."""

    held: int = 0
    peak: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)


class MemoryResults(Results):
    """The table of peaks."""

    def table(self) -> list[list[str]]:
        """As of any suite, with columns of its own."""
        columns = [c for c in (*COLUMNS[:2], *_COLUMNS, COLUMNS[-1]) if any(c[1](row) for row in self.rows)]
        return [[title for title, _ in columns], *([cell(row) or "-" for _, cell in columns] for row in self.rows)]

    def remarks(self) -> list[str]:
        """Means of the ratios, then what failed."""
        rows = [r for r in self.rows if isinstance(r, MemoryRow)]
        found = [(other, [r.peak[OURS] / r.peak[other] for r in rows if {OURS, other} <= set(r.peak)]) for other in NAMES]
        lines = [
            f"* peak: {OURS} / {other}, geometric mean {geometric_mean(ratios):.2f}, worst {max(ratios):.2f}"
            for other, ratios in found
            if ratios and other != OURS
        ]
        return lines + super().remarks()


def _megabytes(kind: str, who: str) -> Callable[[Any], str]:
    return lambda row: f"{getattr(row, kind)[who] / 1e6:.2f}" if who in getattr(row, kind, {}) else ""


def _over(other: str, with_held: bool = False) -> Callable[[Any], str]:
    def cell(row: Any) -> str:
        if not {OURS, other} <= set(row.peak):
            return ""
        held = row.held if with_held else 0
        return f"{(row.peak[OURS] + held) / (row.peak[other] + held):.2f}"

    return cell


_COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("held MB", lambda row: f"{row.held / 1e6:.2f}"),
    *((f"{name} {kind} MB", _megabytes(kind, who)) for who, name in NAMES.items() for kind in ("saved", "peak")),
    ("peak ours/eager", _over(EAGER)),
    ("peak ours/torch", _over(INDUCTOR)),
    ("with held, ours/torch", _over(INDUCTOR, True)),
)


def run_memory(only: str, settings: Settings) -> MemoryResults:
    """Functions, training steps, then growth."""
    device = settings.device
    results = MemoryResults("memory", device, {**about(device), "protocol": PROTOCOL, "counted": COUNTED[device]})
    functions = select("memory", only, settings.quick, MEMORY)
    trainings = [t for t in TRAININGS if any(p in f"train {t.name}" for p in only.split("|"))][: 1 if settings.quick else None]
    progress = Progress(len(functions) + len(trainings) + 1)
    for workload in functions:
        progress.step(workload.name)
        results.rows.append(_function_row(workload, settings))
        _let_go(results, settings)
    for training in trainings:
        progress.step(training.name)
        _add_training(training, results, settings)
    if any(p in "growth" for p in only.split("|")):
        progress.step("growth")
        results.about |= measure_growth(device, settings.contenders, 100 if settings.quick else 1000)
    progress.close()
    return results


def _let_go(results: MemoryResults, settings: Settings) -> None:
    """Of what the row before left, and keep the rows so far."""
    if settings.out is not None:
        results.write_json(settings.out)
    torch._dynamo.reset()
    tinycompile.reset()
    gc.collect()
    if settings.device == "cuda":
        torch.cuda.empty_cache()


# --- functions ---------------------------------------------------------------------------------------------------------------


def _function_row(workload: Workload, settings: Settings) -> MemoryRow:
    device = settings.device
    row = MemoryRow(workload.name, workload.sizes(device))
    inputs = [t.requires_grad_(t.is_floating_point()) for t in workload.inputs(device)]
    seeds = [torch.randn_like(t) for t in tensors(workload.fn(*inputs))]
    row.held = sum(t.nbytes for t in (*inputs, *seeds))
    eager = _gradients(workload.fn, inputs, seeds)
    wide = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in inputs]
    expected = _gradients(workload.reference or workload.fn, wide, [s.double() for s in seeds])
    for who in settings.contenders:
        fn = CONTENDERS[who](workload.fn)
        try:
            torch.manual_seed(0)
            got = _gradients(fn, inputs, seeds)
            forward = functools.partial(fn, *inputs)
            used = use_of(forward, lambda made: torch.autograd.backward(tensors(made), seeds), device)
        except Exception as error:  # noqa: BLE001  # a contender that fails is a result, and the others go on
            row.failed[who] = one_line(error)
            continue
        finally:
            _forget(inputs)
        _record(row, who, used)
        if "dropout" not in workload.name:  # each draws numbers of its own
            verdict = judge(got, eager, expected)
            row.correct[who], row.error[who] = verdict.ok, verdict.error
    return row


def _gradients(fn: Callable[..., Any], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor]:
    """Of one call, copied; the inputs' own are None again."""
    torch.autograd.backward(tensors(fn(*inputs)), seeds)
    found = [t.grad.clone() for t in inputs if t.grad is not None]
    _forget(inputs)
    return found


def _forget(inputs: Sequence[Tensor]) -> None:
    for t in inputs:
        t.grad = None


def _record(row: MemoryRow, who: str, used: Use) -> None:
    row.peak[who], row.saved[who] = used.peak, used.saved


# --- training steps ----------------------------------------------------------------------------------------------------------


def _add_training(training: Training, results: MemoryResults, settings: Settings) -> None:
    device = settings.device
    row = MemoryRow(f"train {training.name}", "small" if device == "cpu" else "full size")
    results.rows.append(row)
    for who in settings.contenders:
        try:
            row.held, used = _training_use(training, who, device)
            _record(row, who, used)
        except Exception as error:  # noqa: BLE001  # as above
            row.failed[who] = one_line(error)
        _let_go(results, settings)


def _training_use(training: Training, who: str, device: str) -> tuple[int, Use]:
    """(bytes of parameters, optimizer state and batch, use of a step). Torch's contenders take its fused AdamW."""
    torch.manual_seed(0)
    model, batch = training.make(device == "cpu")
    model, batch = model.to(device), (batch[0].to(device), batch[1].to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=who != OURS)
    forward = CONTENDERS[who](model)
    if who == OURS:
        optimizer.step = tinycompile.compile(optimizer.step)  # type: ignore[method-assign]

    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return forward(*batch)

    def finish(made: Tensor) -> None:
        made.backward()
        del made
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        finish(loss())
    states = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor)]
    held = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *states, *batch))
    del states
    return held, use_of(loss, finish, device)
