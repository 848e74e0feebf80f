"""What our dispatcher adds to a small op of the eager layer: ``add`` of 4 elements, against the same on torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.contenders import EAGER, OURS, Settings
from benchmarks.results import Row
from benchmarks.timing import host_seconds
from tinycompile.eager.tensor import from_torch


def _add(tracked: bool, spelling: Callable[[Any, Any], Any], device: str) -> dict[str, Callable[[], Any]]:
    a, b = torch.ones(4, device=device, requires_grad=tracked), torch.ones(4, device=device)
    x, y = from_torch(a.detach().clone()), from_torch(b)
    if tracked:
        x.requires_grad_()
    return {EAGER: lambda: spelling(a, b), OURS: lambda: spelling(x, y)}


def _without_grad(device: str) -> dict[str, Callable[[], Any]]:
    calls = _add(True, torch.add, device)
    return {who: torch.no_grad()(call) for who, call in calls.items()}


_ROWS: dict[str, Callable[[str], dict[str, Callable[[], Any]]]] = {
    "eager layer: x + y": lambda device: _add(False, lambda x, y: x + y, device),
    "eager layer: torch.add(x, y)": lambda device: _add(False, torch.add, device),
    "eager layer: x + y, on the tape": lambda device: _add(True, lambda x, y: x + y, device),
    "eager layer: torch.add(x, y), no_grad": _without_grad,
}


def rows(settings: Settings, seconds: float) -> list[Row]:
    """A row for each spelling; the difference is what our dispatcher (and tape) costs."""
    return [
        Row(name, "4 f32", host=host_seconds(make(settings.device), settings.device, seconds)) for name, make in _ROWS.items()
    ]
