"""What torch keeps for an op that the tape follows through other ops: an edit of it is torch's error, whatever these read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinycompile.eager.saved import FREED, OpNode, Reads, SavedTensor, reads_for, torchs_name, unpacked
from tinycompile.eager.tape import Edge, Node, edges_of, set_history
from tinycompile.eager.tensor import Tensor
from tinycompile.ops.gradients import kept_for
from tinycompile.ops.record import Op

EdgeOf = Callable[[Any], "Edge | None"]


class Keeper(OpNode):
    """The last step of such an op: it hands the gradients on, once nothing was edited. One edge a result."""

    __slots__ = ()

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The gradients as they came."""
        if self.freed:
            raise RuntimeError(FREED)
        for kept in (*self.args, *self.results):
            unpacked(kept, self, False)  # raises
        if not keep:
            self.free()
        return grads


class ResultKeeper(Node):
    """The last step of a write whose result torch keeps, where the step before has kept what was there."""

    __slots__ = ("saved", "step")

    def __init__(self, edge: Edge, written: Tensor) -> None:
        super().__init__((edge,), (written.meta,))
        self.step = edge.node
        self.saved: SavedTensor | None = SavedTensor(written, 0)

    def name(self) -> str:
        """As torch calls the step before, which is one with this."""
        return torchs_name(self.step, written=True)

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        """The gradient as it came."""
        if self.saved is None:
            raise RuntimeError(FREED)
        self.saved.unpack(self, False)  # raises
        self.saved = self.saved if keep else None
        return grads


def behind_result(edge: Edge | None, written: Tensor) -> Edge | None:
    """The edge to a written tensor that must stay as it is."""
    return None if edge is None else Edge(ResultKeeper(edge, written), 0)


def keep(op: Op, args: Sequence[Any], result: Any, edge_of: EdgeOf) -> Any:
    """``result``, which parts of the op gave, behind a node that keeps what torch's does."""
    results = result if isinstance(result, tuple) else (result,)
    node = keeper(op, args, results, edge_of)
    if node is not None:
        node.close(results)
    return result


def keeper(op: Op, args: Sequence[Any], results: Sequence[Tensor], edge_of: EdgeOf) -> Keeper | None:
    """That node, where there is something to keep; the results are its own from now on."""
    reads = _reads(op, args, edge_of)
    if reads is None or any(r is a for r in results for a in args):
        return None
    edges = [edge_of(r) if r.dtype.is_floating_point else None for r in results]
    if not any(edges):
        return None
    node = Keeper(reads, args, edges)
    for i, edge in enumerate(edges):
        if edge is not None:
            set_history(results[i], node, i)
    return node


def _reads(op: Op, args: Sequence[Any], edge_of: EdgeOf) -> Reads | None:
    kept = kept_for(op, args)
    return None if kept is None else _reads_for(op, edges_of(args, edge_of)[0], kept.saves)


@functools.cache
def _reads_for(op: Op, needs: tuple[Any, ...], saves: tuple[str, ...]) -> Reads:
    return reads_for(op, needs, saves)
