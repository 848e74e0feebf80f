"""What profiling costs: calls before the first profile of the process, after one (both are off), and inside one.

What is off should cost nothing: the rows before and after differ by no more than eager's do, which knows of no profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.contenders import EAGER, OURS, Settings
from benchmarks.empty_calls import add_one
from benchmarks.results import Row
from benchmarks.timing import host_seconds
from tinycompile.api import compile
from tinycompile.eager.tensor import from_torch
from tinycompile.journey.session import profile

Calls = dict[str, Callable[[], Any]]


def rows(settings: Settings, seconds: float) -> list[Row]:
    """A row for each call and state."""
    pairs = _calls(settings.device)
    for calls in pairs.values():
        calls[OURS]()
    found = [_row(f"profile off, none yet: {name}", calls, settings, seconds) for name, calls in pairs.items()]
    with profile():
        for calls in pairs.values():
            calls[OURS]()
    found += [_row(f"profile off, after one: {name}", calls, settings, seconds) for name, calls in pairs.items()]
    for name, calls in pairs.items():
        with profile():
            found.append(_row(f"inside a profile: {name}", {OURS: calls[OURS]}, settings, min(seconds, 0.3)))
    return found


def _calls(device: str) -> dict[str, Calls]:
    a, b = torch.ones(4, device=device), torch.ones(4, device=device)
    x: Any = from_torch(a)
    y, compiled = from_torch(b), compile(add_one)
    return {
        "x + y": {EAGER: lambda: a + b, OURS: lambda: x + y},
        "compiled x + 1": {EAGER: lambda: add_one(a), OURS: lambda: compiled(a)},
    }


def _row(name: str, calls: Calls, settings: Settings, seconds: float) -> Row:
    return Row(name, "4 f32", host=host_seconds(calls, settings.device, seconds))
