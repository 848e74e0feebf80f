"""A backward comes to those inputs alone that its results depend on.

Torch's engine goes on from a node to all that its inputs came from, also where their gradients are undefined: hooks are
called with None there, and what was saved is freed. So where results depend on different inputs, a compiled function is
several nodes to torch: one for each result, which takes its tangent, and behind them one for each group of inputs to which
the same results lead, its gate. The first gate that the engine comes to runs the backward of all tangents that are there by
then. These are usually all, for the engine takes up later nodes first, and those made of the results are later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.watch import Watch

Fn = Callable[..., tuple[Any, ...]]


def groups_of(reached: Mapping[int, frozenset[int]]) -> dict[frozenset[int], tuple[int, ...]]:
    """Inputs by the results that lead to them. ``reached``: these results, for each input; one without any is in no group."""
    found: dict[frozenset[int], tuple[int, ...]] = {}
    for i, results in reached.items():
        if results:
            found[results] = (*found.get(results, ()), i)
    return found


def apart(apply: Fn, backward: Fn, groups: Mapping[frozenset[int], tuple[int, ...]]) -> Fn:
    """A function like ``apply(made, before, *inputs)``, which makes one node, but with several. ``apply`` gives an empty tensor
    behind its results, by which the node is known; ``backward(ctx, *tangents)`` is the node's. ``groups``: as above."""
    members = tuple(groups.values())
    leading = sorted(frozenset().union(*groups))
    gates_of = [(at, tuple(n for n, results in enumerate(groups) if at in results)) for at in leading]

    def run(made: list[Any] | None, before: list[Any] | None, *inputs: Any) -> tuple[Any, ...]:
        *results, anchor = apply(made, before, *inputs)
        ctx = anchor.grad_fn
        if ctx is None:
            return tuple(results)
        shared = _Shared(anchor, backward, len(results), members)
        gates = [_make_gate(shared, n, *[inputs[i] for i in group]) for n, group in enumerate(members)]
        watch = getattr(ctx, "watch", None)
        for place in gates_of:
            at, some = place
            results[at] = _make_result(shared, place, results[at : at + 1], *[gates[n] for n in some])
            if watch is not None:
                watch.rename(at, results[at])
                results[at].grad_fn.watch = _OfResult(watch, at)
        return tuple(results)

    return run


def inputs_reached(node: Any, tensors: Sequence[int]) -> frozenset[int]:
    """Those of a node's inputs that the engine will come to in this run: not all, where gradients of some are asked for.
    ``tensors``: positions of the inputs that are tensors."""
    pairs = zip(tensors, node.next_functions, strict=True)
    return frozenset(i for i, (behind, _) in pairs if behind is not None and torch_private.will_run(behind))


class _Run:
    """What a run of the engine has brought so far: tangents by result, the gates that it will come to, and gradients by input
    for gates that are still to come. The engine has a thread for each device, and so may come to two gates at once: ``lock`` is
    held while one of them runs the backward of both."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tangents: dict[int, Any] = {}
        self.coming: set[int] = set()
        self.grads: dict[int, Any] = {}


class _Shared:
    """What the nodes of one call have in common. ``anchor`` keeps the node alive that has saved what the backward needs, and
    that the engine never comes to; ``backward``: that node's; ``members``: the inputs of each gate."""

    __slots__ = ("_anchor", "_backward", "_count", "_members", "_runs")

    def __init__(self, anchor: torch.Tensor, backward: Fn, count: int, members: Sequence[Sequence[int]]) -> None:
        self._anchor, self._backward, self._count, self._members = anchor, backward, count, members
        self._runs: dict[int, _Run] = {}  # of the engine

    def take(self, at: int, tangent: Any, gates: set[int]) -> None:
        """The tangent of a result; ``gates``: those to which the engine goes on from there."""
        number = torch_private.engine_run()
        run = self._runs.setdefault(number, _Run())
        with run.lock:
            run.coming |= gates
            if not gates:  # the engine's run ends here, as where a gradient of this result is asked for
                if not run.coming:
                    self._runs.pop(number, None)
            elif tangent is not None:
                run.tangents[at] = tangent

    def gradients(self, gate: int) -> list[Any]:
        """Those of a gate's inputs."""
        number = torch_private.engine_run()
        run = self._runs.get(number) or _Run()
        with run.lock:
            if run.tangents:
                self._run_backward(run, gate)
            own = [run.grads.pop(i, None) for i in self._members[gate]]
            run.coming.discard(gate)
            if not run.coming:
                self._runs.pop(number, None)
        return own

    def _run_backward(self, run: _Run, gate: int) -> None:
        """The backward of the tangents that are there, for this gate and those to come."""
        tangents, run.tangents = run.tangents, {}
        ctx = self._anchor.grad_fn
        found = self._backward(ctx, *[tangents.get(at) for at in range(self._count)])[2:]
        if not torch_private.keeps_graph():
            torch_private.clear_saved(ctx)
        grads = run.grads
        for i in (i for n in {gate, *run.coming} for i in self._members[n] if found[i] is not None):
            grads[i] = grads[i] + found[i] if i in grads else found[i]


class _OfResult:
    """The watch of a call, for the node of one of its results."""

    def __init__(self, watch: Watch, at: int) -> None:
        self._watch, self._at = watch, at

    def instead(self, output: int, tensor: torch.Tensor) -> None:
        """See :meth:`~tinycompile.base.watch.Watch.instead`; the node has one output."""
        self._watch.instead(self._at, tensor)


class CompiledGate(torch.autograd.Function):
    """Before the inputs to which the same results lead."""

    @staticmethod
    def forward(ctx: Any, shared: _Shared, gate: int, *inputs: torch.Tensor) -> torch.Tensor:
        """An empty tensor, on the device on which the backward is to run."""
        ctx.set_materialize_grads(False)
        ctx.shared, ctx.gate = shared, gate
        return inputs[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return (None, None, *ctx.shared.gradients(ctx.gate))


class CompiledFunction(torch.autograd.Function):
    """Behind one result."""

    @staticmethod
    def forward(ctx: Any, shared: _Shared, place: tuple[int, tuple[int, ...]], held: list[Any], *gates: Any) -> torch.Tensor:
        """The same data. ``place``: the result's position, and the gates' numbers; ``held`` is a list, so that torch does not
        take the result for an argument."""
        ctx.set_materialize_grads(False)
        ctx.shared, ctx.place = shared, place
        result: torch.Tensor = held[0].detach()
        return result

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> tuple[None, ...]:
        at, gates = ctx.place
        nodes = (node for node, _ in ctx.next_functions)
        ctx.shared.take(at, tangent, {n for n, node in zip(gates, nodes, strict=True) if torch_private.will_run(node)})
        return (None,) * (3 + len(gates))


_make_gate = torch_private.function_apply(CompiledGate)
_make_result = torch_private.function_apply(CompiledFunction)
