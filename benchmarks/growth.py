"""What a thousand training steps leave behind: live tensors, their bytes, resident memory, nodes of our tape.

``python -m benchmarks.growth CONTENDER DEVICE STEPS`` prints one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tinycompile
from benchmarks.contenders import CONTENDERS, EAGER, INDUCTOR, OURS
from benchmarks.results import one_line
from tinycompile.eager.memory import memory
from tinycompile.eager.tape import Node
from tinycompile.eager.tensor import Tensor

TAPE = "our tape, not compiled"
STEPPED = (EAGER, OURS, INDUCTOR, TAPE)


@dataclass(frozen=True)
class Held:
    """``tensors``: Python objects, torch's and ours. ``nodes``: of our tape. ``entries``: compiled variants. ``allocated``:
    bytes, on a CPU of all live tensors. ``resident``: bytes of the process in memory (0 where the system doesn't tell)."""

    tensors: int
    nodes: int
    entries: int
    allocated: int
    resident: int

    def grown(self, since: Held) -> Held:
        """The difference."""
        return Held(*(now - then for now, then in zip(asdict(self).values(), asdict(since).values(), strict=True)))


def held(device: str, entries: int) -> Held:
    """What is held now."""
    gc.collect()
    kinds = [type(o) for o in gc.get_objects()]  # isinstance would ask proxies, which may answer anything
    tensors = sum(issubclass(k, (torch.Tensor, Tensor)) for k in kinds)
    nodes = sum(issubclass(k, Node) for k in kinds)
    return Held(tensors, nodes, entries, memory(device).allocated, _resident())


def _resident() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS")), 0)


class Net(nn.Module):
    """Products, batch statistics (buffers that are written), random numbers, a norm, and a loss over classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(32, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64), nn.Linear(64, 16)
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), target)


def stepper(who: str, device: str) -> tuple[Callable[[], object], Callable[[], int]]:
    """(one training step, the number of compiled variants so far)."""
    torch.manual_seed(0)
    x, target = torch.randn(64, 32, device=device), torch.randint(0, 16, (64,), device=device)
    if who == TAPE:
        return _step_on_our_tape(x, target), lambda: 0
    model = Net().to(device)
    forward = CONTENDERS[who](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if who == OURS:
        optimizer.step = tinycompile.compile(optimizer.step)  # type: ignore[method-assign]

    def step() -> None:
        forward(x, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    def entries() -> int:
        return 0 if who != OURS else forward.compiled.cache_info()["entries"]

    return step, entries


def _step_on_our_tape(x: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    first, second = torch.randn(32, 64, device=x.device) / 6, torch.randn(64, 16, device=x.device) / 8
    ours: list[Any] = [tinycompile.from_torch(t) for t in (x, first, second)]
    mine, w, v = ours
    w.requires_grad_(), v.requires_grad_()

    def step() -> None:
        hidden = F.layer_norm(F.dropout(F.gelu(mine @ w), 0.1), (64,))
        F.cross_entropy(hidden @ v, target).backward()
        with torch.no_grad():
            for p in (w, v):
                p.sub_(0.01 * p.grad)
                p.grad = None

    return step


def growth(who: str, device: str, steps: int, before: int = 100) -> Held:
    """What ``steps`` steps add to what is held after ``before`` ones."""
    step, entries = stepper(who, device)
    for _ in range(before):
        step()
    first = held(device, entries())
    for _ in range(steps):
        step()
    return held(device, entries()).grown(first)


def measure_growth(device: str, contenders: Sequence[str], steps: int) -> dict[str, str]:
    """In words, one line a contender: each in a process of its own, so that the resident memory is its own."""
    found = {}
    for who in (c for c in STEPPED if c in (*contenders, TAPE)):
        command = [sys.executable, "-m", "benchmarks.growth", who, device, str(steps)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            g = Held(**json.loads(done.stdout.splitlines()[-1]))
            told = (
                f"{g.tensors:+} tensors, {g.nodes:+} nodes of our tape, {g.entries:+} compiled variants, "
                f"{g.allocated:+} bytes allocated, {g.resident / 1e6:+.2f} MB resident"
            )
        except (subprocess.SubprocessError, json.JSONDecodeError) as error:
            told = f"FAILED: {one_line(error)}"
        found[f"{steps} steps, {who}"] = told
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=STEPPED)
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("steps", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are too small to be shared
    print(json.dumps(asdict(growth(given.contender, given.device, given.steps))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
