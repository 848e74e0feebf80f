"""AdamW over GPT-2's parameters: our compiled step, torch's fused and foreach steps, and torch.compile of the latter.

``python -m benchmarks.optimizer_child DEVICE [--contenders ...]`` prints one line of JSON: seconds a step, bytes that it moves.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import tinycompile
from benchmarks.contenders import INDUCTOR, OURS
from benchmarks.timing import interleaved
from benchmarks.train_models import TRAININGS
from tinycompile.base.config import config

FUSED, FOREACH = "torch fused", "torch foreach"
ALL = (OURS, FUSED, FOREACH, INDUCTOR)


def measure(device: str, contenders: list[str], seconds: float) -> dict[str, Any]:
    """Each contender has its own copy of the parameters."""
    torch.manual_seed(0)
    config.on_error = "raise"
    shapes = [p.shape for p in next(t for t in TRAININGS if t.name == "gpt2_124m").make(device == "cpu")[0].parameters()]
    calls: dict[str, Callable[[], object]] = {}
    found: dict[str, Any] = {"tensors": len(shapes), "first": {}, "bytes": 7 * 4 * sum(s.numel() for s in shapes)}
    reference: list[torch.Tensor] = []
    for who in contenders:
        optimizer = _optimizer(shapes, device, who)
        optimizer.step()
        call: Callable[[], Any] = optimizer.step
        if who == OURS:
            call = tinycompile.compile(optimizer.step)
        elif who == INDUCTOR:
            call = torch.compile(optimizer.step)
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        found["first"][who] = time.perf_counter() - start
        weights = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
        reference = reference or weights
        found.setdefault("apart", {})[who] = max((a - b).abs().max().item() for a, b in zip(weights, reference, strict=True))
        calls[who] = call
    found["step"] = interleaved(calls, device, seconds)
    return found


def _optimizer(shapes: list[torch.Size], device: str, who: str) -> torch.optim.Optimizer:
    generator = torch.Generator(device).manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(s, generator=generator, device=device)) for s in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator, device=device)
    fused = who == FUSED
    return torch.optim.AdamW(made, lr=1e-3, fused=fused or None, foreach=None if fused else True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("--contenders", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    print(json.dumps(measure(given.device, given.contenders, given.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
