"""``with_exposed``: a backward that stays right when inputs of its forward are written through other tensors.

An input may share memory, or only torch's count of versions, with what is written by the graph or behind it. Which input that
is differs from call to call, so all of them are *exposed*. What torch keeps of them itself the backward reads where it is, so
that torch notices an edit, or doesn't, as in eager; and what it computes of them it computes by then (``reading_exposed``).
Everything else it has from copies; as in ``copies.py`` the partitioner decides whether such a copy is saved, or something that
is computed from it. A formula reads copies, too, where torch keeps what its forward computed of an input (``as_it_was``).

This comes before the passes: to them a copy is another value, so that nothing of the one is merged with the same of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from tinycompile.aot.copies import meta_again
from tinycompile.aot.joint import Joint
from tinycompile.aot.opaque import FORWARD
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import env_with
from tinycompile.ir.builder import UniqueNames, inputs_of, map_refs, refs_in, with_refs
from tinycompile.ir.effects import may_alias, written
from tinycompile.ir.graph import Node, Ref
from tinycompile.ops.record import OPS


def with_exposed(joint: Joint, exposed: AbstractSet[int], kept: AbstractSet[int]) -> Joint:
    """The joint graph, in which the forward reads copies of what lies in the memory of ``exposed`` primals, and so does the
    backward but of those that are ``kept`` by torch."""
    if not exposed:
        return joint
    names = {joint.graph.placeholders[i].name: i in kept for i in exposed}
    with env_with(joint.graph.hints).active():
        return _Exposed(joint, names).rewritten()


def reading_exposed(joint: Joint) -> frozenset[str]:
    """The calls that compute from exposed memory itself: they are the backward's."""
    shown, found = set(joint.exposed), set[str]()
    for node in joint.graph.nodes[:-1] if shown else ():
        if node.kind == "call" and node.name not in joint.copies and any(r.name in shown for r in inputs_of(node)):
            (shown if may_alias(node) else found).add(node.name)
    return frozenset(found)


def copied_for_gradients(joint: Joint) -> frozenset[int]:
    """The primals of which copies are read for the gradients."""
    needed = {r.name for r in refs_in(joint.graph.output.args[0][joint.outputs :])}
    for node in reversed(joint.graph.nodes[:-1]):
        if node.name in needed:
            needed.update(r.name for r in inputs_of(node))
    copied = {of for copy, of in joint.copies.items() if copy in needed}
    return frozenset(i for i, p in enumerate(joint.graph.placeholders[: joint.primals]) if p.name in copied)


class _Exposed:
    """``shown``: values that may lie in exposed memory, each with whether the backward reads it there; ``twins``: for these,
    the values that it had when the forward ran."""

    def __init__(self, joint: Joint, shown: Mapping[str, bool]) -> None:
        self.joint, self.shown, self.exposed = joint, dict(shown), frozenset(shown)
        self.old = {n.name: n for n in joint.graph.nodes}
        self.metas = {n.name: n.meta for n in joint.graph.nodes}
        self.names = UniqueNames([n.name for n in joint.graph.nodes])
        self.nodes: list[Node] = []
        self.twins: dict[str, Ref] = {}
        self.past: dict[str, Ref] = {}
        self.copies: dict[str, str] = {}

    def rewritten(self) -> Joint:
        graph = self.joint.graph
        for node in graph.nodes[:-1]:
            if node.name in self.joint.past:
                self.past[node.name] = self._then(node.args[0].name)
            elif node.kind == "placeholder" or written(node):
                self.nodes.append(node)
            else:
                self.nodes.append(self._reading(with_refs(node, self.past), node.name not in self.joint.early))
        results = graph.output.args[0]
        gradients = map_refs(results[self.joint.outputs :], lambda r: self._before(r.name) if self._is_past(r, True) else r)
        output = replace(graph.output, args=((*results[: self.joint.outputs], *gradients),))
        passing = self.joint.passing | {name for name, in_place in self.shown.items() if not in_place}
        copies = {**self.joint.copies, **self.copies}
        changed = replace(graph, nodes=(*self.nodes, output))
        return replace(self.joint, graph=changed, passing=passing, copies=copies, exposed=self.exposed)

    def _is_past(self, ref: Ref, backward: bool) -> bool:
        """Whether a reader takes the value from before any write."""
        return ref.name in self.shown and not (backward and self.shown[ref.name])

    def _reading(self, node: Node, backward: bool) -> Node:
        """The node as it is to read; one of the forward that is in exposed memory itself, or may be, stays there."""
        read = {r.name for r in inputs_of(node) if r.name in self.shown}
        stays = may_alias(node)
        if read and (backward or not stays) and not (node.kind == "item" and self._is_unknown(node)):
            node = with_refs(node, {name: self._before(name) for name in read if self._is_past(Ref(name), backward)})
            read = {name for name in read if not self._is_past(Ref(name), backward)}
        if read and stays and not self._is_token(node):
            self.shown[node.name] = not self._is_unknown(node) and all(self.shown[name] for name in read)
        return node

    def _is_unknown(self, node: Node) -> bool:
        """Whether it is the result of a function of which it is not known whether it is a view."""
        return (self.old[node.args[0].name] if node.kind == "item" else node).kind == "extern"

    def _is_token(self, node: Node) -> bool:
        """Whether it is what the forward half of an opaque pair hands to the backward half."""
        of = self.old[node.args[0].name] if node.kind == "item" else node
        return node.kind == "item" and of.target == FORWARD and node.args[1] == len(of.meta) - 1

    def _then(self, name: str) -> Ref:
        """What the backward computes of inputs, computed of what they were."""
        node = self.old[name]
        if name in self.shown:
            return self._before(name)
        if name in self.twins or name in self.joint.early or not inputs_of(node):
            return self.twins.get(name, Ref(name))
        past = {r.name: self._then(r.name) for r in inputs_of(node)}
        twin = with_refs(node, past)
        self.twins[name] = Ref(name) if twin is node else Ref(self._add(twin, f"{name}_then").name)
        return self.twins[name]

    def _before(self, name: str) -> Ref:
        """The value from before any write: a view of a copy, or a copy."""
        if name in self.twins:
            return self.twins[name]
        node = self.old[name]
        if node.kind == "placeholder" or (self._is_unknown(node) and isinstance(node.meta, TensorMeta)):
            twin = self._copied(node)
        else:
            read = {r.name: self._before(r.name) for r in inputs_of(node) if r.name in self.shown}
            twin = with_refs(node, read)
            twin = self._add(replace(twin, meta=meta_again(twin, self.metas)), f"{name}_before")
        self.twins[name] = Ref(twin.name)
        return self.twins[name]

    def _copied(self, node: Node) -> Node:
        """A copy with the same strides; what lies several times in one place by a stride of 0 is copied once."""
        of, shape, strides = node.name, node.meta.shape, node.meta.strides
        once = [d for d, (n, s) in enumerate(zip(shape, strides, strict=True)) if s == 0 and n not in (0, 1)]
        for d in once:
            node = self._call("narrow", (Ref(node.name), d, 0, 1), f"{node.name}_once")
        lone = replace(node.meta, strides=tuple(1 if d in once else s for d, s in enumerate(strides)))
        made = self._call("restride", (Ref(node.name), lone.strides), f"{node.name}_before")
        self.copies[made.name] = of
        return self._call("expand", (Ref(made.name), shape, False), f"{made.name}_again") if once else made

    def _call(self, target: str, args: tuple[Any, ...], wish: str) -> Node:
        meta = OPS[target].meta(*map_refs(args, lambda r: self.metas[r.name]))
        return self._add(Node(wish, "call", target, args, meta=meta), wish)

    def _add(self, node: Node, wish: str) -> Node:
        made = replace(node, name=self.names.take(wish))
        self.nodes.append(made)
        self.metas[made.name] = made.meta
        return made
