"""What attention written by hand looks like in a graph: from the last product back through the softmax to the scores."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import inputs_of
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.passes.patterns_masks import sides_of
from tinycompile.passes.products import Product, product_of

NOTHING = -1e9  # a score that leaves no weight beside any other: exp(-1e9 - s) is 0 in float32 for every s above -1e9 + 104


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask. ``added``: it is added to the scores, else it is boolean and ``value`` stands where it is ``marks``.
    ``rank``: of the scores. ``diagonal``: proven to keep columns up to row + diagonal (``lower``), or those beyond."""

    ref: Ref
    added: bool
    value: float = -math.inf
    marks: bool = True
    rank: int = 4
    diagonal: Dim | None = None
    lower: bool = True

    @property
    def proven(self) -> bool:
        """Whether it is known to the last element."""
        return self.diagonal is not None


@dataclass(frozen=True, slots=True)
class Scores:
    """``product * scale`` with ``masks`` applied in order. ``lead``: the dims before the last two, if a view split them.
    ``inner``: the nodes that go."""

    product: Product
    inner: frozenset[str]
    scale: float = 1.0
    masks: tuple[Mask, ...] = ()
    lead: tuple[Dim, ...] | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """A match: ``weights`` are multiplied with ``value`` by the node ``root``."""

    scores: Scores
    last: Product
    dropout: float
    inner: frozenset[str]


class Finder:
    """Looks for attention in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {n.name: n for n in graph.nodes}
        self.place = {n.name: i for i, n in enumerate(graph.nodes)}
        self.uses = Counter(r.name for n in graph.nodes for r in {*inputs_of(n)})
        self.writes = [i for i, n in enumerate(graph.nodes) if written(n)]

    def attention(self, root: Node) -> Attention | None:
        """The match that ends in ``root``."""
        last = product_of(root, self.nodes)
        if last is None or not isinstance(root.meta, TensorMeta) or not root.meta.dtype.is_floating_point:
            return None
        inner: set[str] = set()
        dropout = 0.0
        ref = last.left.ref
        while True:
            node = self.single(ref)
            if node is None or not node.args or not isinstance(node.args[0], Ref):
                return None
            inner.add(node.name)
            if node.target == "softmax":
                break
            if node.target == "dropout" and not dropout and node.args[2] is True and isinstance(node.args[1], float):
                dropout = node.args[1]
            elif node.target not in ("to", "contiguous", *_RESHAPES) or not self.keeps_last_two(node):
                return None
            ref = node.args[0]
        if node.meta.dtype != torch.float32 and node.meta.dtype != root.meta.dtype:
            return None
        if node.args[1] not in (-1, node.meta.rank - 1) or not 0.0 <= dropout < 1.0 or last.left.order is not None:
            return None
        scores = self.scores(node.args[0])
        if scores is None:
            return None
        inner |= scores.inner
        first = min(self.place[n] for n in inner)
        if any(first < w < self.place[root.name] for w in self.writes):
            return None
        return Attention(scores, last, dropout, frozenset(inner))

    def single(self, ref: Any) -> Node | None:
        """The call that makes a value which nothing else reads."""
        node = self.nodes[ref.name] if isinstance(ref, Ref) and self.uses[ref.name] == 1 else None
        return node if node is not None and node.kind == "call" and isinstance(node.meta, TensorMeta) else None

    def keeps_last_two(self, node: Node) -> bool:
        source = self.nodes[node.args[0].name].meta
        return len(source.shape) >= 2 and source.shape[-2:] == node.meta.shape[-2:]

    def number(self, value: Any) -> float | None:
        """A number, or a tensor known to hold one."""
        known = sides_of(value, self.nodes, 1, 1) if not isinstance(value, Ref) or self.small(value) else None
        found = None if known is None else known.number
        return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    def small(self, ref: Ref) -> bool:
        meta = self.nodes[ref.name].meta
        return isinstance(meta, TensorMeta) and all(n == 1 for n in meta.shape)

    def scores(self, ref: Any) -> Scores | None:
        """What is below a softmax, followed down to the product."""
        node = self.single(ref)
        if node is None:
            return None
        product = product_of(node, self.nodes)
        if product is not None:
            return Scores(product, frozenset({node.name})) if product.out_order is None else None
        step = getattr(self, f"_{node.target}", None) if node.target not in _RESHAPES else self._reshape
        found: Scores | None = step(node) if step is not None else None
        return None if found is None else replace(found, inner=found.inner | {node.name})

    def under(self, node: Node, ref: Any) -> Scores | None:
        """The scores of an operand that has the shape of the node's result."""
        if not isinstance(ref, Ref) or not isinstance(self.nodes[ref.name].meta, TensorMeta):
            return None
        return self.scores(ref) if self.nodes[ref.name].meta.shape == node.meta.shape else None

    # one method an op: the scores with it applied

    def _to(self, node: Node) -> Scores | None:
        return self.under(node, node.args[0]) if node.meta.dtype.is_floating_point else None

    def _reshape(self, node: Node) -> Scores | None:
        found = self.scores(node.args[0]) if self.keeps_last_two(node) else None
        if found is None:
            return None
        wider = max(node.meta.shape[:-2], self.nodes[node.args[0].name].meta.shape[:-2], found.lead or (), key=len)
        return replace(found, lead=wider) if len(wider) == 2 else None

    def _mul(self, node: Node) -> Scores | None:
        for x, other in (node.args, node.args[::-1]):
            factor = self.number(other)
            if factor is not None:
                return self.scaled(self.under(node, x), factor)
        return None

    def _div(self, node: Node) -> Scores | None:
        divisor = self.number(node.args[1])
        return self.scaled(self.under(node, node.args[0]), 1 / divisor) if divisor else None

    def scaled(self, found: Scores | None, factor: float) -> Scores | None:
        if found is None or not 0 < factor < math.inf or any(m.added and not m.proven for m in found.masks):
            return None
        masks = tuple(replace(m, value=m.value * factor) for m in found.masks)
        return replace(found, scale=found.scale * factor, masks=masks) if all(m.value <= NOTHING for m in masks) else None

    def _add(self, node: Node) -> Scores | None:
        if node.args[2] != 1:
            return None
        for x, mask in (node.args[:2], node.args[1::-1]):
            found = self.under(node, x) if isinstance(mask, Ref) else None
            if found is not None:
                return self.masked(found, node, Mask(mask, True, rank=node.meta.rank))
        return None

    def _masked_fill(self, node: Node) -> Scores | None:
        return self.filled(node, node.args[0], node.args[1], node.args[2], True)

    def _where(self, node: Node) -> Scores | None:
        condition, x, other = node.args
        return self.filled(node, x, condition, other, False) or self.filled(node, other, condition, x, True)

    def filled(self, node: Node, x: Any, condition: Ref, value: Any, marks: bool) -> Scores | None:
        number = self.number(value)
        if number is None or not _is_nothing(number, node.meta.dtype):
            return None
        found = self.under(node, x)
        return None if found is None else self.masked(found, node, Mask(condition, False, number, marks, node.meta.rank))

    def masked(self, found: Scores, node: Node, mask: Mask) -> Scores | None:
        """The scores with a mask; with what is proven of it."""
        rows, columns = node.meta.shape[-2:]
        sides = sides_of(mask.ref, self.nodes, rows, columns)
        if sides is not None:
            below, above = sides.below.item(), sides.above.item()
            if mask.added:
                if below == above == 0:
                    return found
                value = min(below, above)
                if max(below, above) == 0 and _is_nothing(value, node.meta.dtype):
                    mask = replace(mask, value=value, diagonal=sides.diagonal, lower=below == 0)
            elif sides.diagonal is not None and below is not above:
                mask = replace(mask, diagonal=sides.diagonal, lower=below is not mask.marks)
        return replace(found, masks=(*found.masks, mask))


_RESHAPES = frozenset(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"))


def _is_nothing(value: float, dtype: torch.dtype) -> bool:
    """Whether a score leaves no weight beside a kept one: minus infinity, and what people write for it."""
    return value <= NOTHING or (dtype is torch.float16 and value <= -65000)
