"""What torch saves for a backward, and what edits outside of a compiled function do to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.aot.opaque import Spec, instances, target_function
from tinycompile.base import shapes, torch_private
from tinycompile.base.device import Device
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.eager.saved import FREED
from tinycompile.eager.torch_names import name_of_call, name_of_record, node_name
from tinycompile.eager.torch_words import edited, function_name
from tinycompile.ir.builder import inputs_of, map_refs, refs_in
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.requires_grad import has_gradient, live_nodes, needs_of, saves
from tinycompile.ops.gradients import stated
from tinycompile.ops.record import OPS, View

Items = Mapping[str, Mapping[str, int]]  # by name of a node with several results: their names, with which each is
Place = tuple[str, int]  # ("input", i) or ("output", i) of a graph


@dataclass(frozen=True)
class Kept:
    """An input or output that torch keeps for the gradients of outputs (``behind``): a later edit of it is torch's error.
    ``savers``: the ops that keep it, the last first. ``maker()``: the node that made an output, and which of its results that
    is."""

    place: Place
    behind: frozenset[int]
    savers: tuple[Saver, ...] = ()
    maker: Callable[[], tuple[str, int] | None] = lambda: None

    def needed_by(self, outputs: AbstractSet[int], inputs: AbstractSet[int]) -> Saver | None:
        """The first saver that a backward comes to, from these outputs on the way to these inputs."""
        return next((s for s in self.savers if s.behind & outputs and s.before() & inputs), None)


@dataclass(frozen=True)
class Saver:
    """An op that keeps a value. ``behind``: the outputs that lead there; ``before()``: the inputs to which it leads; ``own()``,
    where the value is its own result: the name of its node, and which of the results it is."""

    behind: frozenset[int]
    before: Callable[[], frozenset[int]]
    own: Callable[[], tuple[str, int]] | None


Saving = Callable[[Node, Mapping[str, Any], Items, Mapping[str, bool]], AbstractSet[str]]


def kept_by_torch(
    graph: Graph, wanted: Sequence[bool], same: Sequence[frozenset[str]] = (), *, ask: bool = True
) -> tuple[Kept, ...]:
    """The inputs and outputs that torch would save. ``wanted``: which placeholders require grad. ``same``: values that lie in
    one tensor's memory in turn, one of them an output. ``ask`` False: those that it may save, without asking it: asking takes
    meta tensors, and the first of these has torch import a second's worth of modules."""
    with env_with(graph.hints).active():  # a backward asks when no capture is going on
        return _kept(graph, wanted, same, _saved if ask else _near)


def _kept(graph: Graph, wanted: Sequence[bool], same: Sequence[frozenset[str]], saving: Saving) -> tuple[Kept, ...]:
    live = live_nodes(graph, wanted)
    metas, items, roots = {n.name: n.meta for n in graph.nodes}, items_of(graph), _roots(graph)
    places: dict[str, list[Place]] = {p.name: [("input", i)] for i, p in enumerate(graph.placeholders)}
    for i, r in enumerate(graph.output.args[0]):
        if isinstance(r, Ref):
            for name in {r.name}.union(*(group for group in same if r.name in group)):
                places.setdefault(roots[name], []).append(("output", i))
    found: dict[Place, list[Saver]] = {}
    for node in graph.nodes:
        if node.kind not in ("call", "extern") or not live[node.name]:
            continue
        near = {r.name for r in inputs_of(node)} | set(results_of(node, items))
        if not any(roots[n] in places for n in near):
            continue
        behind: frozenset[int] | None = None
        for name in saving(node, metas, items, live):
            for place in places.get(roots[name], ()):
                behind = outputs_behind(graph, node, live) if behind is None else behind
                at = results_of(node, items).get(name)
                own = None if at is None else functools.partial(_named, node, metas, at)
                found.setdefault(place, []).insert(0, Saver(behind, functools.partial(inputs_before, graph, node, live), own))
    made = []
    for place, savers in found.items():
        maker = functools.partial(_maker, graph, place, metas)
        made.append(Kept(place, frozenset[int]().union(*(s.behind for s in savers)), tuple(savers), maker))
    return tuple(k for k in made if k.behind)


def _named(node: Node, metas: Mapping[str, Any], at: int) -> tuple[str, int]:
    return function_name(name_of_node(node, metas)), at


def _maker(graph: Graph, place: Place, metas: Mapping[str, Any]) -> tuple[str, int] | None:
    """What torch calls the node of an output, and which of its results that is."""
    if place[0] != "output":
        return None
    nodes = {n.name: n for n in graph.nodes}
    node, at = nodes[graph.output.args[0][place[1]].name], 0
    if node.kind == "item":
        node, at = nodes[node.args[0].name], node.args[1]
    return _named(node, metas, at) if node.kind in ("call", "extern") else None


def check_watched(
    ctx: Any,
    watched: Sequence[Kept],
    kept: Callable[[], Sequence[Kept]],
    spent: bool,
    asked: AbstractSet[int],
    reached: Callable[[], AbstractSet[int]],
) -> None:
    """Raise torch's error if one of the tensors that ``ctx.watch`` knows was edited, and the gradients of the outputs that are
    ``asked`` for need it on the way to the inputs that are ``reached()``. ``kept()``: what torch keeps. ``spent``: an earlier
    backward has freed what was saved, and these may follow it all the same."""
    found = list(ctx.watch.edited(at for at, w in enumerate(watched) if w.behind & asked))
    if not found:
        return
    if not spent:
        torch_private.some_saved(ctx, (), ())  # freed?
    known = {k.place: k for k in kept()}
    for at, seen in found:
        keeps = known.get(watched[at].place)
        saver = None if keeps is None else keeps.needed_by(asked, reached())
        if keeps is not None and saver is not None:
            of = seen.dtype, seen.device.type
            made_it = _made_it(seen.tensor, keeps) if saver.own is None else saver.own()
            raise RuntimeError(edited(of, seen.shape, seen.now, seen.version, made_it))


def freed_behind(graph: Graph, wanted: Sequence[bool]) -> tuple[frozenset[str], ...]:
    """For each output, the nodes that its backward passes and for which torch keeps values: such a backward frees them.
    ``wanted``: as above."""
    live, metas = live_nodes(graph, wanted), {n.name: n.meta for n in graph.nodes}
    behind: dict[str, frozenset[str]] = {}
    none = frozenset[str]()
    with env_with(graph.hints).active():
        for node in (n for n in graph.nodes[:-1] if live[n.name]):
            own = frozenset({node.name}) if _frees(node, metas, live) else none
            behind[node.name] = own.union(*(behind.get(r.name, none) for r in inputs_of(node)))
    return tuple(behind.get(o.name, none) if isinstance(o, Ref) else none for o in graph.output.args[0])


def inputs_behind_saved(graph: Graph, wanted: Sequence[bool], outputs: AbstractSet[int]) -> frozenset[int]:
    """The inputs on whose values anything depends that torch would save for the gradients of some outputs: those whose edit can
    change such a gradient."""
    live = live_nodes(graph, wanted)
    metas, items = {n.name: n.meta for n in graph.nodes}, items_of(graph)
    nodes = {n.name: n for n in graph.nodes}
    passed = _behind(nodes, (r.name for i, r in enumerate(graph.output.args[0]) if i in outputs and isinstance(r, Ref)))
    calls = [n for n in graph.nodes if n.kind in ("call", "extern") and n.name in passed and live[n.name]]
    with env_with(graph.hints).active():
        seen = _behind(nodes, [s for n in calls for s in _saved(n, metas, items, live)])
    return frozenset(i for i, p in enumerate(graph.placeholders) if p.name in seen)


def inputs_behind(graph: Graph, outputs: Iterable[int]) -> frozenset[int]:
    """The inputs on which some outputs depend."""
    results = graph.output.args[0]
    seen = _behind({n.name: n for n in graph.nodes}, [results[i].name for i in outputs if isinstance(results[i], Ref)])
    return frozenset(i for i, p in enumerate(graph.placeholders) if p.name in seen)


def _behind(nodes: Mapping[str, Node], start: Iterable[str]) -> AbstractSet[str]:
    """These nodes and all that they depend on."""
    seen = set(start)
    stack = list(seen)
    while stack:
        new = {r.name for r in inputs_of(nodes[stack.pop()])} - seen
        seen |= new
        stack += new
    return seen


def _roots(graph: Graph) -> dict[str, str]:
    """By name: the value of which it is a view, or itself."""
    roots: dict[str, str] = {}
    for node in graph.nodes[:-1]:
        of = node.args[0].name if node.args and isinstance(node.args[0], Ref) else ""
        viewed = of if is_view_call(node) else ""
        viewed = of if node.kind == "item" and roots[of] != of else viewed  # one of several views
        roots[node.name] = roots[viewed] if viewed else node.name
    return roots


def refuse_edited(found: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Raise torch's error for a tensor that was edited since the forward; with each: its version from then."""
    for t, version in found:
        maker = None if t.grad_fn is None else (function_name(t.grad_fn.name()), t.output_nr)
        raise RuntimeError(edited((t.dtype, t.device.type), t.shape, t._version, version, maker))


def _made_it(tensor: torch.Tensor | None, keeps: Kept) -> tuple[str, int] | None:
    """What made what is kept, as far as one knows, and which of the results it is."""
    node = None if tensor is None else tensor.grad_fn
    if tensor is None or node is None or hasattr(node, "watch"):  # a compiled function's
        return keeps.maker()
    return function_name(node.name()), tensor.output_nr


def require_unspent(behind: Sequence[frozenset[str]], ran: Iterable[int], asked: Iterable[int]) -> None:
    """Raise torch's error where the backward of some outputs has freed, in eager, what that of others needs. ``behind``: for
    each output, what its backward frees."""
    spent, needed = (frozenset[str]().union(*(behind[i] for i in some)) for some in (ran, asked))
    if spent & needed:
        raise RuntimeError(FREED)


# --- what depends on what ----------------------------------------------------------------------------------------------


def items_of(graph: Graph) -> dict[str, dict[str, int]]:
    """By name of a node with several results: the names of those that are taken out, with which each is."""
    found: dict[str, dict[str, int]] = {}
    for node in graph.nodes:
        if node.kind == "item":
            found.setdefault(node.args[0].name, {})[node.name] = node.args[1]
    return found


def results_of(node: Node, items: Items) -> Mapping[str, int]:
    """The names of a node's results, with which each is."""
    return {node.name: 0} if isinstance(node.meta, TensorMeta) else items.get(node.name, {})


def outputs_behind(graph: Graph, node: Node, live: Mapping[str, bool]) -> frozenset[int]:
    """Positions of the outputs whose gradients flow through a node."""
    behind = {node.name}
    for later in graph.nodes:
        if later.kind not in ("placeholder", "output") and live[later.name]:
            if any(r.name in behind for r in inputs_of(later)):
                behind.add(later.name)
    return frozenset(i for i, r in enumerate(graph.output.args[0]) if isinstance(r, Ref) and r.name in behind)


def inputs_before(graph: Graph, node: Node, live: Mapping[str, bool]) -> frozenset[int]:
    """Positions of the inputs to which the gradient of a node leads."""
    before = {node.name}
    for earlier in reversed(graph.nodes[:-1]):
        if earlier.name in before:
            before.update(r.name for r in inputs_of(earlier) if live[r.name])
    return frozenset(i for i, p in enumerate(graph.placeholders) if p.name in before)


# --- what torch saves --------------------------------------------------------------------------------------------------


# Linear in its tensors, and saves none of them.
_SAVES_NOTHING = frozenset({"add", "sub", "neg", "to", "clone", "restride", "sum", "mean", "cat", "stack"})


def _near(node: Node, metas: Mapping[str, Any], items: Items, live: Mapping[str, bool]) -> frozenset[str]:
    """Names of the inputs and results of a node that torch may keep."""
    if node.kind == "call" and (node.target in _SAVES_NOTHING or is_view_call(node)):
        return frozenset()
    return frozenset([*(r.name for r in inputs_of(node) if is_tensor(metas[r.name])), *results_of(node, items)])


def _saved(node: Node, metas: Mapping[str, Any], items: Items, live: Mapping[str, bool]) -> frozenset[str]:
    """Names of the inputs and results of a node that torch keeps for its backward."""
    return frozenset(n for n in saved_in_order(node, metas, items, live) if n is not None)


def saved_in_order(node: Node, metas: Mapping[str, Any], items: Items, live: Mapping[str, bool]) -> list[str | None]:
    """The same, one for each of its tensors, arguments first; None for those that are not kept."""
    found = _stated(node, metas, live)
    if found is None:
        args = _specs(node.args, metas, live)
        kwargs = tuple((k, _specs(v, metas, live)) for k, v in node.kwargs)
        try:
            found = _probe(node.kind, node.target, args, kwargs)
        except TypeError:  # an argument that can't be hashed
            pass
    names = [r.name for r in (*refs_in(node.args), *refs_in(tuple(v for _, v in node.kwargs))) if is_tensor(metas[r.name])]
    everything = [*enumerate(names), *((len(names) + i, n) for n, i in results_of(node, items).items())]
    return [n if found is None or i in found else None for i, n in everything]


def _stated(node: Node, metas: Mapping[str, Any], live: Mapping[str, bool]) -> frozenset[int] | None:
    """What the records tell, by position; None where they don't: torch is to be asked, which takes meta tensors. Of a program's
    own formula: what it has torch keep, and what it holds itself and reads. An edit of the latter would change the gradient: it
    is refused, too."""
    if node.kind != "call":
        return None
    op, vjp = OPS[node.target], OPS[node.target].vjp
    if vjp is not None and vjp.kept is not None:
        names: frozenset[str] | None = frozenset((*vjp.kept, *vjp.saves))
    else:
        needs = tuple(needs_of(a, live) for a in node.args)
        names = stated(op, map_refs(node.args, lambda r: metas[r.name]), needs)
    if names is None:
        return None
    tensors = [sum(is_tensor(metas[r.name]) for r in refs_in(a)) for a in node.args]
    owners = [a.name for a, count in zip(op.schema.args, tensors, strict=True) for _ in range(count)]
    several = len(op.schema.returns) > 1
    owners += [f"result{i}" if several else "result" for i in range(len(op.schema.returns))]
    return frozenset(i for i, name in enumerate(owners) if name in names or ("result" in names and name.startswith("result")))


def _frees(node: Node, metas: Mapping[str, Any], live: Mapping[str, bool]) -> bool:
    """Whether torch refuses a second backward of a node; of a call without a formula it is asked."""
    if not saves(node, live) or (node.kind == "call" and OPS[node.target].vjp is not None):
        return saves(node, live)
    try:
        return _refuses_again(
            node.kind, node.target, _specs(node.args, metas, live), tuple((k, _specs(v, metas, live)) for k, v in node.kwargs)
        )
    except TypeError:  # an argument that can't be hashed
        return True


@functools.lru_cache(maxsize=1024)
def _refuses_again(kind: str, target: str, args: Any, kwargs: Any) -> bool:
    """What torch does with meta tensors; True where they can't tell."""
    try:
        with torch.enable_grad():
            made = target_function(kind, target)(*instances(args), **{k: instances(v) for k, v in kwargs})
        results = [t for t in _tensors(made if isinstance(made, tuple) else (made,)) if t.requires_grad]
        for _ in range(2):
            torch.autograd.backward(results, [torch.ones_like(t) for t in results])
    except (NotImplementedError, RuntimeError):
        return True
    return False


def is_tensor(meta: Any) -> bool:
    """Whether it is that of one tensor."""
    return isinstance(meta, TensorMeta)


def name_of_node(node: Node, metas: Mapping[str, Any]) -> str:
    """What torch calls the node of a call."""
    args = map_refs(node.args, lambda r: metas[r.name])
    if node.kind == "call":
        return name_of_record(OPS[node.target], args)
    named = {k: map_refs(v, lambda r: metas[r.name]) for k, v in node.kwargs}
    found = name_of_call(target_function(node.kind, node.target), args, named)
    return node_name(node.target.rpartition(".")[2]) if found is None else found


def is_view_call(node: Node) -> bool:
    """Whether a record gives a view, or several."""
    return node.kind == "call" and (
        isinstance(OPS[node.target].lowering, View) or any(r.alias for r in OPS[node.target].schema.returns)
    )


def _specs(value: Any, metas: Mapping[str, Any], live: Mapping[str, bool]) -> Any:
    """Arguments with a Spec for each tensor, and each size's hint."""
    if isinstance(value, Ref):
        meta = metas[value.name]
        if not isinstance(meta, TensorMeta):
            return 2
        sizes, strides = (tuple(map(shapes.hint, dims)) for dims in (meta.shape, meta.strides))
        return Spec(sizes, strides, meta.dtype, live[value.name] and has_gradient(meta))
    if isinstance(value, tuple):
        return tuple(_specs(v, metas, live) for v in value)
    if isinstance(value, Device):
        return torch.device("meta")
    return shapes.hint(value) if isinstance(value, Expr) else value


@functools.lru_cache(maxsize=1024)
def _probe(kind: str, target: str, args: Any, kwargs: Any) -> frozenset[int] | None:
    """Which tensors among the arguments, then the results, are kept, by position; None where meta tensors can't tell."""
    given, named = instances(args), {k: instances(v) for k, v in kwargs}
    kept: list[int] = []

    def note(t: torch.Tensor) -> torch.Tensor:
        kept.append(_memory(t))
        return t

    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            made = target_function(kind, target)(*given, **named)
    except (NotImplementedError, RuntimeError, TypeError):
        return None
    tensors = [*_tensors(given), *_tensors(tuple(named.values())), *_tensors(made if isinstance(made, tuple) else (made,))]
    return frozenset(i for i, t in enumerate(tensors) if _memory(t) in kept)


def _memory(t: torch.Tensor) -> int:
    return torch_private.storage_id(t.untyped_storage())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []
