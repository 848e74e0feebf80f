"""Products for tests: a function of tensors, compiled as ``max-autotune`` would on an H100, run in Triton's interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tinycompile
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.device import Device
from tinycompile.base.target import H100, Target
from tinycompile.compiler import generate
from tinycompile.ir.plan import Plan
from tinycompile.ir.source import Source
from tinycompile.runtime.autotune import Tuner
from tinycompile.runtime.build import build

Fn = Callable[..., Any]


@dataclass(frozen=True)
class Made:
    """A function with its plan and source; ``order``: positions of its arguments as the graph takes them."""

    fn: Fn
    plan: Plan
    source: Source
    order: tuple[int, ...]

    def run(self, args: Sequence[torch.Tensor], wins: int | None) -> tuple[tuple[torch.Tensor, ...], str]:
        """The results, and what the contest said. ``wins``: which entrant the timer calls fastest; None: the library."""

        def timer(candidates: Sequence[Any], stream: int, given: Sequence[Any]) -> list[float]:
            assert wins is None or wins + 1 < len(candidates), "an entrant fell out: it does not run, or is wrong"
            return [1.0 if i else 2.0 if wins is not None else 0.5 for i in range(len(candidates))][:1] + [
                0.5 if i == wins else 1.5 for i in range(len(candidates) - 1)
            ]

        tuner = Tuner(None, timer=timer)
        call, _ = build(self.source, H100, Device("cpu"), None, tuner)
        with torch.no_grad():
            made = call(*(args[i] for i in self.order))
        return made, " ".join(tuner.told.values())


def product_of(fn: Fn, *args: torch.Tensor, target: Target = H100) -> Made:
    """Everything up to code."""
    graph = tinycompile.trace(fn, *args).graph
    plan, source = generate(graph, target, Artifacts(), {}, products=True)
    names = list(inspect.signature(fn).parameters)
    return Made(fn, plan, source, tuple(names.index(p.name) for p in graph.placeholders))


def flat(made: Any) -> tuple[torch.Tensor, ...]:
    """Results as a tuple."""
    return made if isinstance(made, tuple) else (made,)
