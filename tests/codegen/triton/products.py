"""Products for tests: a function of tensors, compiled as ``max-autotune`` would on an H100, run in Triton's interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from tinycompile.runtime.cache import DiskCache

Fn = Callable[..., Any]
CPU = Device("cpu")


@dataclass(frozen=True)
class Made:
    """A function with its plan and source for ``target``; ``order``: positions of its arguments as the graph takes them."""

    fn: Fn
    plan: Plan
    source: Source
    order: tuple[int, ...]
    target: Target

    def alone(self, way: str, entrant: int = 0) -> Made:
        """With one entrant of one way left in the contest."""
        (choice,) = self.source.choices
        name = self.plan.choices[0].name + (f"_{way}" if way else "")
        assert name in self.source.offered, f"no way {way}"
        kernels = tuple(
            replace(k, configs=(k.configs[entrant],)) if k.name == name else k
            for k in self.source.kernels
            if k.name == name or k.name not in self.source.offered
        )
        choices = (replace(choice, ways=tuple(w for w in choice.ways if w[1] == name)),)
        return replace(self, source=replace(self.source, kernels=kernels, choices=choices))

    def ways(self) -> set[str]:
        """All ways but a tile a program."""
        names = [k.name for k in self.source.kernels if k.name in self.source.offered]
        return {n.removeprefix(f"{names[0]}_") for n in names[1:]}

    def run(
        self, args: Sequence[torch.Tensor], wins: int | None, disk: DiskCache | None = None, device: Device = CPU
    ) -> tuple[tuple[torch.Tensor, ...], str]:
        """The results, and what the contest said. ``wins``: which entrant the timer calls fastest; None: the library."""
        call, tuner = self.built(wins, disk, device)
        with torch.no_grad():
            made = call(*(args[i] for i in self.order))
        return made, " ".join(tuner.told.values())

    def built(self, wins: int | None, disk: DiskCache | None = None, device: Device = CPU) -> tuple[Fn, Tuner]:
        """The wrapper, with a timer that knows the winner."""

        def timer(candidates: Sequence[Any], stream: int, given: Sequence[Any]) -> list[float]:
            assert wins is None or wins + 1 < len(candidates), "an entrant fell out: it does not run, or is wrong"
            return [2.0 if wins is not None else 0.5, *(0.5 if i == wins else 3.0 for i in range(len(candidates) - 1))]

        tuner = Tuner(disk, timer=timer)
        return build(self.source, self.target, device, None, tuner)[0], tuner


def product_of(fn: Fn, *args: torch.Tensor, target: Target = H100, contests: bool = True) -> Made:
    """Everything up to code. ``contests``: as ``max-autotune`` would, else as by default."""
    graph = tinycompile.trace(fn, *args).graph
    plan, source = generate(graph, target, Artifacts(), {}, products=contests)
    names = list(inspect.signature(fn).parameters)
    return Made(fn, plan, source, tuple(names.index(p.name) for p in graph.placeholders), target)


def flat(made: Any) -> tuple[torch.Tensor, ...]:
    """Results as a tuple."""
    return made if isinstance(made, tuple) else (made,)
