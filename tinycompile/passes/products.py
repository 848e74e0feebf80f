"""Batched matrix products, whatever they are called: ``matmul``, ``bmm``, ``einsum`` of two operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A factor; ``order`` permutes its dims first (None: as they are)."""

    ref: Ref
    order: Order | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """``left [..., rows, inner] @ right [..., inner, columns]``, of rank 3 or 4; ``out_order`` permutes the result."""

    left: Operand
    right: Operand
    out_order: Order | None = None


def product_of(node: Node, nodes: Mapping[str, Node]) -> Product | None:
    """A node as a product of two tensors of the same rank, 3 or 4."""
    if node.kind != "call":
        return None
    if node.target in ("matmul", "bmm"):
        left, right = node.args[:2]
        ranks = {_rank(left, nodes), _rank(right, nodes)}
        return Product(Operand(left), Operand(right)) if ranks in ({3}, {4}) else None
    if node.target == "einsum" and len(node.args[1]) == 2:
        return _einsum(str(node.args[0]), *node.args[1])
    return None


def _rank(ref: Ref, nodes: Mapping[str, Node]) -> int:
    meta = nodes[ref.name].meta
    return meta.rank if isinstance(meta, TensorMeta) else 0


def _einsum(equation: str, a: Ref, b: Ref) -> Product | None:
    """Terms of distinct letters: some in all three, one in both operands, one in each operand and the result."""
    terms, arrow, out = equation.replace(" ", "").partition("->")
    left, comma, right = terms.partition(",")
    if not arrow or not comma or not all(t.isalpha() and len(set(t)) == len(t) in (3, 4) for t in (left, right, out)):
        return None
    batch = [x for x in out if x in left and x in right]
    rows, columns = [x for x in out if x in left and x not in right], [x for x in out if x in right and x not in left]
    inner = [x for x in left if x in right and x not in out]
    if not len(rows) == len(columns) == len(inner) == 1 or len(batch) != len(out) - 2 or len(left) != len(out):
        return None
    if len(right) != len(out):
        return None
    if out.index(rows[0]) > out.index(columns[0]):  # the second operand has the rows
        a, b, left, right, rows, columns = b, a, right, left, columns, rows
    made = [*batch, *rows, *columns]
    return Product(
        Operand(a, _order(left, [*batch, *rows, *inner])),
        Operand(b, _order(right, [*batch, *inner, *columns])),
        _order("".join(made), list(out)),
    )


def _order(term: str, wanted: list[str]) -> Order | None:
    order = tuple(term.index(x) for x in wanted)
    return None if order == tuple(range(len(order))) else order
