"""Where our tape meets torch's: a tensor of ours that torch's ops go on from, and torch tensors at which our pass ends.

``x.torch()`` of a tensor on our tape is the result of :class:`ToTorch`, a node of torch's graph whose backward is a pass over
ours. Where gradients of certain tensors are asked for, the way may lead from our tape through torch's and back: the nodes then
hand on what they got, and the next pass begins there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tinycompile.base.torch_private import keeps_graph
from tinycompile.eager.engine import Backward, bridges_behind
from tinycompile.eager.recording import edge_of
from tinycompile.eager.tape import Edge
from tinycompile.eager.tensor import Tensor, from_torch, same_memory
from tinycompile.ops.calls import ops


class ToTorch(torch.autograd.Function):
    """A node of torch's tape whose backward is a pass over ours. ``anchor`` is what makes torch record it."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: Tensor) -> torch.Tensor:
        ctx.edge, ctx.back = edge_of(tensor), None
        return tensor.raw().detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None]:
        if ctx.back is not None:
            ctx.back.append((ctx.edge, from_torch(grad)))
            return None, None
        # kept, for another bridge may lead to the same nodes
        run_all([ctx.edge], [from_torch(grad)], True, torch.is_grad_enabled(), keeps_graph())
        return None, None


def to_torch(tensor: Tensor) -> Any:
    """The tensor on torch's tape: torch's backward goes on in ours."""
    return ToTorch.apply(torch.empty(0, requires_grad=True), same_memory(tensor, keep_history=True))


def run_all(
    roots: Sequence[Edge], grads: Sequence[Any], keep: bool, create_graph: bool, keep_torchs: bool | None = None
) -> None:
    """To all leaves, ours and torch's. ``keep_torchs``: as ``keep``, of torch's graph."""
    run = Backward(roots, grads, None, keep, create_graph)
    run.run()
    if run.outside:
        tensors, given = [t for t, _ in run.outside], [g.torch() for _, g in run.outside]
        retain = keep if keep_torchs is None else keep_torchs
        torch.autograd.backward(tensors, given, retain_graph=retain, create_graph=create_graph)


def gradients_of_torchs(
    outside: Sequence[tuple[torch.Tensor, Any]], wanted: Sequence[torch.Tensor], keep: bool, create_graph: bool
) -> tuple[Sequence[Any], list[tuple[Edge, Any]]]:
    """torch's pass from tensors with their gradients: one a tensor ``wanted`` (or None), and what came back to our tape."""
    tensors = [t for t, _ in outside]
    bridges = bridges_behind(tensors)
    back: list[tuple[Edge, Any]] = []
    if not tensors or not (wanted or bridges):
        return [None] * len(wanted), back
    anchors = [bridge.next_functions[0][0].variable for bridge in bridges]
    for bridge in bridges:
        bridge.back = back
    try:
        given = [g.torch() for _, g in outside]
        keep = keep or bool(bridges)  # what comes back may lead here again
        found = torch.autograd.grad(tensors, [*wanted, *anchors], given, keep, create_graph, allow_unused=True)
    finally:
        for bridge in bridges:
            bridge.back = None
    return found[: len(wanted)], back


class Found:
    """Gradients by edge (of our tensors) or by id (of torch's), summed over several passes."""

    def __init__(self, create_graph: bool) -> None:
        self.grads: dict[Any, Any] = {}
        self.create_graph = create_graph

    def add(self, items: Iterable[tuple[Any, Any]]) -> None:
        """What one pass found."""
        for key, grad in items:
            if grad is not None:
                held = self.grads.get(key)
                with torch.set_grad_enabled(self.create_graph):
                    self.grads[key] = grad if held is None else ops.add(held, grad)

    def of(self, target: Any, edge: Edge | None) -> Any:
        """The gradient of one target, of its kind; None where there is none."""
        if edge is not None:
            return self.grads.get(edge)
        found = self.grads.get(id(target if isinstance(target, torch.Tensor) else target.raw()))
        return found.torch() if found is not None and isinstance(target, torch.Tensor) else found
