"""What our dispatcher adds to a small op of the eager layer: calls on 4 elements, against the same on torch tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.contenders import EAGER, OURS, Settings
from benchmarks.results import Row
from benchmarks.timing import host_seconds
from tinycompile.eager.tensor import from_torch


def _calls(tracked: bool, spelling: Callable[[Any, Any], Any], device: str) -> dict[str, Callable[[], Any]]:
    a, b = torch.ones(4, device=device, requires_grad=tracked), torch.ones(4, device=device)
    x, y = from_torch(a.detach().clone()), from_torch(b)
    if tracked:
        x.requires_grad_()
    return {EAGER: lambda: spelling(a, b), OURS: lambda: spelling(x, y)}


# Name -> whether an argument requires grad, whether gradients are on, the call.
_ROWS: dict[str, tuple[bool, bool, Callable[[Any, Any], Any]]] = {
    "eager layer: x + y": (False, True, operator.add),
    "eager layer: torch.add(x, y)": (False, True, torch.add),
    "eager layer: x + y, on the tape": (True, True, operator.add),
    "eager layer: x + y, no_grad": (True, False, operator.add),
    "eager layer: x.view(2, 2)": (False, True, lambda x, y: x.view(2, 2)),
    "eager layer: x[1:3]": (False, True, lambda x, y: x[1:3]),
    "eager layer: x[1:3], on the tape": (True, True, lambda x, y: x[1:3]),
    "eager layer: x.sum(dim=0)": (False, True, lambda x, y: x.sum(dim=0)),
}


def rows(settings: Settings, seconds: float) -> list[Row]:
    """A row for each spelling; the difference is what our dispatcher (and tape) costs."""
    found = []
    for name, (tracked, gradients, spelling) in _ROWS.items():
        with torch.set_grad_enabled(gradients):
            calls = _calls(tracked, spelling, settings.device)
            found.append(Row(name, "4 f32", host=host_seconds(calls, settings.device, seconds)))
    return found
