"""What an attention mask says, worked out from how it was made: which columns each row keeps.

A mask is followed back to ``arange``, ``full``, ``tril`` and ``triu`` through views, comparisons and arithmetic. A value is
known as a function of the row and the column: an integer expression, or two numbers, one on each side of a diagonal. What
reads an input is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Node, Ref
from tinycompile.ops.record import OPS, Pointwise, View

ROW, COLUMN = "@row", "@column"  # no size is called so
Coords = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """``below`` where column - row <= diagonal, else ``above``: tensors of one element. ``diagonal`` None: both are equal."""

    below: torch.Tensor
    above: torch.Tensor
    diagonal: Dim | None = None

    @property
    def number(self) -> Any:
        """The value where there is one for all points, else None."""
        return self.below.item() if self.diagonal is None else None


Known = Union[Sides, Expr, int]
_MIRRORED = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}


def sides_of(ref: Any, nodes: Mapping[str, Node], rows: Dim, columns: Dim) -> Sides | None:
    """What a mask of scores [..., rows, columns], or a number, holds; None where that can't be told or leading dims matter."""
    if not isinstance(ref, Ref):
        return _fill(ref, torch.float64) if isinstance(ref, (int, float)) else None
    meta = nodes[ref.name].meta
    if not isinstance(meta, TensorMeta):
        return None
    at = (ex.sym(ROW, 0, rows), ex.sym(COLUMN, 0, columns))
    lead = tuple(ex.sym(f"@lead{d}", 0, n) for d, n in enumerate(meta.shape[:-2]))
    found = _Reader(nodes).value(ref, _broadcast((*lead, *at)[-meta.rank :] if meta.rank else (), meta))
    return found if isinstance(found, Sides) else None


def _broadcast(coords: Coords, meta: TensorMeta) -> Coords:
    """Coordinates of a result as those of an operand, which has fewer dims or some of size 1."""
    own = coords[len(coords) - meta.rank :]
    return tuple(0 if isinstance(n, int) and n == 1 else c for c, n in zip(own, meta.shape, strict=True))


def _fill(number: Any, dtype: torch.dtype, rank: int = 0) -> Sides:
    one = torch.full((1,) * rank, number, dtype=dtype, device="cpu")
    return Sides(one, one)


class _Reader:
    """Evaluates nodes at symbolic coordinates."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes

    def value(self, ref: Ref, coords: Coords) -> Known | None:
        """The element of a node's result at ``coords``."""
        node = self.nodes[ref.name]
        if node.kind != "call" or not isinstance(node.meta, TensorMeta):
            return None
        made = getattr(self, f"_{node.target}", None)
        if made is not None:
            return made(node, coords)
        lowering = OPS[node.target].lowering
        if isinstance(lowering, View) and isinstance(node.args[0], Ref):
            source = self.nodes[node.args[0].name].meta
            if any(isinstance(a, Ref) for a in node.args[1:]):
                return None
            return self.value(node.args[0], lowering.index(coords, source, node.meta, *node.args[1:]))
        return self.pointwise(node, coords) if isinstance(lowering, Pointwise) else None

    # --- where values come from ---

    def _full(self, node: Node, coords: Coords) -> Known | None:
        number = node.args[1]
        return None if isinstance(number, (Ref, Expr)) else _fill(number, node.meta.dtype, node.meta.rank)

    def _full_like(self, node: Node, coords: Coords) -> Known | None:
        return self._full(node, coords)

    def _scalar_tensor(self, node: Node, coords: Coords) -> Known | None:
        number = node.args[0]
        return None if isinstance(number, (Ref, Expr)) else _fill(number, node.meta.dtype)

    def _arange(self, node: Node, coords: Coords) -> Known | None:
        start, _, step = node.args[:3]
        whole = node.meta.dtype in (torch.int32, torch.int64) and not any(isinstance(a, (Ref, float)) for a in (start, step))
        return start + coords[0] * step if whole else None

    def _tril(self, node: Node, coords: Coords) -> Known | None:
        return self.triangle(node, coords, lower=True)

    def _triu(self, node: Node, coords: Coords) -> Known | None:
        return self.triangle(node, coords, lower=False)

    def triangle(self, node: Node, coords: Coords, lower: bool) -> Known | None:
        kept, shift = self.value(node.args[0], coords), node.args[1]
        cut = _diagonal(coords[-1] - coords[-2] - shift) if isinstance(shift, (int, Expr)) else None
        if not isinstance(kept, Sides) or kept.diagonal is not None or cut is None:
            return None
        zero = torch.zeros_like(kept.below)
        return Sides(kept.below, zero, cut) if lower else Sides(zero, kept.below, cut - 1)

    # --- what is done with them ---

    def pointwise(self, node: Node, coords: Coords) -> Known | None:
        """The call on each side of the diagonal, run by torch on one element."""
        args: list[Any] = []
        for a in node.args:
            args.append(self.value(a, _broadcast(coords, self.nodes[a.name].meta)) if isinstance(a, Ref) else a)
            if args[-1] is None and isinstance(a, Ref):
                return None
        if any(isinstance(a, Expr) for a in args):
            return self.integer(node, args)
        cuts = {a.diagonal for a in args if isinstance(a, Sides)} - {None}
        if len(cuts) > 1:
            return None
        below = self.run(node, [a.below if isinstance(a, Sides) else a for a in args])
        above = self.run(node, [a.above if isinstance(a, Sides) else a for a in args]) if cuts else below
        return None if below is None or above is None else Sides(below, above, cuts.pop() if cuts else None)

    def run(self, node: Node, args: list[Any]) -> torch.Tensor | None:
        if not isinstance(args[0], torch.Tensor):  # torch's functions take a number second
            other = next((a for a in args if isinstance(a, torch.Tensor)), None)
            if other is None:
                return None
            args = [torch.full((), args[0], dtype=other.dtype, device="cpu"), *args[1:]]
        try:
            value = OPS[node.target].eager(*args)
        except (RuntimeError, TypeError, ZeroDivisionError):
            return None
        return value if value.dtype == node.meta.dtype and value.numel() == 1 else None

    def integer(self, node: Node, args: list[Any]) -> Known | None:
        """Arithmetic and comparisons of positions."""
        a, b = (_whole(x) for x in (args + [0])[:2])
        if a is None or b is None:
            return None
        if node.target == "to" and node.meta.dtype in (torch.int32, torch.int64):
            return a
        if node.target in ("add", "sub") and node.args[2:] in ((), (1,)):
            return a + b if node.target == "add" else a - b
        return _compare(node.target, a - b) if node.target in _MIRRORED else None


def _whole(value: Any) -> Dim | None:
    number = value.number if isinstance(value, Sides) else value
    return number if isinstance(number, (int, Expr)) and not isinstance(number, bool) else None


def _compare(op: str, d: Dim) -> Sides | None:
    """``d OP 0`` as two sides of a diagonal, or one value everywhere."""
    yes, no = torch.tensor(True, device="cpu"), torch.tensor(False, device="cpu")
    low, above = (d, 0) if op == "ge" else (d, 1) if op == "gt" else (0 - d, 0) if op == "le" else (0 - d, 1)
    if ex.at_least(low, above):
        return Sides(yes, yes)
    if ex.at_least(0 - low, 1 - above):
        return Sides(no, no)
    row, column = ex.coefficient(d, ROW), ex.coefficient(d, COLUMN)
    if (row, column) == (1, -1):
        d, op = 0 - d, _MIRRORED[op]
    cut = _diagonal(d)
    if cut is None:
        return None
    if op in ("le", "lt"):
        return Sides(yes, no, cut if op == "le" else cut - 1)
    return Sides(no, yes, cut if op == "gt" else cut - 1)


def _diagonal(d: Dim) -> Dim | None:
    """``c`` where ``d`` is column - row - c."""
    if ex.coefficient(d, ROW) != -1 or ex.coefficient(d, COLUMN) != 1:
        return None
    rest = 0 - ex.substitute(d, {ROW: 0, COLUMN: 0})
    return None if any(s.name.startswith("@lead") for s in ex.symbols(rest)) else rest
