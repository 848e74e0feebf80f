"""Programs that edit what torch has saved for a backward: their backward raises torch's error.

Captured code is functional, so an edited tensor is another value there and its gradient would come out as if nothing had been
edited. torch refuses that, and so do we: an op whose saved tensor the program itself writes to later makes each output that
depends on it refuse its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.aot.saved import (
    inputs_before,
    is_view_call,
    items_of,
    name_of_node,
    outputs_behind,
    results_of,
    saved_in_order,
)
from tinycompile.base import shapes, torch_private
from tinycompile.base.shapes import env_with
from tinycompile.eager.torch_names import (
    REGENERATED,
    THROUGH_A_VIEW,
    name_of_method,
    name_of_record,
)
from tinycompile.eager.torch_words import edited, function_name, refused_view
from tinycompile.ir.builder import inputs_of, map_refs, refs_in
from tinycompile.ir.effects import EditedValue
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.requires_grad import GRAD, live_nodes
from tinycompile.ops.record import OPS

Given = tuple[int, str | None, int]  # of an input: version, the node that made it, and which of its results it is
_MADE_HERE: Given = (0, None, 0)
_COPYING = ("to", "restride", "clone", "expand")  # what a copy is made of


class Words:
    """What torch says of one value that was saved and edited; worked out when it is to be said."""

    def __init__(self, graph: Graph, live: Mapping[str, bool], node: Node, name: str, own: bool, edit: EditedValue) -> None:
        """``name``: of the value that ``node`` saves; ``own``: its own result; ``live``: the values that require grad."""
        self.graph, self.live, self.node, self.name, self.own, self.edit = graph, live, node, name, own, edit
        self.nodes = {n.name: n for n in graph.nodes}
        owners = [i for i, p in enumerate(graph.placeholders) if p.name == edit.owner]
        self.input = owners[0] if owners else None  # the graph's, in whose memory it lies

    def said(self, given: Given = _MADE_HERE) -> str:
        """``given``: what the input was in whose memory the value lies."""
        with env_with(self.graph.hints).active():
            meta: Any = self.nodes[self.name].meta
            before, outside, number = given
            several = self._one_of_several()
            if several is not None and not self.own:
                return refused_view("several", several, now=False)
            made_by = self._made_by(outside, number)
            named = None if made_by is None else (function_name(made_by[0]), made_by[1])
            sizes = [shapes.hint(s) for s in meta.shape]
            return edited((meta.dtype, meta.device.type), sizes, before + self.edit.now, before + self.edit.version, named)

    def _made_by(self, outside: str | None, number: int) -> tuple[str, int] | None:
        """The node in torch's graph, and which of its results it is."""
        node = self.nodes[self.name]
        maker, index = (self.nodes[node.args[0].name], node.args[1]) if node.kind == "item" else (node, 0)
        if self.own:
            return self._name(maker), index
        followed = self.live[self.name]
        if self.edit.is_view:
            return (REGENERATED, index) if followed or self.edit.writers is not None else None
        if self.edit.writers is not None:
            return (THROUGH_A_VIEW if self.edit.through_view else self._writer()), index
        if maker.kind == "placeholder":
            return None if outside is None else (outside, number)
        return (self._name(maker), index) if followed else None

    def _viewed(self, name: str) -> str | None:
        """What a value views, in the graph."""
        node = self.nodes[name]
        made = self.nodes[node.args[0].name] if node.kind == "item" else node
        return made.args[0].name if is_view_call(made) else None

    def _one_of_several(self) -> tuple[str, int] | None:
        """Of a view that torch gave with others, or that views one: the name of its node, and which result it is."""
        at: str | None = self.name
        while at is not None:
            if self.nodes[at].kind == "item" and self._viewed(at) is not None:
                node = self.nodes[self.name]
                made = self.nodes[node.args[0].name] if node.kind == "item" else node
                return self._name(made), node.args[1] if node.kind == "item" else 0
            at = self._viewed(at)
        return None

    def _writer(self) -> str:
        """The name of the last write to the whole tensor. What has no op of its own is copied."""
        assert self.edit.writers is not None
        made = [n for n in self.graph.nodes if n.name in self.edit.writers and n.target not in _COPYING]
        if not made:
            return self._copied()
        node = made[-1]
        found = name_of_method(OPS[node.target], self._args(node)) if node.kind == "call" else None
        return self._name(node) if found is None else found

    def _name(self, node: Node) -> str:
        return name_of_node(node, {n.name: n.meta for n in self.graph.nodes})

    def _args(self, node: Node) -> tuple[Any, ...]:
        return map_refs(node.args, lambda r: self.nodes[r.name].meta)

    def _copied(self) -> str:
        meta = self.nodes[self.name].meta
        return name_of_record(OPS["copy"], (meta, meta), in_place=True)


@dataclass(frozen=True)
class Refusal:
    """Outputs and inputs, by position: the gradients of the ones in the others can't be had. And what torch says of it."""

    outputs: frozenset[int]
    inputs: frozenset[int]
    words: Words


def refusals(graph: Graph, wanted: Sequence[bool], edits: Sequence[EditedValue]) -> tuple[Refusal, ...]:
    """What the backward of a graph must refuse. ``wanted``: which placeholders require grad."""
    if not edits or not any(wanted):
        return ()
    live = live_nodes(graph, wanted)
    spoiled = reversed(_spoiled(graph, live, edits))  # a backward comes to the last of them first
    return tuple(Refusal(outputs_behind(graph, node, live), inputs_before(graph, node, live), words) for node, words in spoiled)


def changed_unseen(graph: Graph, wanted: Sequence[bool], edits: Sequence[EditedValue]) -> Node | None:
    """A node whose gradient needs what was edited by writes that no version tells of (``x.data.mul_(2)``): torch computes it of
    what lies in memory then. ``wanted``: as above."""
    unseen = [e for e in edits if e.now == e.version]
    if not unseen or not any(wanted):
        return None
    live = live_nodes(graph, wanted)
    return next((node for node, _ in _spoiled(graph, live, unseen) if outputs_behind(graph, node, live)), None)


def spoiled_backward(graph: Graph, wanted: Sequence[bool], edits: Sequence[EditedValue]) -> str:
    """torch's words for why a backward within the graph can't be had; empty if all can. ``wanted``: as above."""
    if not edits:
        return ""
    live = live_nodes(graph, wanted)
    backwards = (n for n in graph.nodes if n.target == GRAD)
    for count, backward in enumerate(backwards):
        before = [e for e in edits if e.backwards <= count]
        passed = _between(graph, backward, live) if before else frozenset()
        for node, words in reversed(_spoiled(graph, live, before)) if passed else ():
            if node.name in passed:
                return words.said()
    return ""


def _spoiled(graph: Graph, live: Mapping[str, bool], edits: Sequence[EditedValue]) -> list[tuple[Node, Words]]:
    """The nodes whose gradient needs what was edited, and torch's words."""
    with env_with(graph.hints).active():
        return list(_each_spoiled(graph, live, edits))


def _each_spoiled(graph: Graph, live: Mapping[str, bool], edits: Sequence[EditedValue]) -> Iterator[tuple[Node, Words]]:
    metas = {n.name: n.meta for n in graph.nodes}
    items = items_of(graph)
    edited = _everywhere(graph, edits)
    rerun = frozenset[str]().union(*(e.rest | e.by for e in edits if e.checkpoint))
    calls = [n for n in graph.nodes if n.name in rerun and live[n.name] and _is_call(n)]
    saving = {n.name: saved_in_order(n, metas, items, live) for n in calls}
    for node in graph.nodes:
        if not _is_call(node) or not live[node.name]:
            continue
        results = results_of(node, items)
        touched = [n for n in (*(r.name for r in inputs_of(node)), *results) if n in edited]
        if not touched:
            continue
        own = node.args[0].name if node.args and isinstance(node.args[0], Ref) else None
        kept = saved_in_order(node, metas, items, live)
        for name in dict.fromkeys(n for n in kept if n in touched):
            edit = edited[name]
            if node.name in edit.checkpoint and not _corrupts(edit, saving):
                continue
            copied = name == own and node.name in edit.by  # what writes in place saves a copy of what was there
            if not copied or name in kept[1:]:  # and other arguments as they are: ``x.mul_(x)``
                yield node, Words(graph, live, node, name, name in results, edit)


def _is_call(node: Node) -> bool:
    return node.kind in ("call", "extern")


def _corrupts(edit: EditedValue, saving: Mapping[str, Sequence[str | None]]) -> bool:
    """Whether a checkpointed call, when it runs again, comes to a write to what it saved: it ends with the last that it saves.
    What computes the data of a write saves its result after it."""
    late = [saving.get(n, ()) for n in edit.rest]
    return any(name is not None for names in late for name in names) or any(n in saving.get(n, ()) for n in edit.by)


def refuse(call: Callable[..., tuple[Any, ...]], refused: Sequence[Refusal]) -> Callable[..., tuple[Any, ...]]:
    """The graph's function, whose results' backward raises where it must."""

    behind = sorted(frozenset[int]().union(*(r.inputs for r in refused)))

    def run(*inputs: Any) -> tuple[Any, ...]:
        nodes = {i: _node_of(inputs[i]) for i in behind}
        before = [(_as_given(inputs, r.words.input), [nodes[i] for i in r.inputs]) for r in refused]
        results = call(*inputs)
        for refusal, (given, ahead) in zip(refused, before, strict=True):
            for at in refusal.outputs:
                node = results[at].grad_fn
                if node is not None:
                    node.register_prehook(functools.partial(_raise, results[at].output_nr, refusal.words, given, ahead))
        return results

    return run


def _as_given(inputs: Sequence[Any], at: int | None) -> Given:
    if at is None:
        return _MADE_HERE
    x = inputs[at]
    return x._version, None if x.grad_fn is None else x.grad_fn.name(), x.output_nr


def _node_of(x: torch.Tensor) -> Any:
    """Where the engine is when it has a tensor's gradient. None: a view made under ``no_grad``, whose gradient goes nowhere."""
    if x.grad_fn is not None:
        return x.grad_fn
    with torch.enable_grad():
        return x.view_as(x).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _raise(position: int, words: Words, given: Given, ahead: Sequence[Any], grads: Sequence[torch.Tensor | None]) -> None:
    """``ahead``: the nodes of the inputs to whose gradients what was edited leads."""
    if grads[position] is not None and any(node is None or torch_private.will_run(node) for node in ahead):
        raise RuntimeError(words.said(given))


def _everywhere(graph: Graph, edits: Sequence[EditedValue]) -> dict[str, EditedValue]:
    """The edited values and their views, by name."""
    edited = {e.content: e for e in edits}
    for node in graph.nodes:
        if node.name not in edited and (is_view_call(node) or node.kind == "item") and node.args[0].name in edited:
            edited[node.name] = edited[node.args[0].name]._replace(is_view=True)
    return edited


def _between(graph: Graph, backward: Node, live: Mapping[str, bool]) -> frozenset[str]:
    """The nodes that a backward within the graph passes: from its outputs down to the values whose gradients it asks for.
    What an earlier backward gave has no history."""
    outputs, leaves = ({r.name for r in refs_in(part)} for part in backward.args[:2])
    behind, above = set(leaves), set(outputs)
    for node in graph.nodes:
        if node.kind not in ("placeholder", "output") and live[node.name] and any(r.name in behind for r in inputs_of(node)):
            behind.add(node.name)
    for node in reversed(graph.nodes):
        if node.name in above and node.name not in leaves and node.kind != "placeholder" and node.target != GRAD:
            above.update(r.name for r in inputs_of(node))
    return frozenset(behind & above)
