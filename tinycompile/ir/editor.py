"""``GraphEditor``: insert, erase and replace nodes of a graph. Graphs are frozen, so the edit makes a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinycompile.base.expr import symbols
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv
from tinycompile.eager.fake import fake_extern_meta
from tinycompile.ir.builder import RESERVED, UniqueNames, as_arg, dims_in, inputs_of, map_refs, refs_in
from tinycompile.ir.effects import is_pure
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.interpreter import HasGraph, graph_of, torch_function
from tinycompile.ir.transformer import Transformer
from tinycompile.ops.calls import meta_of
from tinycompile.ops.record import OPS

Value = Node | Ref | str  # a node, by itself or by name


class GraphEditor:
    """A list of nodes that can be changed, and turned into a :class:`Graph` again by :meth:`finish`.

    Nodes are frozen too and are known by name: a change of one puts another of the same name in its place. Where an op takes
    a tensor, give its node or :class:`Ref`; where a method takes a node, its name does too."""

    def __init__(self, graph: Graph | HasGraph) -> None:
        self._graph = graph_of(graph)
        self._nodes: dict[str, Node] = {n.name: n for n in self._graph.nodes}
        sizes = {s.name for n in self._graph.nodes for d in dims_in((n.args, n.kwargs, n.meta)) for s in symbols(d)}
        self._names = UniqueNames([*self._nodes, *RESERVED, *sizes])

    # --- looking ---

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in order, as they are now: placeholders first, the output last."""
        return tuple(self._nodes.values())

    @property
    def output(self) -> Node:
        """The output node."""
        return next(reversed(self._nodes.values()))

    def node(self, of: Value) -> Node:
        """The node as it is now. Raises KeyError for a name that there is not."""
        name = of if isinstance(of, str) else of.name
        if name not in self._nodes:
            raise KeyError(f"there is no node {name!r}")
        return self._nodes[name]

    def find(self, target: str) -> list[Node]:
        """Nodes that call an op (``"relu"``) or a torch function (``"torch.fft.rfft"``), in order."""
        return [n for n in self._nodes.values() if n.target == target and n.kind in ("call", "extern")]

    def users(self, of: Value) -> list[Node]:
        """Nodes that read a value, in order."""
        name = self.node(of).name
        return [n for n in self._nodes.values() if any(r.name == name for r in inputs_of(n))]

    # --- inserting ---

    def placeholder(self, name: str, like: Any) -> Node:
        """A new input, the last. ``like``: a tensor, or a TensorMeta."""
        node = Node(self._names.take(name), "placeholder", "", meta=meta_of(like))
        at = sum(n.kind == "placeholder" for n in self._nodes.values())
        self._insert([node], at)
        return node

    def call(
        self, target: str, *args: Any, before: Value | None = None, after: Value | None = None, name: str = "", **kwargs: Any
    ) -> Any:
        """A new call of an op, with arguments as its schema has them. It stands before or after a node; without either, at the
        end. Returns the node; for an op of several results, the nodes of these.

        Raises KeyError for an op that there is not, and whatever the op's shape rule raises for these arguments."""
        op = OPS.get(target)
        if op is None:
            raise KeyError(f"there is no op {target!r}")
        bound = tuple(
            as_arg(_refs(a)) for a in op.schema.bind([_refs(a) for a in args], {k: _refs(v) for k, v in kwargs.items()})
        )
        with ShapeEnv(dict(self._graph.hints)).active():
            metas = op.meta(*map_refs(bound, self._meta))
        return self._add(Node(self._names.take(name or target), "call", target, bound, meta=metas), before, after)

    def extern(
        self, path: str, *args: Any, before: Value | None = None, after: Value | None = None, name: str = "", **kwargs: Any
    ) -> Any:
        """The same for a function of torch's by its dotted path; its metadata is worked out on torch's meta tensors."""
        given = tuple(as_arg(_refs(a)) for a in args)
        named = tuple((k, as_arg(_refs(v))) for k, v in kwargs.items())
        with ShapeEnv(dict(self._graph.hints)).active():
            known = {k: map_refs(v, self._meta) for k, v in named}
            metas = fake_extern_meta(torch_function(path), map_refs(given, self._meta), known)
        node = Node(self._names.take(name or path.rpartition(".")[2]), "extern", path, given, named, metas)
        return self._add(node, before, after)

    def _add(self, node: Node, before: Value | None, after: Value | None) -> Any:
        names = list(self._nodes)
        beside = before if before is not None else after
        node = replace(node, loc=None if beside is None else self.node(beside).loc)
        if before is not None and after is not None:
            raise ValueError("before= or after=, not both")
        at = len(names) - 1
        if before is not None:
            at = names.index(self.node(before).name)
        elif after is not None:
            at = names.index(self.node(after).name) + 1
            while self._nodes[names[at]].kind in ("placeholder", "item"):  # inputs come first, and results right behind a call
                at += 1
        if isinstance(node.meta, TensorMeta):
            self._insert([node], at)
            return node
        items = tuple(
            Node(self._names.take(f"{node.name}_{i}"), "item", "", (Ref(node.name), i), meta=m) for i, m in enumerate(node.meta)
        )
        self._insert([node, *items], at)
        return items

    def _insert(self, new: Sequence[Node], at: int) -> None:
        nodes = list(self._nodes.values())
        nodes[at:at] = new
        self._nodes = {n.name: n for n in nodes}

    def _meta(self, ref: Ref) -> Any:
        meta = self.node(ref).meta
        return ref if meta is None else meta

    # --- replacing and erasing ---

    def replace(self, of: Value, by: Any) -> None:
        """Whatever reads ``of`` reads ``by`` from here on: a node, or a number. ``by`` itself and what it is computed from
        go on reading ``of``, so a value can be wrapped in a new call."""
        name, new = self.node(of).name, _refs(by)
        spared = self._behind(new)
        for node in self.nodes:
            if node.name not in spared:
                self._nodes[node.name] = _with(node, name, new)

    def _behind(self, value: Any) -> set[str]:
        """The nodes that a value is computed from, with its own."""
        found = {r.name for r in refs_in(value)}
        for node in reversed(self.nodes):
            if node.name in found:
                found |= {r.name for r in inputs_of(node)}
        return found

    def set_args(self, of: Value, *args: Any, **kwargs: Any) -> Node:
        """Other arguments for a call. Returns the node as it is then."""
        node = self.node(of)
        if node.kind == "call":
            bound = OPS[node.target].schema.bind([_refs(a) for a in args], {k: _refs(v) for k, v in kwargs.items()})
            node = replace(node, args=tuple(map(as_arg, bound)))
        else:
            node = replace(
                node,
                args=tuple(as_arg(_refs(a)) for a in args),
                kwargs=tuple((k, as_arg(_refs(v))) for k, v in kwargs.items()),
            )
        self._nodes[node.name] = node
        return node

    def set_output(self, *values: Any) -> None:
        """What the graph returns."""
        output = self.output
        self._nodes[output.name] = replace(output, args=(tuple(as_arg(_refs(v)) for v in values),))

    def erase(self, of: Value) -> None:
        """Remove a node, and the items of a call of several results. Raises ValueError while something else reads it."""
        node = self.node(of)
        readers = self.users(node)
        items = [n for n in readers if n.kind == "item"]
        others = [n for n in readers if n.kind != "item"] + [u for n in items for u in self.users(n)]
        if node.kind == "output":
            raise ValueError("a graph has an output: set_output changes it")
        if others:
            raise ValueError(f"{node.name!r} is read by {', '.join(n.name for n in others)}: replace it first")
        for gone in (node, *items):
            del self._nodes[gone.name]

    def erase_dead(self) -> int:
        """Remove every call without effects whose results nobody reads. Returns how many there were."""
        count = 0
        for node in reversed(self.nodes):
            if node.kind in ("call", "extern") and is_pure(node):
                items = [n for n in self.users(node) if n.kind == "item"]
                if not any(self.users(n) for n in items) and len(items) == len(self.users(node)):
                    self.erase(node)
                    count += 1
        return count

    # --- the end ---

    def finish(self) -> Graph:
        """The graph as edited. Every shape rule runs again, and the result is verified.

        Raises VerifyError where a rule is broken, and whatever an op raises for its new inputs."""
        return Transformer(Graph(self._graph.name, self.nodes, self._graph.hints)).transform()


def _refs(value: Any) -> Any:
    if isinstance(value, Node):
        return Ref(value.name)
    if isinstance(value, (list, tuple)):
        return tuple(map(_refs, value))
    return value


def _with(node: Node, name: str, new: Any) -> Node:
    def swapped(value: Any) -> Any:
        return map_refs(value, lambda r: new if r.name == name else r)

    args, kwargs = swapped(node.args), tuple((k, swapped(v)) for k, v in node.kwargs)
    return node if (args, kwargs) == (node.args, node.kwargs) else replace(node, args=args, kwargs=kwargs)
