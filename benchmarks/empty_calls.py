"""What a call costs when nothing is run: guards and wrapper, with a backend that returns the results of the first call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.contenders import EAGER, INDUCTOR, OURS, Settings
from benchmarks.results import Row
from benchmarks.timing import host_seconds
from tinycompile.api import compile


def nothing(graph_module: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose code does nothing."""
    results = graph_module(*inputs)
    return lambda *_: results


class Layers(nn.Module):
    """100 linear layers: 200 parameters, 100 submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(100)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Scales(nn.Module):
    """200 parameters of one module."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(200):
            self.register_parameter(f"scale_{i}", nn.Parameter(torch.ones(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(200):
            x = x * getattr(self, f"scale_{i}")
        return x


def add_one(x: torch.Tensor) -> torch.Tensor:
    """One tensor in, one out."""
    return x + 1


_CALLEES: dict[str, Callable[[], Callable[..., Any]]] = {
    "guards: one tensor": lambda: add_one,
    "guards: 200 parameters in 101 modules": Layers,
    "guards: 200 parameters in one module": Scales,
}


def rows(settings: Settings, seconds: float) -> list[Row]:
    """A row for each callee, and one with gradients on for each module; eager runs the function itself."""
    found = [_row(name, make(), settings, seconds) for name, make in _CALLEES.items()]
    with torch.enable_grad():
        modules = {name: made for name, make in _CALLEES.items() if isinstance(made := make(), nn.Module)}
        return [*found, *(_row(f"{name}, gradients", made, settings, seconds) for name, made in modules.items())]


def _row(name: str, callee: Callable[..., Any], settings: Settings, seconds: float) -> Row:
    if isinstance(callee, nn.Module):
        callee.to(settings.device)
    x = torch.ones(4, 4, device=settings.device)
    makers: dict[str, Callable[[], Callable[..., Any]]] = {
        EAGER: lambda: callee,
        OURS: lambda: compile(callee, backend=nothing),
        INDUCTOR: lambda: torch.compile(callee, backend=nothing),
    }
    fns = {who: makers[who]() for who in settings.contenders}
    for fn in fns.values():
        fn(x)
    calls = {who: lambda fn=fn: fn(x) for who, fn in fns.items()}
    return Row(name, "4x4 f32", host=host_seconds(calls, settings.device, seconds))
