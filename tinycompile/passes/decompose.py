"""Replace calls of composite records by their parts, until only records that lower directly are left.

A decomposition is run on fake tensors with this pass as the recorder, so composites inside it are expanded as they are
recorded. The parts take the composite's place in the user's source, and the last of them takes its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor, tracing
from tinycompile.ir.builder import UniqueNames, as_arg, map_refs, refs_in, with_refs
from tinycompile.ir.graph import Graph, Location, Node, Ref
from tinycompile.ops.ranges import out_of_range
from tinycompile.ops.record import OPS, Decompose, Metas, Op, View


def decompose(graph: Graph) -> Graph:
    """The graph with every Decompose record expanded; those that return NotImplemented stay calls."""
    if not any(n.kind == "call" and isinstance(OPS[n.target].lowering, Decompose) for n in graph.nodes):
        return graph
    expander = Expander(graph)
    for node in expander.copying(graph):
        expander.add(node)
    return expander.finish(graph)


def _has_parts(node: Node) -> bool:
    op = OPS[node.target]
    return isinstance(op.lowering, Decompose) and not out_of_range(op, node.args, node.meta)


class Expander:
    """The recorder. ``part`` holds what the node being expanded has come to so far; ``results`` maps nodes of the old graph to
    refs of the new one where the names differ."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.part: dict[str, Node] = {}
        self.metas: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._names = UniqueNames([n.name for n in graph.nodes])
        self._items = {(n.args[0].name, n.args[1]): n.name for n in graph.nodes if n.kind == "item"}
        self._shown = {r.name for r in refs_in(graph.output.args)}
        self._prefix = ""
        self._location: Location | None = None

    # --- the old graph's nodes ---

    def copying(self, graph: Graph) -> Iterator[Node]:
        """The nodes of a graph, one after the other, while what is run on fakes is recorded."""
        env = env_with(graph.hints)
        with env.active(), tracing(self):
            yield from graph.nodes

    def finish(self, graph: Graph) -> Graph:
        """``graph`` with what was made of its nodes."""
        return replace(graph, nodes=tuple(self.nodes))

    def add(self, node: Node) -> None:
        """Copy a node, or record its parts."""
        if node.kind == "item" and isinstance(results := self.results.get(node.args[0].name), tuple):
            self.results[node.name] = results[node.args[1]]
            return
        if self.results:
            node = with_refs(node, self.results)
        if node.kind != "call" or not _has_parts(node):
            self.nodes.append(node)
            self.metas[node.name] = node.meta
            return
        self.start_part(node)
        refs = self._expand(OPS[node.target], map_refs(node.args, self.fake), node.meta)
        self.end_part(node, self._owned(node, refs) if isinstance(refs, Ref) else refs)

    def _owned(self, node: Node, made: Ref) -> Ref:
        """What a node comes to; where that is a view, and the graph returns it as what an op made, the memory in a tensor that
        is none: torch gives that to who detaches."""
        last = self.part.get(made.name) if node.name in self._shown else None
        fresh = not any(r.alias for r in OPS[node.target].schema.returns)
        if last is None or not fresh or last.kind != "call" or not isinstance(OPS[last.target].lowering, View):
            return made
        owner: FakeTensor = dispatcher.call("detach", self.fake(made))
        return owner.ref

    def start_part(self, node: Node) -> None:
        """What is recorded from here on stands for ``node``."""
        self.part, self._prefix, self._location = {}, node.name, node.loc

    def end_part(self, node: Node, refs: Ref | tuple[Ref, ...] | None) -> None:
        """``refs`` are its results; None: it stays as it is."""
        if refs is None:
            self.nodes.append(node)
            self.metas[node.name] = node.meta
        else:
            self._finish_part(node, refs)

    def fake(self, ref: Ref) -> Any:
        """What a decomposition gets for a ref: a fake tensor; numeric inputs stay refs."""
        meta = self.metas[ref.name]
        return FakeTensor(meta, self, ref) if isinstance(meta, TensorMeta) else ref

    def _finish_part(self, node: Node, refs: Ref | tuple[Ref, ...]) -> None:
        """Move the part to the graph. Its results take the names by which the old graph knows them; a result that is older than
        the node (an argument handed through) keeps its own."""
        several = refs if isinstance(refs, tuple) else (refs,)
        wanted = [self._items.get((node.name, i)) for i in range(len(several))] if isinstance(refs, tuple) else [node.name]
        names: dict[str, Ref] = {}
        for ref, name in zip(several, wanted, strict=True):
            if name is not None and ref.name in self.part and ref.name not in names:
                names[ref.name] = Ref(name)
        for old in self.part.values():
            new = with_refs(old, names)
            if old.name in names:
                new = replace(new, name=names[old.name].name)
            self.nodes.append(new)
            self.metas[new.name] = new.meta
        renamed = tuple(names.get(r.name, r) for r in several)
        if isinstance(refs, tuple):
            self.results[node.name] = renamed
        elif renamed[0].name != node.name:
            self.results[node.name] = renamed[0]

    def _keep(self, node: Node) -> None:
        self.part[node.name] = node
        self.metas[node.name] = node.meta

    # --- the recorder's side ---

    def record(self, op: Op, args: tuple[Any, ...], metas: Metas) -> Any:
        """Called for each op of a decomposition."""
        if isinstance(op.lowering, Decompose):
            refs = self._expand(op, args, metas)
            if refs is not None:
                return refs
        return self._append(op.name, "call", op.name, args, {}, metas)

    def extern(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        """Called for a torch function without a record."""
        refs = self._append(path.rpartition(".")[2], "extern", path, args, kwargs, metas)
        if isinstance(refs, Ref):
            return FakeTensor(metas, self, refs)
        return tuple(FakeTensor(m, self, r) for m, r in zip(metas, refs, strict=True))

    def _append(self, hint: str, kind: str, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Any) -> Any:
        named = tuple((k, as_arg(v)) for k, v in kwargs.items())
        name = self._names.take(f"{self._prefix}_{hint}")
        self._keep(Node(name, kind, target, tuple(as_arg(a) for a in args), named, metas, self._location))
        if not isinstance(metas, tuple):
            return Ref(name)
        items = [self._names.take(f"{name}_{i}") for i in range(len(metas))]
        for i, item in enumerate(items):
            self._keep(Node(item, "item", "", (Ref(name), i), (), metas[i], self._location))
        return tuple(Ref(i) for i in items)

    def _expand(self, op: Op, args: tuple[Any, ...], metas: Metas) -> Ref | tuple[Ref, ...] | None:
        """Run the decomposition, which may decline."""
        assert isinstance(op.lowering, Decompose)
        return self.expand_with(op.lowering.fn, args, metas)

    def expand_with(self, fn: Callable[..., Any], args: tuple[Any, ...], metas: Metas) -> Ref | tuple[Ref, ...] | None:
        """Record what ``fn`` does. None, with nothing recorded, when it declines or gives other metadata than ``metas``."""
        before = len(self.part)
        result = fn(*args)
        if result is not NotImplemented:
            results = tuple(result) if isinstance(metas, tuple) else (result,)
            if tuple(r.meta for r in results) == (metas if isinstance(metas, tuple) else (metas,)):
                refs = tuple(r.ref for r in results)
                return refs if isinstance(metas, tuple) else refs[0]
        for name in list(self.part)[before:]:
            del self.part[name]
        return None
