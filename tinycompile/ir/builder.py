"""Append nodes to a growing graph. Capture, passes and tests build graphs with it; under tracing it records fake tensors.

Nodes get provisional names when they are made; ``rename`` only notes a wish, and ``finish`` gives every node its final name in
one sweep. So capture can name a node after the user's variable when the assignment comes, which is after the node.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.expr import Expr, as_sym, symbols
from tinycompile.base.meta import TensorMeta
from tinycompile.eager.fake import FakeTensor
from tinycompile.ir.graph import Graph, Location, Node, Ref
from tinycompile.ops.record import Metas, Op

# Names that the printed graph uses for itself.
RESERVED = frozenset({"ops", "torch", "graph", "device", "inf", "nan", "min", "max"})


class GraphBuilder:
    """A graph in the making. ``location`` is given to each node that is made next."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.location: Location | None = None
        self._hints: dict[str, str] = {}
        self._serial = 0

    # --- making nodes ---

    def placeholder(self, name: str, meta: TensorMeta | None, target: str = "") -> Any:
        """An input: a FakeTensor, or a Ref when ``target`` is ``"size"`` or ``"float"``. A size's name must be its symbol's."""
        ref = self._append(name, "placeholder", target, meta=meta)
        return ref if meta is None else FakeTensor(meta, self, ref)

    def record(self, op: Op, args: tuple[Any, ...], metas: Metas) -> Ref | tuple[Ref, ...]:
        """A call of an op record. Returns one ref, or one per result."""
        return self._append_results(op.name, "call", op.name, args, {}, metas)

    def extern(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any], metas: Metas) -> Any:
        """A call of a torch function by dotted path. Returns FakeTensors shaped as ``metas`` (one, or a tuple)."""
        refs = self._append_results(path.rpartition(".")[2], "extern", path, tuple(args), kwargs, metas)
        if isinstance(refs, Ref):
            assert isinstance(metas, TensorMeta)
            return FakeTensor(metas, self, refs)
        assert isinstance(metas, tuple)
        return tuple(FakeTensor(m, self, r) for m, r in zip(metas, refs, strict=True))

    def _append_results(
        self, hint: str, kind: str, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], metas: Metas
    ) -> Ref | tuple[Ref, ...]:
        plain = tuple(as_arg(a) for a in args)
        named = tuple((k, as_arg(v)) for k, v in kwargs.items())
        ref = self._append(hint, kind, target, plain, named, metas)
        if isinstance(metas, TensorMeta):
            return ref
        return tuple(self._append(f"{hint}_{i}", "item", "", (ref, i), meta=m) for i, m in enumerate(metas))

    def _append(
        self,
        hint: str,
        kind: str,
        target: str,
        args: tuple[Any, ...] = (),
        kwargs: tuple[tuple[str, Any], ...] = (),
        meta: Any = None,
    ) -> Ref:
        name = f"%{self._serial}"  # no identifier: can't be mistaken for a final name
        self._serial += 1
        self.nodes[name] = Node(name, kind, target, args, kwargs, meta, self.location)
        self._hints[name] = hint
        return Ref(name)

    # --- names ---

    def rename(self, ref: Ref, hint: str) -> None:
        """Wish for a name, for example the user's variable; the last wish before ``finish`` wins."""
        self._hints[ref.name] = hint

    def wish(self, ref: Ref) -> str:
        """The name wished for so far."""
        return self._hints[ref.name]

    # --- the end ---

    def finish(self, name: str, outputs: Iterable[Any], hints: Mapping[str, int] | None = None) -> Graph:
        """The graph as built, dead code kept. ``outputs``: FakeTensors, Refs or numbers; ``hints``: sizes seen, by symbol."""
        results = tuple(as_arg(o) for o in outputs)
        placeholders = [n for n in self.nodes.values() if n.kind == "placeholder"]
        rest = [n for n in self.nodes.values() if n.kind != "placeholder"]
        names = self.final_names = self._final_names([*placeholders, *rest], reserved=_symbol_names(self.nodes.values()))
        nodes = [_renamed(n, names) for n in (*placeholders, *rest)]
        output = Node("output", "output", "", (_rename_arg(results, names),))
        return Graph(name, (*nodes, output), tuple((hints or {}).items()))

    def _final_names(self, nodes: Sequence[Node], reserved: set[str]) -> dict[str, str]:
        unique = UniqueNames({"output"} | RESERVED | reserved)
        names: dict[str, str] = {}
        for node in nodes:
            if node.kind == "placeholder" and node.target:  # a size's symbol is the name itself
                names[node.name] = unique.take_exactly(self._hints[node.name])
        for node in nodes:
            if node.name not in names:
                names[node.name] = unique.take(self._hints[node.name])
        return names


class UniqueNames:
    """Hands out identifiers: ``h``, ``h_1``, ``h_2`` ..."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def take(self, hint: str) -> str:
        """A free identifier close to ``hint``."""
        base = identifier(hint)
        name = base
        while name in self._taken or keyword.iskeyword(name):
            self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{self._next[base]}"
        self._taken.add(name)
        return name

    def take_exactly(self, name: str) -> str:
        """``name`` itself, taken from here on."""
        self._taken.add(name)
        return name


_NOT_WORD = re.compile(r"\W+")


def identifier(text: str) -> str:
    """The closest valid identifier: ``self.layers["0"].weight`` becomes ``self_layers_0_weight``."""
    name = _NOT_WORD.sub("_", text).strip("_")
    if not name:
        return "v"
    if name[0].isdigit():
        return f"v_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


# --- arguments ----------------------------------------------------------------------------------------------

_CONVERT: dict[type, Callable[[Any], Any]] = {torch.device: Device.of}


def as_arg(value: Any) -> Any:
    """A call's argument as the IR holds it: fakes become Refs, lists and ``torch.Size`` tuples, torch's devices ours."""
    kind = type(value)
    if kind is FakeTensor:
        return value.ref
    if isinstance(value, (list, tuple)):
        return tuple(as_arg(v) for v in value)
    convert = _CONVERT.get(kind)
    if convert is not None:
        return convert(value)
    if isinstance(value, slice):
        raise TypeError("a slice is no argument of a graph node: rewrite it into slice or select ops first")
    return value


def map_refs(value: Any, fn: Callable[[Ref], Any]) -> Any:
    """``value`` with every Ref in it, also inside tuples, replaced by ``fn(ref)``."""
    if isinstance(value, Ref):
        return fn(value)
    if isinstance(value, tuple):
        return tuple(map_refs(v, fn) for v in value)
    return value


def with_refs(node: Node, renamed: Mapping[str, Ref]) -> Node:
    """The node with some of its inputs replaced; the node itself when none is."""
    if not renamed:
        return node
    args = map_refs(node.args, lambda r: renamed.get(r.name, r))
    kwargs = tuple((k, map_refs(v, lambda r: renamed.get(r.name, r))) for k, v in node.kwargs)
    if args == node.args and kwargs == node.kwargs:
        return node
    return replace(node, args=args, kwargs=kwargs)


def refs_in(value: Any) -> Iterable[Ref]:
    """Every Ref in an argument, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from refs_in(v)


def inputs_of(node: Node) -> tuple[Ref, ...]:
    """Every Ref that a node reads, in order, with repeats."""
    return (*refs_in(node.args), *(r for _, v in node.kwargs for r in refs_in(v)))


def _rename_arg(value: Any, names: Mapping[str, str]) -> Any:
    return map_refs(value, lambda ref: Ref(names[ref.name]))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    kwargs = tuple((k, _rename_arg(v, names)) for k, v in node.kwargs)
    return replace(node, name=names[node.name], args=_rename_arg(node.args, names), kwargs=kwargs)


def dims_in(value: Any) -> Iterable[Expr]:
    """Every symbolic dim in an argument or a meta."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from dims_in(v)
    elif isinstance(value, TensorMeta):
        yield from dims_in((*value.shape, *value.strides, value.offset))


def _symbol_names(nodes: Iterable[Node]) -> set[str]:
    return {s.name for n in nodes for d in dims_in((n.args, n.kwargs, n.meta)) for s in symbols(d)}


def size_sources(graph: Graph) -> dict[str, tuple[str, int | None]]:
    """Where each size symbol is read at run time: symbol -> (placeholder, dim), dim None for a numeric input."""
    found: dict[str, tuple[str, int | None]] = {}
    for node in graph.placeholders:
        if node.target == "size":
            found[node.name] = node.name, None
        for at, dim in enumerate(node.meta.shape if node.meta is not None else ()):
            symbol = as_sym(dim)
            if symbol is not None:
                found.setdefault(symbol.name, (node.name, at))
    return found
