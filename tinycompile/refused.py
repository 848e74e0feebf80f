"""Programs that write to what torch saved for a backward, where a graph, which is of values, can't do as torch does."""

from __future__ import annotations

from dataclasses import replace

import torch

from tinycompile.aot.refusals import changed_unseen, spoiled_backward
from tinycompile.capture.breaks import Break
from tinycompile.capture.captured import Captured
from tinycompile.ir.graph import Location, Node
from tinycompile.ir.requires_grad import GRAD, asks_for_gradients


def without_refused(captured: Captured) -> Captured:
    """The same; without its graph where torch would raise an error in a backward of it: eager Python then raises that."""
    graph = captured.graph
    if graph is None or not asks_for_gradients(graph):
        return captured
    said = spoiled_backward(graph, captured.inputs_require_grad, captured.edits)
    if not said:
        return captured
    return _left_to_torch(captured, "backward", said, next(n for n in graph.nodes if n.target == GRAD))


def without_unseen_edits(captured: Captured) -> Captured:
    """The same; without its graph where a gradient would be of values that the program has changed since, unseen by torch:
    eager Python then computes it of what lies in memory."""
    graph = captured.graph
    if graph is None or asks_for_gradients(graph) or not torch.is_grad_enabled():
        return captured
    node = changed_unseen(graph, captured.inputs_require_grad, captured.edits)
    if node is None:
        return captured
    return _left_to_torch(
        captured, "input-mutation", f"what {node.name} saves for its gradient is written to by way of .data", node
    )


def without_remade(captured: Captured) -> Captured:
    """The same; without its graph where torch is to give gradients of its values, and some of these are made again behind it
    (views, and what the program wrote to): what they lead to has not come from them."""
    graph = captured.graph
    if graph is None or captured.place is None or asks_for_gradients(graph) or not (captured.asks_inside and captured.remakes):
        return captured
    why = "views, or tensors that were written to, are among the values"
    return _left_to_torch(captured, "inner-gradient", why, graph.nodes[0])


def _left_to_torch(captured: Captured, kind: str, why: str, node: Node) -> Captured:
    code = captured.code
    where = node.loc or Location(code.co_filename, code.co_firstlineno, code.co_name)
    return replace(captured, graph=None, place=None, breaks=(*captured.breaks, Break(kind, why, where)))
