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

Where something does see the old content, or an update adds to it, the parts are written at the end, where the copy of the
whole stood: its other readers read the whole as it is computed, and none of it is written twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinycompile.base import shapes
from tinycompile.base.expr import sym
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.ir.builder import UniqueNames, inputs_of, refs_in, with_refs
from tinycompile.ir.effects import COPY, may_alias, written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS, View
from tinycompile.passes.dce import drop_dead

_SCATTERS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "slice_scatter": ("slice", (0, None, None, 1)),
    "select_scatter": ("select", ()),
    "diagonal_scatter": ("diagonal", (0, 0, 1)),
}  # by name: the view of the part, and defaults of its arguments
_INDEX_PUTS = {
    "index_put": "torch.ops.aten.index_put_",
    **{name: f"torch.Tensor.{name}_" for name in ("index_copy", "index_add", "scatter", "scatter_add", "scatter_reduce")},
}  # updates by index tensors, by name: the call that writes
_BY_KEYWORD: Mapping[str, tuple[int, Any]] = {"index_add": (4, 1), "scatter_reduce": (5, True)}
# of these: the argument that the call takes by keyword only, and its default; with another value nothing is rewritten
_REPLACES = frozenset({"index_put", "index_copy"})  # of these: what only replaces (``index_put`` where it does not add)


@dataclass(frozen=True)
class _Write:
    """``update`` makes the new whole. ``views`` lead from the input to the part that ``source`` goes to, outermost first;
    empty for updates by index tensors. ``inner``: nodes that made parts of the update, and are gone with it. ``adds``: the
    old content counts."""

    update: Node
    views: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    source: Ref | None = None
    inner: tuple[str, ...] = ()
    adds: bool = False

    @property
    def given(self) -> tuple[Ref, ...]:
        """What is read when it writes, besides the input."""
        return tuple(refs_in(self.update.args[1:])) if self.source is None else (self.source,)


def write_in_place(graph: Graph) -> Graph:
    """Turn updates of parts of inputs into writes of these parts, where the old content is not needed."""
    if not any(n.target == COPY for n in graph.nodes) or any(written(n) and n.target != COPY for n in graph.nodes):
        return graph
    graph = drop_dead(graph)
    found = _Finder(graph)
    env = env_with(graph.hints)
    with env.active():
        chosen = {copy.args[0].name: (copy, writes) for copy in graph.nodes if (writes := found.writes(copy))}
        graph = _rewritten(graph, chosen) if chosen else graph
        found = _Finder(graph)
        late = {copy.name: parts for copy in graph.nodes if (parts := found.parts(copy))}
        return _in_parts(graph, late) if late else graph


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
            if write is None or write.adds or not _alike(whole, target) or (found and users != {after}):
                return []
            found.append(write)
            seen |= {whole.name, *write.inner}
            after, whole = whole.name, self.nodes[whole.args[0].name]
        return found[::-1] if found and set(self.users[target.name]) <= seen else []

    def parts(self, copy: Node) -> list[_Write]:
        """The updates, in order, that ``copy`` need only bring into the parts of an input that they change."""
        if copy.kind != "extern" or copy.target != COPY or not all(isinstance(a, Ref) for a in copy.args[:2]):
            return []
        target, whole = (self.nodes[a.name] for a in copy.args[:2])
        found = list[_Write]()
        while target.kind == "placeholder" and isinstance(target.meta, TensorMeta) and whole is not target:
            write = self._write(whole, late=True)
            given = () if write is None else write.given
            if write is None or not _alike(whole, target) or any(self._is_input(r.name) for r in given):
                return []
            found.append(write)
            whole = self.nodes[write.update.args[0].name]
        updates = {w.update.name for w in found}
        others = {user for name in (target.name, *updates) for user in self.users.get(name, ())} - {copy.name, *updates}
        return found[::-1] if len(found) == 1 or not others else []  # what was read before a write isn't written twice

    def _is_input(self, name: str) -> bool:
        """Whether a value lies in the memory of an input, which may be overwritten when it is read at the end."""
        node = self.nodes[name]
        while node.kind != "placeholder" and may_alias(node):
            if node.kind == "extern":
                return True
            node = self.nodes[node.args[0].name]
        return node.kind == "placeholder" and any(n.target == COPY and n.args[0] == Ref(node.name) for n in self.nodes.values())

    def _write(self, update: Node, late: bool = False) -> _Write | None:
        name = update.target.rpartition(".")[2]
        if update.kind not in ("call", "extern") or update.kwargs or not update.args or not isinstance(update.args[0], Ref):
            return None
        if name in _INDEX_PUTS:
            last, default = _BY_KEYWORD.get(name, (len(update.args), None))
            if update.args[last:] not in ((), (default,)):
                return None
            return _Write(update, adds=name not in _REPLACES or (name == "index_put" and update.args[3:] != (False,)))
        if late and update.kind == "call" and isinstance(OPS[name].lowering, View):
            return self._through_a_view(update)
        if name not in _SCATTERS:
            return None
        return self._nested(update, self.nodes[update.args[0].name].meta, late)

    def _through_a_view(self, back: Node) -> _Write | None:
        """An update of a view that shows all of the input in another order, brought back into the input's: by ``back``."""
        update = self.nodes[back.args[0].name]
        if update.target.rpartition(".")[2] not in _SCATTERS or update.kwargs or not isinstance(update.args[0], Ref):
            return None
        view = self.nodes[update.args[0].name]
        if (
            view.kind != "call"
            or not isinstance(OPS[view.target].lowering, View)
            or not _is_inverse(back, update, view, self.nodes)
        ):
            return None
        write = self._nested(update, view.meta, late=True)
        first = (view.target, view.args[1:])
        return write and replace(write, update=replace(back, args=view.args[:1]), views=(first, *write.views))

    def _nested(self, update: Node, base: TensorMeta, late: bool) -> _Write | None:
        """A scatter, whose source may itself be a scatter into a view of the same part."""
        view, source = _view_of(update), update.args[1]
        part = _part(base, view)
        inner = self._inner_scatter(update, part, late)
        if inner is not None:
            deeper = self._nested(inner, part, late)
            gone = (inner.name, inner.args[0].name)
            return deeper and _Write(update, (view, *deeper.views), deeper.source, (*gone, *deeper.inner))
        meta = self.nodes[source.name].meta
        same = isinstance(meta, TensorMeta) and (meta.dtype, meta.device, meta.rank) == (part.dtype, part.device, part.rank)
        return _Write(update, (view,), source) if same and all(map(shapes.same, meta.shape, part.shape)) else None

    def _inner_scatter(self, update: Node, part: TensorMeta, late: bool) -> Node | None:
        inner = self.nodes[update.args[1].name]
        if inner.target.rpartition(".")[2] not in _SCATTERS or self.users[inner.name] != [update.name]:
            return None
        view = self.nodes[inner.args[0].name]
        fits = view.target in ("slice", "select") and view.args[0] == update.args[0] and view.meta == part
        return inner if fits and (late or self.users[view.name] == [inner.name]) else None

    def _escapes(self, name: str) -> bool:
        """Whether an output may share memory with a node."""
        for user in map(self.nodes.__getitem__, self.users[name]):
            if user.kind == "output" or (user.target != COPY and may_alias(user) and self._escapes_later(user)):
                return True
        return False

    def _escapes_later(self, node: Node) -> bool:
        return node.name in self.users and self._escapes(node.name)


def _is_inverse(back: Node, update: Node, view: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether ``back`` undoes ``view``: each place of the input leads to itself."""
    of = nodes[view.args[0].name].meta
    if back.meta.shape != of.shape or any(refs_in((view.args[1:], back.args[1:]))):
        return False
    coords = tuple(sym(f"i{d}", 0, size) for d, size in enumerate(of.shape))
    ways = OPS[back.target].lowering, OPS[view.target].lowering
    assert isinstance(ways[0], View) and isinstance(ways[1], View)
    there = ways[0].index(coords, update.meta, back.meta, *back.args[1:])
    return ways[1].index(there, of, view.meta, *view.args[1:]) == coords


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


def _alike(whole: Node, target: Node) -> bool:
    """Whether an update keeps the input's layout; where it starts doesn't count."""
    a, b = whole.meta, target.meta
    return isinstance(a, TensorMeta) and (a.shape, a.strides, a.dtype, a.device) == (b.shape, b.strides, b.dtype, b.device)


def _in_parts(graph: Graph, late: Mapping[str, list[_Write]]) -> Graph:
    """Copies of these parts in place of copies of the whole."""
    names = UniqueNames([n.name for n in graph.nodes])
    metas = {n.name: n.meta for n in graph.placeholders}
    kept: list[Node] = []
    for node in graph.nodes:
        if node.name not in late:
            kept.append(node)
            continue
        target = node.args[0]
        for write in late[node.name]:
            kept.extend(_written(write.update, target, metas[target.name], write, names))
    wholes = {w.update.name for writes in late.values() for w in writes if w.update.kind == "extern"}
    return drop_dead(replace(graph, nodes=tuple(_without_unused(kept, wholes))))


def _without_unused(nodes: Sequence[Node], wholes: Collection[str]) -> list[Node]:
    """Without those of the library calls that nobody reads; they have no effect."""
    used: set[str] = set()
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name not in wholes or node.name in used:
            kept.append(node)
            used.update(r.name for r in inputs_of(node))
    return kept[::-1]


def _written(node: Node, target: Ref, meta: TensorMeta, write: _Write, names: UniqueNames) -> Iterator[Node]:
    """The nodes that write the part."""
    if write.source is None:
        name = node.target.rpartition(".")[2]
        args = (target, *node.args[1 : _BY_KEYWORD.get(name, (len(node.args), None))[0]])
        yield replace(node, name=names.take(node.name), kind="extern", target=_INDEX_PUTS[name], args=args)
        return
    for op, args in write.views:
        meta = _part(meta, (op, args))
        view = Node(names.take(f"{node.name}_part"), "call", op, (target, *args), (), meta, node.loc)
        yield view
        target = Ref(view.name)
    args = (target, write.source)
    yield replace(node, name=names.take(node.name), kind="extern", target=COPY, args=args, meta=meta)
