"""``partition``: the joint graph -> a forward and a backward graph, with the fewest bytes saved in between (``saving.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from tinycompile.aot.exposed import reading_exposed
from tinycompile.aot.joint import Joint
from tinycompile.aot.saving import Scene, choose, to_compute_again
from tinycompile.aot.unsaved import computed_again
from tinycompile.base.errors import InternalError, VerifyError
from tinycompile.base.expr import symbols
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import dims_in, inputs_of, refs_in, size_sources
from tinycompile.ir.effects import is_pure, may_alias
from tinycompile.ir.graph import Graph, Node, Ref


@dataclass(frozen=True, slots=True)
class Split:
    """``forward`` takes the primals and returns the ``outputs`` results of the function, then what else is saved.

    ``saved``: where each saved tensor comes from, ``("input", i)`` or ``("result", i)`` of the forward; ``sizes`` likewise
    for numbers. ``backward`` takes the numbers, the saved tensors, then the tangents; it returns one gradient for each
    primal in ``gradients``. ``reached``: as in :class:`~tinycompile.aot.joint.Joint`. ``reread``:
    the inputs that a backward which is differentiated again reads, and ``random``: where among the forward's results its
    random numbers are."""

    forward: Graph
    backward: Graph
    outputs: int
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    sizes: tuple[tuple[str, int], ...]
    saved: tuple[tuple[str, int], ...]
    reached: tuple[frozenset[int], ...]
    reread: frozenset[int]
    random: tuple[int, ...]


def partition(
    joint: Joint,
    budget: float = 1.0,
    random: Sequence[Ref] = (),
    reread: frozenset[int] = frozenset(),
    known: AbstractSet[str] = frozenset(),
    marked: AbstractSet[str] = frozenset(),
) -> Split:
    """Split a joint graph. ``budget`` (0 to 1): how much of the memory that is saved by default may be saved; the less, the
    more is computed again, up to everything but random numbers. ``random`` and ``reread`` as
    :func:`~tinycompile.aot.second.gradient_graph` gives them. ``known`` and ``marked`` as
    :func:`~tinycompile.aot.saving.to_compute_again` takes them."""
    scene = _Scene(joint)
    again = to_compute_again(scene.nodes, known, marked)
    return _split(scene, choose(replace(scene.choice(), again=again), budget), random, reread)


class _Scene:
    """The joint graph's nodes by what they depend on and who needs them."""

    def __init__(self, joint: Joint) -> None:
        graph = self.graph = joint.graph
        self.joint = joint
        self.nodes = {n.name: n for n in graph.nodes}
        self.primals = graph.placeholders[: joint.primals]
        self.tangents = graph.placeholders[joint.primals :]
        results = graph.output.args[0]
        self.results, self.gradients = results[: joint.outputs], results[joint.outputs :]
        self.late = self._depends_on({n.name for n in self.tangents} | reading_exposed(joint))
        early = [n for n in graph.nodes[:-1] if n.name not in self.late]
        effects = [Ref(n.name) for n in early if n.kind != "placeholder" and not is_pure(n)]
        self.forward_needs = self.reaches((*refs_in(self.results), *effects))
        self.backward_needs = self.reaches(refs_in(self.gradients))
        self.shared = {n.name for n in early if n.name in self.backward_needs}  # computed before the tangents are known

    def _depends_on(self, roots: set[str]) -> set[str]:
        found = set(roots)
        for n in self.graph.nodes[:-1]:
            if any(r.name in found for r in inputs_of(n)):
                found.add(n.name)
        return found

    def reaches(self, roots: Iterable[Ref]) -> set[str]:
        """The nodes that some values are computed from, and they themselves."""
        found = {r.name for r in roots}
        for n in reversed(self.graph.nodes[:-1]):
            if n.name in found:
                found.update(r.name for r in inputs_of(n))
        return found

    def choice(self) -> Scene:
        """What there is to decide."""
        results = {r.name for r in refs_in(self.results)}
        return Scene(
            nodes={n.name: n for n in self.graph.nodes[:-1]},
            hints=dict(self.graph.hints),
            shared=self.shared,
            readers=self.late & self.backward_needs,
            ends={r.name for r in refs_in(self.gradients)},
            early=self.forward_needs - self.late,
            held=results | {p.name for p in self.primals},
            results=results,
            fixed=self.joint.copies.keys(),
            passing=self.joint.passing | computed_again(self.graph, self.joint.outputs, self.joint.unsaved),
        )


# --- the two graphs ---------------------------------------------------------------------------------------------------


def _split(scene: _Scene, saved: Sequence[str], random: Sequence[Ref], reread: frozenset[int]) -> Split:
    primals = [p.name for p in scene.primals]
    tensors = [n for n in saved if isinstance(scene.nodes[n].meta, TensorMeta)]
    tensors.sort(key=lambda n: n not in primals)  # inputs first
    body = _backward_body(scene, set(saved))
    numbers = _numbers(scene, [scene.nodes[n] for n in tensors], body)
    results: list[Any] = list(scene.results)

    def place(name: str, value: Any) -> tuple[str, int]:
        if name in primals:
            return "input", primals.index(name)
        if value not in results:
            results.append(value)
        return "result", results.index(value)

    sizes = tuple(place(n.name, value) for n, value in numbers)
    places = tuple(place(n, Ref(n)) for n in tensors)
    drawn = tuple(place(r.name, r)[1] for r in random)
    needed = scene.forward_needs | scene.reaches(Ref(n) for n in tensors)
    keep = [n for n in scene.graph.nodes[:-1] if n.name in needed and n.kind != "placeholder"]
    forward = _graph(scene, scene.primals, keep, tuple(results))
    inputs = [*(n for n, _ in numbers), *(_as_input(scene.nodes[n]) for n in tensors), *scene.tangents]
    backward = replace(
        _graph(scene, inputs, body, tuple(scene.gradients)), donated=_given_up(forward, len(scene.results), places, tensors)
    )
    split = Split(
        forward,
        replace(backward, name=f"{backward.name}_backward"),
        scene.joint.outputs,
        scene.joint.tangents,
        scene.joint.gradients,
        sizes,
        places,
        scene.joint.reached,
        reread,
        drawn,
    )
    verify_split(split)
    return split


def _given_up(forward: Graph, outputs: int, places: Sequence[tuple[str, int]], names: Sequence[str]) -> tuple[str, ...]:
    """The saved tensors that nobody but the backward sees: made by the forward, and no view of what else it returns."""
    results = forward.output.args[0]
    below = {r.name: _memory(forward, r.name) for r in results if isinstance(r, Ref)}
    seen = Counter(base for bases in (below[n] for n in dict.fromkeys(below)) for base in bases)
    return tuple(
        name
        for (kind, at), name in zip(places, names, strict=True)
        if kind == "result"
        and at >= outputs
        and all(seen[base] == 1 for base in below[name])
        and not any(n.kind == "placeholder" for n in forward.nodes if n.name in below[name])
    )


def _memory(graph: Graph, name: str) -> set[str]:
    """The nodes in whose memory a value may lie."""
    nodes = {n.name: n for n in graph.nodes}
    found, waiting = {name}, [name]
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind != "placeholder" and may_alias(node):
            more = {r.name for r in inputs_of(node)} - found
            found |= more
            waiting += more
    return found


def _as_input(node: Node) -> Node:
    return Node(node.name, "placeholder", "", meta=node.meta, loc=node.loc)


def _graph(scene: _Scene, inputs: Sequence[Node], body: Sequence[Node], results: tuple[Any, ...]) -> Graph:
    return Graph(scene.graph.name, (*inputs, *body, Node("output", "output", "", (results,))), scene.graph.hints)


def _backward_body(scene: _Scene, saved: set[str]) -> list[Node]:
    """The backward's nodes: in the joint graph's order, with what is computed again just before its first use."""
    ready = saved | {t.name for t in scene.tangents}
    body: list[Node] = []
    needed = scene.backward_needs & scene.late
    wanted = [
        *(n for n in scene.graph.nodes[:-1] if n.name in needed),
        *(scene.nodes[r.name] for r in refs_in(scene.gradients)),
    ]
    for node in wanted:
        stack = [node]
        while stack:
            at = stack[-1]
            missing = [] if at.name in ready else [r.name for r in inputs_of(at) if r.name not in ready]
            if missing:
                stack += [scene.nodes[m] for m in reversed(missing)]
                continue
            stack.pop()
            if at.name not in ready:
                if at.kind == "placeholder":
                    raise InternalError(f"the backward needs the input {at.name}, which is not saved")
                ready.add(at.name)
                body.append(at)
    return body


def _numbers(scene: _Scene, tensors: Sequence[Node], body: Sequence[Node]) -> list[tuple[Node, Any]]:
    """Numeric inputs of the backward, with their values in the forward: symbols that no tensor's dim tells, and saved
    numbers. (Of several tangents some may not come, and what leads to these is not read.)"""
    told = [*map(_as_input, tensors), *scene.tangents] if len(scene.tangents) < 2 else []
    known = size_sources(_graph(scene, told, (), ()))
    used: dict[str, Any] = {}
    for node in [*tensors, *scene.tangents, *body]:
        for dim in dims_in((node.args, node.kwargs, node.meta)):
            for symbol in symbols(dim):
                used.setdefault(symbol.name, dim)
    found: dict[str, tuple[Node, Any]] = {}
    sources = size_sources(scene.graph)
    for name in used:
        if name not in known:
            found[name] = Node(name, "placeholder", "size"), _symbol(scene, name, sources)
    for ref in dict.fromkeys(r.name for n in body for r in inputs_of(n)):
        node = scene.nodes[ref]
        if node.kind == "placeholder" and node.meta is None and ref not in found:
            found[ref] = node, Ref(ref)
    return list(found.values())


def _symbol(scene: _Scene, name: str, sources: Mapping[str, tuple[str, int | None]]) -> Any:
    placeholder, dim = sources[name]
    return Ref(placeholder) if dim is None else scene.nodes[placeholder].meta.shape[dim]


def verify_split(split: Split) -> None:
    """Raise VerifyError unless the forward gives what the backward takes."""
    results = split.forward.output.args[0]
    inputs = split.backward.placeholders
    if len(inputs) != len(split.sizes) + len(split.saved) + len(split.tangents):
        raise VerifyError(
            f"{split.backward.name} takes {len(inputs)} inputs, which are not its sizes, saved tensors and tangents"
        )
    if len(split.backward.output.args[0]) != len(split.gradients):
        raise VerifyError(f"{split.backward.name} returns another number of gradients than {len(split.gradients)}")
    nodes = {n.name: n for n in split.forward.nodes}
    for (kind, at), taken in zip((*split.sizes, *split.saved), inputs, strict=False):
        given = Ref(split.forward.placeholders[at].name) if kind == "input" else results[at]
        meta = nodes[given.name].meta if isinstance(given, Ref) else None
        if meta != taken.meta:
            raise VerifyError(f"{taken.name} is saved as {meta} and taken as {taken.meta}")
