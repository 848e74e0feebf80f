"""``python -m tinycompile demo``: a few functions captured, compiled, checked against float64, timed, and shown."""

from __future__ import annotations

import inspect
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinycompile.api import CompiledFunction, compile
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.target import H100
from tinycompile.compiler import generate
from tinycompile.report import Report
from tinycompile.terminal import columns, duration, indent, size, title

OUR_STAGES = ("capture", "key", "optimize", "lower", "fuse", "codegen", "store")
BUDGET = 2.0  # seconds a function that our own stages may take


def gelu_bias_residual(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias) * 0.5 + x


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def layer_norm_residual(x: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return F.layer_norm(h, (h.shape[-1],), weight, bias), h


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    h = F.gelu(F.linear(x, w1, b1))
    return F.linear(h, w2, b2) + x


@dataclass(frozen=True)
class Example:
    """A function and the shapes of its arguments as multiples: ``n`` rows, ``d`` columns."""

    name: str
    fn: Callable[..., Any]
    shapes: Callable[[int, int], tuple[tuple[int, ...], ...]]


EXAMPLES = (
    Example("bias + gelu + scale + residual", gelu_bias_residual, lambda n, d: ((n, d), (d,))),
    Example("softmax", softmax, lambda n, d: ((n, d),)),
    Example("layer_norm of a residual, both results", layer_norm_residual, lambda n, d: ((n, d), (n, d), (d,), (d,))),
    Example("two-layer MLP", mlp, lambda n, d: ((n // 8, d), (2 * d, d), (2 * d,), (d, 2 * d), (d,))),
)


@dataclass
class Outcome:
    """What one example gave."""

    example: Example
    compiled: CompiledFunction
    report: Report
    error: float
    eager_error: float
    right: bool
    eager_seconds: float
    seconds: float

    @property
    def own_seconds(self) -> float:
        """What our own stages took: all but the foreign compilers in ``build``."""
        return sum(self.compiled.stage_times.get(stage, 0.0) for stage in OUR_STAGES)


def run(device: str, lines: int) -> int:
    """Show every example on ``cpu`` or ``cuda``, with at most ``lines`` lines of generated code each. 0 if all is right."""
    print(title(f"tinycompile demo on {_where(device)}") + "\n")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tinycompile-demo-") as folder, config.patch(cache_dir=folder), torch.no_grad():
        for number, example in enumerate(EXAMPLES, 1):
            print(title(f"{number}. {example.name}", "-"))
            outcome = measure(example, device)
            outcomes.append(outcome)
            print("\n".join(describe(outcome, device, lines)) + "\n")
        print(title("summary"))
        print(summary(outcomes))
        print(title("\nseconds by stage, from an empty cache", "-"))
        print(stage_table(outcomes))
    late = [o.example.name for o in outcomes if o.own_seconds > BUDGET]
    wrong = [o.example.name for o in outcomes if not o.right]
    print(f"\nOur own stages took {'at most' if not late else 'MORE THAN'} {BUDGET:.0f} s a function; ", end="")
    print("`build` is the foreign compiler (g++, or Triton and ptxas).")
    print("All results are as near to float64 as eager's." if not wrong else f"WRONG: {', '.join(wrong)}")
    print("The demo compiled into a temporary cache, which is gone; the one that your programs use was not touched.")
    return 1 if wrong else 0


def measure(example: Example, device: str) -> Outcome:
    """Compile from nothing, check, and time against eager."""
    inputs = make_inputs(example, device)
    compiled = compile(example.fn)
    got, eager = compiled(*inputs), example.fn(*inputs)
    exact = example.fn(*(x.double() for x in inputs))
    error, eager_error = _error(got, exact), _error(eager, exact)
    right = error <= 2 * eager_error + torch.finfo(inputs[0].dtype).eps
    seconds, eager_seconds = _times([lambda: compiled(*inputs), lambda: example.fn(*inputs)], device)
    return Outcome(example, compiled, compiled.explain(*inputs), error, eager_error, right, eager_seconds, seconds)


def make_inputs(example: Example, device: str) -> list[Tensor]:
    """Random arguments: float32 of 16 MB on a CPU, bfloat16 of 64 MB on a GPU."""
    torch.manual_seed(0)
    n, d, dtype = (8192, 4096, torch.bfloat16) if device == "cuda" else (4096, 1024, torch.float32)
    inputs = [torch.randn(shape, device=device, dtype=dtype) for shape in example.shapes(n, d)]
    return [x * d**-0.5 if i and x.dim() == 2 and example.fn is mlp else x for i, x in enumerate(inputs)]


def describe(outcome: Outcome, device: str, lines: int) -> Iterator[str]:
    """The example's source, what was made of it, and how it did."""
    compiled, report = outcome.compiled, outcome.report
    yield indent(inspect.getsource(outcome.example.fn)) + "\n"
    yield f"captured {len(report.graph.nodes) if report.graph else 0} graph nodes; {len(report.guards)} guards"
    for broken in report.breaks:
        yield indent(f"graph break: {broken}")
    yield f"kernels: {len(report.kernels)} generated, {len(report.externs)} from libraries ({report.backend})"
    for kernel in report.kernels:
        yield f"  {kernel.name}: {size(kernel.bytes_moved)} moved" + (f"; {kernel.why}" if kernel.why else "")
        yield f"    from {', '.join(dict.fromkeys(Path(line).name for line in kernel.lines))}"
    yield from (f"  {name} (library)" for name in report.externs)
    yield from (f"  {'fused' if d.fused else 'not fused'}: {d.first} + {d.second}: {d.why}" for d in report.decisions)
    yield f"\ngenerated Triton for {H100.arch if device == 'cpu' else 'this GPU'}:\n"
    yield indent(_head(triton_text(compiled), lines))
    verdict = "right" if outcome.right else "WRONG"
    yield f"\nerror against float64: {outcome.error:.1e} (eager {outcome.eager_error:.1e}): {verdict}"
    ratio = outcome.eager_seconds / outcome.seconds
    yield f"time: eager {duration(outcome.eager_seconds)}, tinycompile {duration(outcome.seconds)}: {ratio:.2f}x"


def triton_text(compiled: CompiledFunction) -> str:
    """The Triton source that ran, or that an H100 would run."""
    if text := compiled.source("triton"):
        return text
    if not compiled.graphs:
        return "(none: nothing was captured)"
    artifacts = Artifacts()
    generate(compiled.graphs[-1], H100, artifacts, {})  # the graph ran op by op here, for want of a C++ compiler
    return artifacts["6_triton.py"]


def summary(outcomes: list[Outcome]) -> str:
    """One line an example."""
    head = ("function", "kernels", "library", "eager", "tinycompile", "speed-up", "error", "eager's", "right")
    rows = [
        (
            o.example.name,
            str(len(o.report.kernels)),
            str(len(o.report.externs)),
            duration(o.eager_seconds),
            duration(o.seconds),
            f"{o.eager_seconds / o.seconds:.2f}x",
            f"{o.error:.1e}",
            f"{o.eager_error:.1e}",
            "yes" if o.right else "NO",
        )
        for o in outcomes
    ]
    return columns(rows, head, " rrrrrrr ")


def stage_table(outcomes: list[Outcome]) -> str:
    """Stages down, examples across."""
    stages = list(dict.fromkeys(stage for o in outcomes for stage in o.compiled.stage_times))
    rows = [(stage, *(f"{o.compiled.stage_times.get(stage, 0.0):.3f}" for o in outcomes)) for stage in stages]
    rows.append(("ours, in sum", *(f"{o.own_seconds:.3f}" for o in outcomes)))
    return columns(rows, ("stage", *(o.example.fn.__name__ for o in outcomes)), " " + "r" * len(outcomes))


def _times(calls: list[Callable[[], Any]], device: str, rounds: int = 15) -> list[float]:
    """Median wall time of each call, taking turns; a GPU is waited for."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seen in zip(calls, times, strict=True):
            wait()
            start = time.perf_counter()
            call()
            wait()
            seen.append(time.perf_counter() - start)
    return [statistics.median(seen) for seen in times]


def _error(got: Any, exact: Any) -> float:
    """The largest error over all results, relative to the result's largest magnitude."""
    pairs = zip(got, exact, strict=True) if isinstance(got, tuple) else [(got, exact)]
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def _head(text: str, lines: int) -> str:
    all_lines = text.splitlines()
    if len(all_lines) <= lines:
        return text
    return "\n".join([*all_lines[:lines], f"... {len(all_lines) - lines} more lines: --lines {len(all_lines)} shows all"])


def _where(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()} (Triton)"
    return f"the CPU, {torch.get_num_threads()} threads"
