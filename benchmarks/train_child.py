"""One training job with one contender, in a process of its own: step time, peak memory, time of the first step.

``python -m benchmarks.train_child JOB CONTENDER DEVICE [--steps N]`` prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import tinycompile
from benchmarks.contenders import EAGER, INDUCTOR, OURS
from benchmarks.train_models import TRAININGS
from tinycompile.base.config import config


def train(job: str, who: str, device: str, steps: int) -> dict[str, Any]:
    """AdamW under autocast to bfloat16. Torch's contenders take its fused AdamW where there is one."""
    torch.manual_seed(0)
    small = device == "cpu"
    model, batch = next(t for t in TRAININGS if t.name == job).make(small)
    model, (x, target) = model.to(device), tuple(t.to(device) for t in batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda" and who != OURS)
    forward: Any = model
    if who == OURS:
        config.on_error = "raise"
        forward = tinycompile.compile(model)
        optimizer.step = tinycompile.compile(optimizer.step)  # type: ignore[method-assign]
    elif who == INDUCTOR:
        forward = torch.compile(model)

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = forward(x, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    start = time.perf_counter()
    losses = [step().item()]
    first = time.perf_counter() - start
    losses += [step().item() for _ in range(3)]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {"first": first, "step": statistics.median(_seconds(step, device) for _ in range(steps))}
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    found |= {"peak": peak, "losses": losses}
    if who == OURS:
        found |= {"breaks": len(forward.compiled.breaks), "stages": forward.compiled.stage_times}
    return found


def _seconds(call: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    call()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / 1e3


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=[t.name for t in TRAININGS])
    parser.add_argument("contender", choices=[EAGER, OURS, INDUCTOR])
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    print(json.dumps(train(given.job, given.contender, given.device, given.steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
