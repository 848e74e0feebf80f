"""Rewriting nodes, which are frozen: what passes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tinycompile.base.errors import InternalError
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ir.builder import UniqueNames, as_arg, with_refs
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import Metas, Op


class Splicer:
    """A graph being copied, where some nodes are replaced by parts that are run on fake tensors. It is their recorder."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.metas: dict[str, Any] = {}
        self._names = UniqueNames([n.name for n in graph.nodes])
        self._part: list[Node] = []
        self._made_for: Node | None = None

    def run(self, change: Callable[[Node], bool]) -> Graph:
        """The copy. ``change`` sees each node in turn and says whether it has spliced a part in its place."""
        env = env_with(self.graph.hints)
        with env.active(), tracing(self):
            for node in self.graph.nodes:
                if not change(node):
                    self.nodes.append(node)
                    self.metas[node.name] = node.meta
        return replace(self.graph, nodes=tuple(self.nodes))

    def fake(self, ref: Ref) -> Any:
        """The value of a node as a part takes it: a fake tensor; a numeric input stays a ref."""
        meta = self.metas[ref.name]
        return FakeTensor(meta, self, ref) if isinstance(meta, TensorMeta) else ref

    def splice(self, node: Node, build: Callable[[], Any]) -> bool:
        """Put what ``build`` records in the node's place. False, and nothing is changed, where it declines (None) or gives
        other metadata."""
        self._part, self._made_for = [], node
        result = build()
        fresh = {n.name for n in self._part}
        if result is None or result.meta != node.meta or result.ref.name not in fresh:
            for name in fresh:
                del self.metas[name]
            return False
        renamed = {result.ref.name: Ref(node.name)}
        for made in self._part:
            new = with_refs(made, renamed)
            new = replace(new, name=node.name) if made.name in renamed else new
            self.nodes.append(new)
            self.metas[new.name] = new.meta
        return True

    def record(self, op: Op, args: tuple[Any, ...], metas: Metas) -> Any:
        """Called for each op of a part."""
        assert self._made_for is not None
        name = self._append(f"{self._made_for.name}_{op.name}", "call", op.name, tuple(as_arg(a) for a in args), metas)
        if not isinstance(metas, tuple):
            return Ref(name)
        return tuple(Ref(self._append(f"{name}_{i}", "item", "", (Ref(name), i), m)) for i, m in enumerate(metas))

    def extern(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        """Parts are made of records."""
        raise InternalError(f"{path} has no record: a part that a pass splices in is made of records")

    def _append(self, hint: str, kind: str, target: str, args: tuple[Any, ...], meta: Any) -> str:
        assert self._made_for is not None
        name = self._names.take(hint)
        self._part.append(Node(name, kind, target, args, (), meta, self._made_for.loc))
        self.metas[name] = meta
        return name
