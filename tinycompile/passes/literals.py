"""``torch.tensor`` of a few numbers becomes arithmetic on positions, which fuses with what reads it.

As a call it copies from the host at each run, which waits for the device and keeps a CUDA graph from being recorded:
``x[:, [-1]]`` holds such a list.
"""

from __future__ import annotations

from typing import Any

from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import numel
from tinycompile.ir.graph import Graph, Node
from tinycompile.ops.calls import ops
from tinycompile.passes.rewrite import Splicer

MOST = 8  # numbers: each takes a selection an element


def spell_literals(graph: Graph) -> Graph:
    """The graph with short lists of numbers written out."""
    if not any(_numbers(n) for n in graph.nodes):
        return graph
    splicer = Splicer(graph)
    return splicer.run(lambda node: bool(found := _numbers(node)) and splicer.splice(node, lambda: _written(found, node.meta)))


def _numbers(node: Node) -> list[Any]:
    """The numbers of a call ``torch.tensor(list)``, in order; none where it is another call, too long, or wants a gradient."""
    if node.kind != "extern" or node.target != "torch.tensor" or len(node.args) != 1 or not isinstance(node.meta, TensorMeta):
        return []
    kwargs = dict(node.kwargs)
    if kwargs.get("requires_grad") or kwargs.get("pin_memory") or node.meta.device.type == "cpu":
        return []
    found: list[Any] = []
    pending = [node.args[0]]
    while pending and len(found) <= MOST:
        value = pending.pop()
        if isinstance(value, (tuple, list)):
            pending.extend(reversed(value))
        elif isinstance(value, (bool, int, float)):
            found.append(value)
        else:
            return []
    count = numel(node.meta.shape)
    return found if isinstance(count, int) and len(found) == count <= MOST else []


def _written(found: list[Any], meta: TensorMeta) -> Any:
    """A tensor of ``meta`` with the numbers."""
    given = {"dtype": meta.dtype, "device": meta.device}
    if len({repr(v) for v in found}) == 1:
        return ops.full(meta.shape, found[0], **given)
    place = ops.arange(0, len(found), 1, device=meta.device)
    made = ops.full((), found[-1], **given)
    for i in reversed(range(len(found) - 1)):
        made = ops.where(ops.eq(place, i), ops.full((), found[i], **given), made)
    return ops.reshape(made, meta.shape)
