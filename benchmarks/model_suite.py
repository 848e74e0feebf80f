"""The suites ``models`` (plain torch, in ``tests/models``) and ``zoo`` (transformers, timm): whole forwards, side by side.

Each row: graphs, breaks, kernels, whether it is right, seconds of the first call, milliseconds of a call, and seconds of
capture alone beside Dynamo's. Everything is in one process; imports are over before the first clock starts.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import tinycompile
from benchmarks.accuracy import judge
from benchmarks.contenders import CONTENDERS, EAGER, INDUCTOR, OURS, Settings
from benchmarks.results import COLUMNS, Progress, Results, Row, about
from benchmarks.timing import interleaved, synchronize
from tinycompile.base.config import config

Inputs = dict[str, Any]
PROTOCOL = (
    "forward without gradients, inputs on the device; cold: seconds of the first call, imports excluded; capture: the same "
    "with a backend that does nothing, less a call; run: contenders take turns, medians; right: judged by float64"
)


@dataclass(frozen=True)
class Subject:
    """``make(device)``: the module and the keyword arguments of a call, for ``"cpu"`` smaller. Raises ImportError where a
    package is missing."""

    name: str
    sizes: str
    make: Callable[[str], tuple[nn.Module, Inputs]]


@dataclass
class ModelRow(Row):
    """``graphs`` and ``breaks`` by contender; ``capture``: seconds by contender."""

    graphs: dict[str, int] = field(default_factory=dict)
    breaks: dict[str, int] = field(default_factory=dict)
    capture: dict[str, float] = field(default_factory=dict)


class ModelResults(Results):
    """The table of whole models."""

    def table(self) -> list[list[str]]:
        """As of any suite, with columns of its own."""
        all_columns = (*COLUMNS[:2], *_COLUMNS, *COLUMNS[2:])
        columns = [column for column in all_columns if any(column[1](row) for row in self.rows)]
        return [[title for title, _ in columns], *([cell(row) or "-" for _, cell in columns] for row in self.rows)]


def _of(kind: str, who: str, form: str = "") -> Callable[[Row], str]:
    return lambda row: format(getattr(row, kind)[who], form) if who in getattr(row, kind) else ""


_COLUMNS = (
    ("graphs", _of("graphs", OURS)),
    ("breaks", _of("breaks", OURS)),
    ("torch graphs", _of("graphs", INDUCTOR)),
    ("capture s", _of("capture", OURS, ".2f")),
    ("Dynamo s", _of("capture", INDUCTOR, ".2f")),
)


def precision(device: str) -> torch.dtype:
    """In which models are measured."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def run_models(suite: str, subjects: Sequence[Subject], settings: Settings) -> ModelResults:
    """Measure each subject whose package is installed."""
    device = settings.device
    results = ModelResults(suite, device, {**about(device), "dtype": str(precision(device)), "protocol": PROTOCOL})
    progress = Progress(len(subjects))
    config.on_error = "raise"  # a quiet fallback to eager must not count as ours
    _import_everything(device)
    for subject in subjects:
        progress.step(subject.name)
        row = ModelRow(subject.name, subject.sizes)
        results.rows.append(row)
        try:
            module, inputs = ready(subject, device)
        except ImportError as error:
            row.failed["package"] = str(error)
            continue
        with torch.no_grad():
            _measure(row, module, inputs, settings)
        torch._dynamo.reset()
        del module, inputs
        gc.collect()
        if settings.out is not None:
            results.write_json(settings.out)
    progress.close()
    return results


def _import_everything(device: str) -> None:
    """What either compiler imports at its first use."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to(device), torch.randn(4, 8, device=device)
    with torch.no_grad():
        for compiled in (tinycompile.compile(model), torch.compile(model)):
            compiled(x)


def ready(subject: Subject, device: str) -> tuple[nn.Module, Inputs]:
    """The module and the arguments of a call on the device, the same each time."""
    torch.manual_seed(0)
    module, inputs = subject.make(device)
    dtype = precision(device)
    placed = {
        k: v.to(device, dtype if v.is_floating_point() else v.dtype) if isinstance(v, Tensor) else v for k, v in inputs.items()
    }
    return module.eval().to(device, dtype), placed


def _measure(row: ModelRow, module: nn.Module, inputs: Inputs, settings: Settings) -> None:
    device = settings.device
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    expected = flat(copy.deepcopy(module).double()(**wide))
    eager = flat(module(**inputs))
    calls: dict[str, Callable[[], Any]] = {}
    for who in settings.contenders:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled: Any = CONTENDERS[who](module)
        start = time.perf_counter()
        try:
            got = flat(compiled(**inputs))
        except Exception as error:  # noqa: BLE001  # a contender that fails is a result, and the others go on
            row.failed[who] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]
            continue
        synchronize(device)
        if who != EAGER:
            row.cold[who] = time.perf_counter() - start
        row.take(who, judge(got, eager, expected))
        calls[who] = lambda compiled=compiled: compiled(**inputs)  # type: ignore[misc]
        _count(row, who, compiled)
    seconds = 0.3 if settings.quick else 1.5
    row.run = interleaved(calls, device, seconds)
    for who in [w for w in settings.contenders if w != EAGER and w in calls]:
        row.capture[who] = _capture_seconds(who, module, inputs, row.run[EAGER])


def _count(row: ModelRow, who: str, compiled: Any) -> None:
    if who == OURS:
        made = compiled.compiled
        halves = [e.compiled for e in made.all_entries if e.compiled is not None]
        row.graphs[who], row.breaks[who] = len(made.graphs), len(made.breaks)
        row.kernels = sum(len(h.source.kernels) for h in halves if h.source is not None)
        row.stages = made.stage_times
    elif who == INDUCTOR:
        row.graphs[who] = torch._dynamo.utils.counters["stats"]["unique_graphs"]


def _capture_seconds(who: str, module: nn.Module, inputs: Inputs, call: float) -> float:
    """The first call with a backend that does nothing, less one call; the better of two."""
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        gc.collect()
        idle = (
            tinycompile.compile(module, backend=lambda graph, _: graph)
            if who == OURS
            else torch.compile(module, backend=lambda graph, _: graph.forward)
        )
        start = time.perf_counter()
        idle(**inputs)
        found.append(time.perf_counter() - start - call)
    return max(min(found), 0.0)


def flat(value: Any) -> tuple[Tensor, ...]:
    """All floating tensors in a result, in order."""
    if isinstance(value, Tensor):
        return (value,) if value.is_floating_point() else ()
    if isinstance(value, dict):
        value = tuple(value.values())
    return tuple(t for v in value for t in flat(v)) if isinstance(value, (tuple, list)) else ()
