"""``recompute``: in a whole step, less is held for the backward, and the rest is computed again there.

Forward and backward are one graph, so what is computed again must be kept from becoming the forward's own value once more:
equal calls are merged, and neighbours are fused. Both are stopped by a *fence* where the backward begins. It hands through the
values that are saved, and the backward reads them behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import torch

from tinycompile.aot.saving import Scene, by_size, cheapest, is_cheap, is_view, read_by_libraries
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import UniqueNames, inputs_of, refs_in, with_refs
from tinycompile.ir.effects import written
from tinycompile.ir.graph import Graph, Node, Ref

FENCE = "tinycompile.aot.recompute.fence"
TRIALS = 24  # choices that are compared


def fence(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same tensors."""
    return tensors


def recompute(
    graph: Graph,
    known: AbstractSet[str],
    backwards: Sequence[AbstractSet[str]],
    budget: float,
    again: AbstractSet[str] = frozenset(),
) -> Graph:
    """The graph whose backwards need at most ``budget`` (0 to 1) of the memory that they would by default, or as little as can
    be had. ``known``: the names of the nodes before passes changed some, and of these which belong to each backward. ``again``:
    values that are not kept for a backward in any case."""
    for number in range(len(backwards)):
        phases = _phases(graph, known, backwards)
        if number in phases.values():
            graph = _Backward(graph, phases, number, again).within(budget)
    return graph


def _phases(graph: Graph, known: AbstractSet[str], backwards: Sequence[AbstractSet[str]]) -> dict[str, int | None]:
    """Which backward each node belongs to. What a pass made stands before the node that it made it for."""
    of = {name: i for i, names in enumerate(backwards) for name in names}
    found: dict[str, int | None] = {}
    phase: int | None = None
    for node in reversed(graph.nodes[:-1]):
        phase = of.get(node.name) if node.name in known else phase
        found[node.name] = phase
    return found


class _Backward:
    """One backward of the graph, and what stands before it."""

    def __init__(self, graph: Graph, phases: Mapping[str, int | None], number: int, again: AbstractSet[str]) -> None:
        self.graph, self.again = graph, again
        self.names = {n.name for n in graph.nodes if phases.get(n.name, -1) == number}
        body = graph.nodes[:-1]
        self.start = next(i for i, n in enumerate(body) if n.name in self.names)
        self.own = [n for n in body if n.name in self.names]
        self.before = body[: self.start]
        self.others = [n for n in body[self.start :] if n.name not in self.names]  # what follows
        self.changed = {r.name for n in body for r in written(n)}
        self.scene = self._scene(phases)

    def _scene(self, phases: Mapping[str, int | None]) -> Scene:
        nodes = {n.name: n for n in (*self.before, *self.own)}
        results = {r.name for r in refs_in(self.graph.output.args[0])}
        later = {r.name for n in self.others for r in inputs_of(n)} | results
        shared = self._above({r.name for n in self.own for r in inputs_of(n)})
        early = self._above({r.name for n in self.before if n.name not in shared for r in inputs_of(n)} | later)
        return Scene(
            nodes=nodes,
            hints=dict(self.graph.hints),
            shared=shared,
            readers=self.names,
            ends=frozenset(),
            early=early | {n.name for n in self.before if n.name not in shared},
            held=later | {n.name for n in self.before if n.kind == "placeholder"},
            results=results,
            fixed={n.name for n in self.before if phases[n.name] is not None},
            again=self.again & shared,
        )

    def _above(self, roots: set[str]) -> set[str]:
        """What stands before the backward and is needed for some values, and these."""
        found = set[str]()
        for n in reversed(self.before):
            if n.name in roots:
                found.add(n.name)
                roots |= {r.name for r in inputs_of(n)}
        return found

    # --- the choice ---

    def within(self, budget: float) -> Graph:
        """The graph with the fewest values computed again that fits; where none fits, with the lowest peak."""
        if not {r.name for n in self.own for r in inputs_of(n)}.isdisjoint(n.name for n in self.others):
            return self.graph
        if budget >= 1:
            return self.rewritten(cheapest(self.scene))
        order = by_size(self.scene)
        allowed = self.peak(cheapest(self.scene)) * budget
        best, lowest = frozenset[str](), float("inf")
        for trial in range(1, TRIALS + 1):
            again = frozenset(order[: len(order) * trial // TRIALS])
            peak = self.peak(cheapest(self.scene, again))
            if peak < lowest:
                best, lowest = again, peak
            if peak <= allowed:
                break
        return self.rewritten(cheapest(self.scene, best))

    def peak(self, saved: Sequence[str]) -> int:
        """The most bytes that the backward holds at a time of what is saved and of what it computes again."""
        body, scene = self.body(set(saved)), self.scene
        last: dict[str, int] = {}
        for i in range(len(body) - 1, -1, -1):
            for ref in inputs_of(body[i]):
                last[ref.name] = max(last.get(ref.name, i), last.get(body[i].name, i) if is_view(body[i]) else i)
        again = {n.name for n in body if n.name in scene.shared}
        stored = read_by_libraries(scene, again | self.names)
        counted = {n for n in again if not is_view(scene.nodes[n]) and (n in stored or not is_cheap(scene.nodes[n]))}
        live = {n for n in saved if n not in scene.held}
        held = most = sum(map(scene.bytes_of, live))
        ends: dict[int, list[str]] = {}
        for name, at in last.items():
            ends.setdefault(at, []).append(name)
        for i, node in enumerate(body):
            if node.name in counted:
                live.add(node.name)
                held += scene.bytes_of(node.name)
                most = max(most, held)
            for name in ends.get(i, ()):
                if name in live:
                    live.discard(name)
                    held -= scene.bytes_of(name)
        return most

    def body(self, saved: set[str]) -> list[Node]:
        """The backward's nodes, with what is computed again just before its first use."""
        given = {n.name for n in self.before if n.name not in self.scene.shared or n.kind == "placeholder"}
        ready, body = saved | given, list[Node]()
        for node in self.own:
            stack = [node]
            while stack:
                at = stack[-1]
                missing = [r.name for r in inputs_of(at) if r.name not in ready]
                if missing:
                    stack += [self.scene.nodes[m] for m in reversed(missing)]
                    continue
                stack.pop()
                if at.name not in ready:
                    ready.add(at.name)
                    body.append(at)
        return body

    # --- the new graph ---

    def rewritten(self, saved: Sequence[str]) -> Graph:
        """The graph that computes the rest again; as it is where there is nothing to."""
        body, nodes = self.body(set(saved)), self.scene.nodes
        again = [n for n in body if n.name not in self.names]
        if not again:
            return self.graph
        names = UniqueNames([n.name for n in self.graph.nodes])
        read = {r.name for n in again for r in inputs_of(n)}
        through = [
            n
            for n in saved
            if isinstance(nodes[n].meta, TensorMeta)
            and (nodes[n].kind != "placeholder" or (n in read and n not in self.changed))
        ]
        behind: dict[str, Ref] = {n: Ref(names.take(n)) for n in through}
        inputs = {n for n in through if nodes[n].kind == "placeholder"}
        renamed = {n.name: Ref(names.take(f"{n.name}_again")) for n in again}
        new: list[Node] = self._fence(names, through, behind)
        for node in body:
            own = node.name in self.names
            seen = {**({n: r for n, r in behind.items() if n not in inputs} if own else behind), **renamed}
            moved = with_refs(node, seen)
            new.append(moved if own else replace(moved, name=renamed[node.name].name))
        return replace(self.graph, nodes=(*self.before, *new, *self.others, self.graph.output))

    def _fence(self, names: UniqueNames, through: Sequence[str], behind: Mapping[str, Ref]) -> list[Node]:
        if not through:
            return []
        metas = tuple(self.scene.nodes[n].meta for n in through)
        made = Node(names.take("saved"), "extern", FENCE, tuple(map(Ref, through)), (), metas, self.own[0].loc)
        items = [Node(behind[n].name, "item", "", (Ref(made.name), i), (), metas[i]) for i, n in enumerate(through)]
        return [made, *items]
