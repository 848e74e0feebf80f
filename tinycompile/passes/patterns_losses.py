"""Cross-entropy of a linear layer's result becomes one call that never holds all of the logits: ``ops/losses_linear.py``.

What is recognised: ``cross_entropy`` of class indices, whose input is a ``linear``, ``matmul`` or ``mm`` that nothing else
reads, also through a cast to float32 and through views that leave the classes alone (``logits.view(-1, V)``, a slice of
positions, ``logits.transpose(1, 2)``). ``chunk_losses`` then writes the call out, when forward and backward have been parted:
before that the two halves would share their logits, which would keep them in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import inputs_of, map_refs
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.calls import ops
from tinycompile.ops.losses_linear import CHUNKED
from tinycompile.passes.decompose import Expander
from tinycompile.passes.rewrite import Splicer

# The cost model. Chunks cost a backward one more product (four products instead of three), and a launch for each chunk. That
# buys memory where the logits are what a program needs most of it for: a vocabulary over a batch of sequences. Below a quarter
# of a gigabyte they are not, and all stays as it is.
LEAST_BYTES = 256 << 20
CHUNK_BYTES = 64 << 20  # of logits at once: a product of this size still fills a card (640 rows of 50,000 classes in bfloat16)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_VIEWS = ("view", "reshape", "flatten", "slice", "contiguous", "clone")


@dataclass(frozen=True, slots=True)
class Found:
    """A loss, the layer that makes its logits, and the views in between, the layer's first. ``gone``: what is not needed then.
    ``classes_second``: the loss sees [batch, classes, positions]."""

    layer: Node
    views: tuple[Node, ...]
    wide: bool
    classes_second: bool
    gone: tuple[str, ...]


def fuse_losses(graph: Graph) -> Graph:
    """The graph with losses of large layers as calls of ``cross_entropy_of_linear``."""
    if not any(n.kind == "call" and n.target == "cross_entropy" for n in graph.nodes) or any(written(n) for n in graph.nodes):
        return graph
    finder = _Finder(graph)
    found = {n.name: f for n in graph.nodes if (f := finder.loss(n)) is not None}
    if not found:
        return graph
    splicer, gone = Splicer(graph), set[str]()

    def change(node: Node) -> bool:
        match = found.get(node.name)
        if match is None or not splicer.splice(node, lambda: _call(splicer, node, match)):
            return False
        gone.update(match.gone)
        return True

    done = splicer.run(change)
    kept = tuple(n for n in done.nodes if n.name not in gone)
    return Graph(done.name, kept, done.hints, done.donated) if gone else graph


def chunk_losses(graph: Graph) -> Graph:
    """The graph with each such call written out, chunk by chunk."""
    if not any(n.kind == "call" and n.target in CHUNKED for n in graph.nodes):
        return graph
    expander = Expander(graph)
    for node in expander.copying(graph):
        if node.kind == "call" and node.target in CHUNKED:
            expander.start_part(node)
            expander.end_part(node, expander.expand_with(CHUNKED[node.target], map_refs(node.args, expander.fake), node.meta))
        else:
            expander.add(node)
    return expander.finish(graph)


class _Finder:
    """Follows a loss back to its layer."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {n.name: n for n in graph.nodes}
        self.uses = Counter(r.name for n in graph.nodes for r in inputs_of(n))

    def loss(self, node: Node) -> Found | None:
        """What a loss is made of, where it is one to replace."""
        if node.kind != "call" or node.target != "cross_entropy":
            return None
        logits, target, weight, _, _, smoothing = node.args
        if not isinstance(logits, Ref) or not isinstance(target, Ref) or weight is not None or not isinstance(smoothing, float):
            return None
        at, labels = self.nodes[logits.name], self.nodes[target.name].meta
        if not isinstance(labels, TensorMeta) or labels.dtype != torch.int64 or not isinstance(at.meta, TensorMeta):
            return None
        if not all(isinstance(n, int) and n > 0 for n in (*at.meta.shape, *labels.shape)) or not 0.0 <= smoothing < 1.0:
            return None
        return self.layer(at, node.meta)

    def layer(self, at: Node, loss: Any) -> Found | None:
        """The layer below views and a cast."""
        views: list[Node] = []
        gone: list[str] = []
        wide, second = False, False
        if at.meta.rank > 2:
            if at.meta.rank != 3 or not _turns(at):
                return None
            second = True
        while True:
            if at.kind != "call" or self.uses[at.name] != 1:
                return None
            gone.append(at.name)
            if at.target in ("linear", "matmul", "mm"):
                break
            below = self.nodes[at.args[0].name]
            if not isinstance(below.meta, TensorMeta):
                return None
            if at.target == "to" and at.meta.dtype == torch.float32 and below.meta.dtype in (torch.bfloat16, torch.float16):
                wide = True
            elif second and not views and _turns(at):
                pass
            elif at.target in _VIEWS and _keeps_classes(at, below.meta):
                views.insert(0, at)
            else:
                return None
            at = below
        return Found(at, tuple(views), wide, second, tuple(gone)) if _is_large(at, loss) else None


def _turns(node: Node) -> bool:
    """[batch, positions, classes] -> [batch, classes, positions]."""
    return (
        node.kind == "call" and node.target == "transpose" and node.meta.rank == 3 and {d % 3 for d in node.args[1:3]} == {1, 2}
    )


def _keeps_classes(node: Node, below: TensorMeta) -> bool:
    """Whether the last dim stays as it is, whole and last."""
    made: TensorMeta = node.meta
    if node.target == "slice" and node.args[1] % below.rank == below.rank - 1:
        return False
    return made.rank > 1 and made.dtype == below.dtype and made.shape[-1] == below.shape[-1]


def _is_large(layer: Node, loss: TensorMeta) -> bool:
    meta = layer.meta
    if not isinstance(meta, TensorMeta) or meta.dtype not in FLOATS or meta.rank < 2:
        return False
    count = shapes.numel(meta.shape)
    return isinstance(count, int) and count * meta.dtype.itemsize >= LEAST_BYTES


def _call(splicer: Splicer, node: Node, match: Found) -> Any:
    """The call: the views are made of the layer's input instead. None where the layer is no matrix times rows."""
    layer = match.layer
    x = splicer.fake(layer.args[0])
    weight = splicer.fake(layer.args[1])
    bias = splicer.fake(layer.args[2]) if layer.target == "linear" and layer.args[2] is not None else None
    if len(weight.shape) != 2 or len(x.shape) < 2:
        return None
    weight = weight if layer.target == "linear" else ops.transpose(weight, 0, 1)
    width = x.shape[-1]
    for view in match.views:
        x = _view(x, view, width)
    _, target, _, ignore_index, reduction, smoothing = node.args
    labels = splicer.fake(target)
    rows, flat = ops.reshape(x, (-1, width)), ops.reshape(labels, (-1,))
    if rows.shape[0] != flat.shape[0]:
        return None
    loss, *_ = ops.cross_entropy_of_linear(
        rows, weight, bias, flat, ignore_index, reduction, smoothing, match.wide, CHUNK_BYTES // layer.meta.dtype.itemsize
    )
    return ops.reshape(loss, tuple(labels.shape)) if reduction == "none" and len(labels.shape) != 1 else loss


def _view(x: Any, view: Node, width: Any) -> Any:
    """A view of the logits as one of the layer's input."""
    if view.target == "slice":
        return ops.slice(x, *view.args[1:])
    if view.target in ("contiguous", "clone"):
        return x
    return ops.reshape(x, (*view.meta.shape[:-1], width))
