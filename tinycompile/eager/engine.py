"""The backward pass: an iterative walk over the nodes, newest first, that sums what meets at a node and frees as it goes.

A run keeps all its state in local variables, so that several threads may run at once; only a leaf's accumulation is locked.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.eager.hooks import ON_NODE
from tinycompile.eager.streams import OnStream, where_launched
from tinycompile.eager.tape import AccumulateGrad, Edge, Node
from tinycompile.ops.calls import cast, ops
from tinycompile.ops.gradients import sum_to


class Backward:
    """One run from ``roots`` with their gradients. ``targets``: edges whose gradients are wanted; None: leaves accumulate."""

    def __init__(
        self,
        roots: Sequence[Edge],
        grads: Sequence[Any],
        targets: Sequence[Edge] | None,
        keep: bool,
        create_graph: bool,
        to_torch: bool = True,
    ) -> None:
        """``to_torch``: gradients of torch tensors are wanted too; else torch's tape is entered only where it leads back."""
        self.keep, self.create_graph = keep, create_graph
        self.waiting: dict[Node, int] = {}  # edges that still have to bring something
        self.arrived: dict[Node, list[Any]] = {}
        self.wanted = None if targets is None else set(targets)
        self.ends = {e.node for e in targets or ()}  # hooks see what is asked for, and what leads there
        self.found: dict[Edge, Any] = {}
        self.outside: list[tuple[Any, Any]] = []  # torch tensors and their gradients
        self.ready: list[tuple[float, int, Node]] = []
        self._tie = itertools.count()
        order = self._count(e.node for e in roots)
        self.needed: set[Node] | None = None
        if self.wanted is not None:
            ends = [n for n in order if isinstance(n, TorchTape)]
            back = {n for n in ends if bridges_behind([n.tensor])}
            self.keep = keep or bool(back)  # the way back may lead to nodes that were run
            outside = set(ends) if to_torch else back
            self.needed = _leads_to(order, self.ends | outside) | outside
        for edge, grad in zip(roots, grads, strict=True):
            self._arrive(edge, grad)
        for node in {e.node: None for e in roots}:
            if not self.waiting[node]:
                self._push(node)

    def run(self) -> dict[Edge, Any]:
        """Until nothing is left. Returns the gradients of the targets."""
        with torch.set_grad_enabled(self.create_graph):
            while self.ready:
                node = heapq.heappop(self.ready)[2]
                self._visit(node, self.arrived.pop(node, None))
        return self.found

    # --- the walk ---

    def _count(self, roots: Iterable[Node]) -> list[Node]:
        """Note how many edges lead to each node that can be reached. Returns the nodes."""
        stack = list(dict.fromkeys(roots))
        self.waiting = dict.fromkeys(stack, 0)
        order = list(stack)
        while stack:
            for edge in stack.pop().edges:
                if edge is None:
                    continue
                if edge.node in self.waiting:
                    self.waiting[edge.node] += 1
                else:
                    self.waiting[edge.node] = 1
                    stack.append(edge.node)
                    order.append(edge.node)
        return order

    def _push(self, node: Node) -> None:
        heapq.heappush(self.ready, (-node.serial, next(self._tie), node))

    def _arrive(self, edge: Edge, grad: Any) -> None:
        """Add a gradient to what a node has got so far."""
        if grad is None:
            return
        got = self.arrived.setdefault(edge.node, [None] * max(len(edge.node.metas), edge.index + 1))
        held = got[edge.index]
        got[edge.index] = grad if held is None else ops.add(held, grad)

    def _visit(self, node: Node, grads: list[Any] | None) -> None:
        """Run a node on its gradients and hand its own on."""
        results: Sequence[Any] = (None,) * len(node.edges)
        if grads is not None and (self.needed is None or node in self.needed or node in self.ends):
            grads = [None if g is None else node.before(i, g) for i, g in enumerate(grads)]
            self._capture(node, grads)
            if self.needed is None or node in self.needed:
                results = self._run(node, grads)
        for edge, grad in zip(node.edges, results, strict=True):
            if edge is None:
                continue
            self._arrive(edge, grad)
            self.waiting[edge.node] -= 1
            if not self.waiting[edge.node]:
                self._push(edge.node)

    def _capture(self, node: Node, grads: Sequence[Any]) -> None:
        if self.wanted is not None:
            for i, grad in enumerate(grads):
                if (edge := Edge(node, i)) in self.wanted and grad is not None:
                    self.found[edge] = grad

    def _run(self, node: Node, grads: list[Any]) -> Sequence[Any]:
        if isinstance(node, TorchTape):
            self.outside.append((node.tensor, grads[0]))
            return ()
        if isinstance(node, AccumulateGrad) and self.wanted is not None:
            return ()
        first = node.pre_hooks.get(ON_NODE) if node.pre_hooks else None
        if first:
            grads = first.replace_all(grads)
        try:
            results = self._on_its_stream(node, grads)
            if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
                _check_numbers(node, results)
        except Exception:
            if node.location is not None:
                _tell_origin(node)
            raise
        if node.post_hooks:
            results = node.post_hooks.replace_all(results, tuple(grads))
        return results

    def _on_its_stream(self, node: Node, grads: list[Any]) -> Sequence[Any]:
        """Where its forward ran."""

        def step() -> Sequence[Any]:
            return [_fitting(node, i, g) for i, g in enumerate(node.run(grads, self.create_graph, self.keep))]

        device = next((m.device for m in node.metas if m is not None), None)
        if device is None or isinstance(node, AccumulateGrad) or node.stream == where_launched(device):
            return step()
        return OnStream(device, node.stream).run(step, grads)


class TorchTape(Node):
    """Where our tape ends at a torch tensor that requires grad: torch's engine goes on from there."""

    __slots__ = ("tensor",)
    label = "TorchTape"

    def __init__(self, tensor: torch.Tensor, meta: TensorMeta) -> None:
        super().__init__((), (meta,))
        self.tensor = tensor


def bridges_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The nodes of torch's graph behind these tensors at which our tape goes on, by an ``edge`` of theirs (``bridge.py``)."""
    return bridges_among(nodes_behind(tensors))


def bridges_among(nodes: Sequence[Any]) -> list[Any]:
    """Those of torch's nodes at which our tape goes on."""
    return [node for node in nodes if isinstance(getattr(node, "edge", None), Edge)]


def nodes_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The nodes of torch's graph behind these tensors."""
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    found = dict.fromkeys(stack)
    while stack:
        new = {n for n, _ in stack.pop().next_functions if n is not None and n not in found}
        found.update(dict.fromkeys(new))
        stack += new
    return list(found)


def _leads_to(nodes: Sequence[Node], targets: set[Node]) -> set[Node]:
    """The nodes from which edges lead, directly or not, to a target. Edges go to older nodes (leaves count as the oldest)."""
    reaching: set[Node] = set()
    for node in sorted(nodes, key=lambda n: n.serial if n.edges else -1.0):
        if any(e is not None and (e.node in targets or e.node in reaching) for e in node.edges):
            reaching.add(node)
    return reaching


# --- checks ------------------------------------------------------------------------------------------------------------------


def _fitting(node: Node, index: int, grad: Any) -> Any:
    """A gradient in the shape and dtype of what it is the gradient of."""
    edge = node.edges[index]
    if edge is None or grad is None or edge.index >= len(edge.node.metas):
        return grad
    like = edge.node.metas[edge.index]
    if tuple(grad.shape) != like.shape:
        if not _expands(like.shape, tuple(grad.shape)):
            raise RuntimeError(
                f"Function {node.name()} returned an invalid gradient at index {index} - got {list(grad.shape)} but expected "
                f"shape compatible with {list(like.shape)}"
            )
        grad = sum_to(grad, like)
    if grad.device != like.device:
        raise RuntimeError(
            f"Function {node.name()} returned an invalid gradient at index {index} - expected device {like.device} but got "
            f"{grad.device}"
        )
    return cast(grad, like.dtype)


def _expands(shape: Sequence[Any], to: Sequence[Any]) -> bool:
    lead = len(to) - len(shape)
    return lead >= 0 and all(a in (1, b) for a, b in zip(shape, to[lead:], strict=True))


def _check_numbers(node: Node, grads: Sequence[Any]) -> None:
    for i, grad in enumerate(grads):
        if grad is not None and not grad.is_meta and bool(ops.any(ops.isnan(grad)).raw()):
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {i}th output.")


def _tell_origin(node: Node) -> None:
    """Anomaly mode: where in the user's program the node was made."""
    assert node.location is not None
    warnings.warn(
        f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n{''.join(node.location)}",
        UserWarning,
        stacklevel=2,
    )
