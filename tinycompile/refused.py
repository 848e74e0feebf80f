"""Programs whose own backward torch refuses: what it saved for the backward was written to before."""

from __future__ import annotations

from dataclasses import replace

from tinycompile.aot.refusals import spoiled_backward
from tinycompile.capture.breaks import Break
from tinycompile.capture.captured import Captured
from tinycompile.ir.graph import Location
from tinycompile.ir.requires_grad import GRAD, asks_for_gradients


def without_refused(captured: Captured) -> Captured:
    """The same; without its graph where torch would raise an error in a backward of it: eager Python then raises that."""
    graph = captured.graph
    if graph is None or not asks_for_gradients(graph):
        return captured
    said = spoiled_backward(graph, captured.inputs_require_grad, captured.edits)
    if not said:
        return captured
    backward = next(n for n in graph.nodes if n.target == GRAD)
    where = backward.loc or Location(captured.code.co_filename, captured.code.co_firstlineno, captured.code.co_name)
    return replace(captured, graph=None, place=None, breaks=(*captured.breaks, Break("backward", said, where)))
