"""One trial: the same call on clones, so that nothing of the program's is touched, and with the same random numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from typing import Any

import torch

from tinycompile.base.shapes import reach
from tinycompile.eager.rng import cuda_devices, drawn_again, rng_state
from tinycompile.ir.graph import Graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.selfcheck.judge import Difference, Judge, difference, in_float64, units, wide

Fn = Callable[..., tuple[Any, ...]]
NEAR = 8  # calls with inputs an ulp off, where eager may have been lucky


class Trial:
    """The inputs of one call. Each :meth:`run` is on fresh clones of them and begins with the same random state.

    With gradients, the results of a run are the outputs, then the inputs that may have been written, then one gradient for each
    input that requires one: of the outputs that do, with tangents that are the same in every run."""

    def __init__(self, inputs: Sequence[Any], gradients: bool) -> None:
        self.inputs = [_snapshot(x) for x in inputs]
        self.gradients = gradients and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        self._devices = cuda_devices(inputs)
        self._state = rng_state(self._devices)

    def near(self, seed: int) -> Trial:
        """The same with inputs whose floats are about an ulp off, up or down by chance."""
        other = copy(self)
        draw = torch.Generator().manual_seed(seed)
        other.inputs = [_Input(_nudged(x.tensor, draw), x.needs) for x in self.inputs]
        return other

    def run(self, fn: Fn, exact: bool = False) -> list[Any]:
        """What ``fn`` makes of the inputs; in float64 if ``exact``."""
        leaves = [x.clone() for x in self.inputs]
        if exact:
            leaves = [_Input(wide(x.tensor), x.needs) for x in leaves]
        given = [x.value(self.gradients) for x in leaves]
        with ExitStack() as stack:
            stack.enter_context(drawn_again(self._state, self._devices))
            for kind in ("cpu", "cuda"):
                stack.enter_context(torch.autocast(kind, enabled=False))  # the casts are in the graph
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            outputs = fn(*given)
            found = [o.detach().clone() if isinstance(o, torch.Tensor) else o for o in outputs]
            found += [x.detach().clone() for x in given if isinstance(x, torch.Tensor)]
            if self.gradients:
                found += _gradients(outputs, [x.tensor for x in leaves if x.needs])
        return found


def compare(trial: Trial, graph: Graph, call: Fn) -> tuple[Difference | None, Judge]:
    """What is wrong with ``call`` beside the graph run by torch, with float64 to judge; and the judge, for other results."""
    got = trial.run(call)
    exact_graph, ulp = in_float64(graph), units(graph)
    eager, exact = _both(trial, graph, exact_graph)

    @functools.cache
    def near() -> list[tuple[list[Any], list[Any]]]:
        found = [_both(trial.near(seed), graph, exact_graph) for seed in range(NEAR)]
        return [(results, doubles) for results, doubles in found if doubles is not None]

    def judge(results: Sequence[Any]) -> Difference | None:
        return difference(results, eager, exact, ulp, near if exact is not None else None)

    return judge(got), judge


def _both(trial: Trial, graph: Graph, exact: Graph | None) -> tuple[list[Any], list[Any] | None]:
    """What torch makes of the graph, and of the one in float64 if there is one."""
    results = trial.run(lambda *given: run_graph(graph, given))
    return results, None if exact is None else trial.run(lambda *given: run_graph(exact, given), exact=True)


class _Input:
    """A tensor or number of the call."""

    def __init__(self, tensor: Any, needs: bool) -> None:
        self.tensor, self.needs = tensor, needs

    def clone(self) -> _Input:
        if not isinstance(self.tensor, torch.Tensor):
            return self
        return _Input(_copy(self.tensor), self.needs)

    def value(self, gradients: bool) -> Any:
        """What is handed to the function: no leaf where a gradient is asked for, for it may be written to."""
        if not (gradients and self.needs):
            return self.tensor
        return self.tensor.requires_grad_().clone()


def _snapshot(x: Any) -> _Input:
    return _Input(_copy(x), x.requires_grad) if isinstance(x, torch.Tensor) else _Input(x, False)


def _copy(x: torch.Tensor) -> torch.Tensor:
    """Of the same sizes and strides."""
    with torch.no_grad():
        if x.layout != torch.strided:
            return x.detach().clone()
        flat = x.detach().as_strided((reach(x.shape, x.stride()),), (1,)).clone()
        return flat.as_strided(x.shape, x.stride())


def _nudged(x: Any, draw: torch.Generator) -> Any:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.layout != torch.strided:
        return x
    near, steps = _copy(x), torch.randint(0, 2, x.shape, generator=draw).to(x.device) * 2 - 1
    overlaps = any(s == 0 for s in x.stride())
    return near if overlaps else near.copy_(x.double() * (1 + steps * torch.finfo(x.dtype).eps))


def _gradients(outputs: Sequence[Any], leaves: Sequence[torch.Tensor]) -> list[Any]:
    wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not wanted:
        return []
    tangents = [_tangent(o, i) for i, o in enumerate(wanted)]
    return list(torch.autograd.grad(wanted, leaves, tangents, allow_unused=True))


def _tangent(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Multiples of an eighth: the same numbers in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, like.shape, generator=generator) / 8).to(like)
