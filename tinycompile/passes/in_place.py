"""Writes into a part of an input happen where they are: nothing else of it is read or written.

A program that writes into a part of an input, say the keys and values of one token into a cache, arrives as an update of the
whole and, at the end, a copy of that into the input:

    new = slice_scatter(cache, k, 1, at, at + 1)
    ...
    copy_(cache, new)

Where nothing else sees the input's old content, only the part is written, and what read ``new`` then reads ``cache``:

    part = slice(cache, 1, at, at + 1)
    copy_(part, k)

A call that fails afterwards can still be redone: what it writes depends on nothing that it has overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinycompile.base import shapes
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import ShapeEnv, current_env
from tinycompile.ir.builder import UniqueNames, inputs_of
from tinycompile.ir.effects import COPY, may_alias, written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS
from tinycompile.passes.dce import drop_dead
from tinycompile.passes.rewrite import with_refs

_SCATTERS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "slice_scatter": ("slice", (0, None, None, 1)),
    "select_scatter": ("select", ()),
}  # by name: the view of the part, and defaults of its arguments
_INDEX_PUTS = {"index_put": "torch.ops.aten.index_put_", "index_copy": "torch.Tensor.index_copy_"}


@dataclass(frozen=True)
class _Write:
    """``update`` makes the new whole. ``views`` lead from the input to the part that ``source`` goes to, outermost first;
    empty for updates by index tensors. ``inner``: nodes that made parts of the update, and are gone with it."""

    update: Node
    views: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    source: Ref | None = None
    inner: tuple[str, ...] = ()


def write_in_place(graph: Graph) -> Graph:
    """Turn updates of parts of inputs into writes of these parts, where the old content is not needed."""
    if not any(n.target == COPY for n in graph.nodes) or any(written(n) and n.target != COPY for n in graph.nodes):
        return graph
    graph = drop_dead(graph)
    found = _Finder(graph)
    env = current_env() or ShapeEnv(dict(graph.hints))
    with env.active():
        chosen = {copy.args[0].name: (copy, writes) for copy in graph.nodes if (writes := found.writes(copy))}
        return _rewritten(graph, chosen) if chosen else graph


class _Finder:
    """Looks for updates of inputs whose old content nobody else sees."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {n.name: n for n in graph.nodes}
        self.users: dict[str, list[str]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys(r.name for r in inputs_of(node)):
                self.users.setdefault(name, []).append(node.name)

    def writes(self, copy: Node) -> list[_Write]:
        """The updates, in order, whose result ``copy`` brings into an input; empty where they must stay."""
        if copy.kind != "extern" or copy.target != COPY or not all(isinstance(a, Ref) for a in copy.args[:2]):
            return []
        target, whole = (self.nodes[a.name] for a in copy.args[:2])
        if target.kind != "placeholder" or not isinstance(target.meta, TensorMeta) or self._escapes(whole.name):
            return []
        seen, after, found = {copy.name}, copy.name, list[_Write]()
        while whole is not target:
            users = set(self.users[whole.name]) - {copy.name}
            write = self._write(whole)
            if write is None or whole.meta != target.meta or (found and users != {after}):
                return []
            found.append(write)
            seen |= {whole.name, *write.inner}
            after, whole = whole.name, self.nodes[whole.args[0].name]
        return found[::-1] if found and set(self.users[target.name]) <= seen else []

    def _write(self, update: Node) -> _Write | None:
        name = update.target.rpartition(".")[2]
        if update.kind not in ("call", "extern") or update.kwargs or not update.args or not isinstance(update.args[0], Ref):
            return None
        if name in _INDEX_PUTS:
            return _Write(update) if name != "index_put" or update.args[3:] == (False,) else None
        if name not in _SCATTERS:
            return None
        return self._nested(update, self.nodes[update.args[0].name].meta)

    def _nested(self, update: Node, base: TensorMeta) -> _Write | None:
        """A scatter, whose source may itself be a scatter into a view of the same part."""
        view, source = _view_of(update), update.args[1]
        part = _part(base, view)
        inner = self._inner_scatter(update, part)
        if inner is not None:
            deeper = self._nested(inner, part)
            gone = (inner.name, inner.args[0].name)
            return deeper and _Write(update, (view, *deeper.views), deeper.source, (*gone, *deeper.inner))
        meta = self.nodes[source.name].meta
        same = isinstance(meta, TensorMeta) and (meta.dtype, meta.device, meta.rank) == (part.dtype, part.device, part.rank)
        return _Write(update, (view,), source) if same and all(map(shapes.same, meta.shape, part.shape)) else None

    def _inner_scatter(self, update: Node, part: TensorMeta) -> Node | None:
        inner = self.nodes[update.args[1].name]
        if inner.target.rpartition(".")[2] not in _SCATTERS or self.users[inner.name] != [update.name]:
            return None
        view = self.nodes[inner.args[0].name]
        fits = view.target in ("slice", "select") and view.args[0] == update.args[0] and view.meta == part
        return inner if fits and self.users[view.name] == [inner.name] else None

    def _escapes(self, name: str) -> bool:
        """Whether an output may share memory with a node."""
        for user in map(self.nodes.__getitem__, self.users[name]):
            if user.kind == "output" or (user.target != COPY and may_alias(user) and self._escapes_later(user)):
                return True
        return False

    def _escapes_later(self, node: Node) -> bool:
        return node.name in self.users and self._escapes(node.name)


def _view_of(scatter: Node) -> tuple[str, tuple[Any, ...]]:
    """The op that views the part which a scatter replaces, and its arguments after the tensor."""
    view, defaults = _SCATTERS[scatter.target.rpartition(".")[2]]
    given = scatter.args[2:]
    return view, (*given, *defaults[len(given) :])


def _part(base: TensorMeta, view: tuple[str, tuple[Any, ...]]) -> TensorMeta:
    meta = OPS[view[0]].meta(base, *view[1])
    assert isinstance(meta, TensorMeta)
    return meta


def _rewritten(graph: Graph, chosen: Mapping[str, tuple[Node, list[_Write]]]) -> Graph:
    names = UniqueNames([n.name for n in graph.nodes])
    gone = {copy.name for copy, _ in chosen.values()} | {n for _, writes in chosen.values() for w in writes for n in w.inner}
    updates = {w.update.name: (target, w) for target, (_, writes) in chosen.items() for w in writes}
    renamed = {name: Ref(target) for name, (target, _) in updates.items()}
    metas = {n.name: n.meta for n in graph.placeholders}
    kept: list[Node] = []
    for node in graph.nodes:
        if node.name in updates:
            target, write = updates[node.name]
            kept.extend(with_refs(n, renamed) for n in _written(node, Ref(target), metas[target], write, names))
        elif node.name not in gone:
            kept.append(with_refs(node, renamed))
    return drop_dead(replace(graph, nodes=tuple(kept)))


def _written(node: Node, target: Ref, meta: TensorMeta, write: _Write, names: UniqueNames) -> Iterator[Node]:
    """The nodes that write the part."""
    if write.source is None:
        name = node.target.rpartition(".")[2]
        last = 3 if name == "index_put" else len(node.args)
        yield replace(node, kind="extern", target=_INDEX_PUTS[name], args=(target, *node.args[1:last]))
        return
    for op, args in write.views:
        meta = _part(meta, (op, args))
        view = Node(names.take(f"{node.name}_part"), "call", op, (target, *args), (), meta, node.loc)
        yield view
        target = Ref(view.name)
    yield replace(node, kind="extern", target=COPY, args=(target, write.source), meta=meta)
