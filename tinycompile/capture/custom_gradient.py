"""A program's own gradient: a call of an ``autograd.Function`` as one op of the graph.

Its ``forward`` and its ``backward`` are both followed when the call is captured, with one shadow of ``ctx``; what they recorded
is cut out of the graph and becomes a record: the first is what the op means, the second its formula. Values of the forward that
the backward reads are results of the op."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.capture.breaks import GraphBreak
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch import schema as schemas
from tinycompile.ir.builder import dims_in, inputs_of, map_refs
from tinycompile.ir.effects import is_random, written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ops.calls import ops
from tinycompile.ops.record import CUSTOM, OPS, Decompose, Op, Vjp, register

if TYPE_CHECKING:
    from tinycompile.ir.builder import GraphBuilder


@dataclass(frozen=True)
class Recorded:
    """What a call recorded. ``forward``, ``backward``: nodes in order; ``given``: the tensors of the call; ``results``: what
    the forward returns; ``tangents``: stand-ins for the gradients that come in, one a result; ``gradients``: what the backward
    returns, one for each of ``given``; ``saved``: what the backward got by way of ``saved_tensors``."""

    name: str
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    given: tuple[Ref, ...]
    results: tuple[Ref, ...]
    tangents: tuple[Ref, ...]
    gradients: tuple[Ref | None, ...]
    saved: tuple[Ref, ...]


@dataclass(frozen=True)
class Made:
    """The op: its record's name, and the values that a call takes."""

    op: str
    args: tuple[Ref, ...]


def make_op(recorded: Recorded, metas: dict[str, Any]) -> Made:
    """The record of a call. ``metas``: of every node of the graph."""
    inner = {n.name for n in recorded.forward}
    behind = inner | {n.name for n in recorded.backward} | {t.name for t in recorded.tangents}
    read = [r for n in (*recorded.forward, *recorded.backward) for r in inputs_of(n)]
    read += [*(g for g in recorded.gradients if g is not None), *recorded.saved]
    outside = [Ref(n) for n in dict.fromkeys((*(r.name for r in recorded.given), *(r.name for r in read))) if n not in behind]
    late = [r for n in recorded.backward for r in inputs_of(n)] + [g for g in recorded.gradients if g is not None]
    late += recorded.saved
    kept = [Ref(n) for n in dict.fromkeys(r.name for r in late) if n in inner and Ref(n) not in recorded.results]
    for ref in (*outside, *kept):
        if not isinstance(metas[ref.name], TensorMeta):
            raise GraphBreak("unsupported-value", f"{recorded.name} uses a size that changes")
    results = (*recorded.results, *kept)
    forward = _graph("forward", outside, recorded.forward, results, metas)
    taken = [*outside, *results, *recorded.tangents]
    backward = _graph("backward", taken, recorded.backward, [g for g in recorded.gradients if g is not None], metas)
    places = frozenset(i for i, r in enumerate((*outside, *results)) if r in recorded.saved)
    text = print_graph(forward) + print_graph(backward) + repr(([g is None for g in recorded.gradients], sorted(places)))
    digest = hashlib.sha256(text.encode()).hexdigest()
    name = f"{recorded.name.lower()}_{digest[:12]}"
    if name not in OPS:
        wanted = [i for i, g in enumerate(recorded.gradients) if g is not None]
        formula = Formula(backward, len(outside), len(results), tuple(recorded.given), tuple(outside), tuple(wanted), places)
        _register(name, recorded.name, forward, formula, tuple(metas[r.name] for r in results))
        CUSTOM[name] = digest
    return Made(name, tuple(outside))


def _graph(name: str, given: Sequence[Ref], nodes: Sequence[Node], results: Sequence[Ref], metas: dict[str, Any]) -> Graph:
    """A graph of its own, with names that depend on nothing around it."""
    names = {ref.name: f"x{i}" for i, ref in enumerate(given)}
    names |= {n.name: f"v{i}" for i, n in enumerate(n for n in nodes if n.name not in names)}
    body = [
        replace(
            n,
            name=names[n.name],
            args=map_refs(n.args, lambda r: Ref(names[r.name])),
            kwargs=tuple((k, map_refs(v, lambda r: Ref(names[r.name]))) for k, v in n.kwargs),
            loc=None,
        )
        for n in nodes
    ]
    placeholders = [Node(names[r.name], "placeholder", "", meta=metas[r.name]) for r in given]
    return Graph(name, (*placeholders, *body, Node("output", "output", "", (tuple(Ref(names[r.name]) for r in results),))))


def check(name: str, nodes: Sequence[Node]) -> None:
    """Break for what can't be an op: writes, random numbers, sizes that change."""
    for node in nodes:
        if written(node) or is_random(node):
            raise GraphBreak("unsupported-op", f"{name}: {node.target} within a function with a gradient of its own")
        if any(True for _ in dims_in((node.args, node.kwargs, node.meta))):
            raise GraphBreak("unsupported-value", f"{name}: sizes that change within a function with a gradient of its own")


def _read(backward: Graph) -> frozenset[int]:
    """What the backward reads, by position."""
    used = {r.name for n in backward.nodes for r in inputs_of(n)}
    return frozenset(i for i, p in enumerate(backward.placeholders) if p.name in used)


def _register(name: str, function: str, forward: Graph, formula: Formula, metas: tuple[TensorMeta, ...]) -> None:
    several = len(metas) > 1
    args = ", ".join(f"Tensor a{i}" for i in range(len(forward.placeholders)))
    returned = f"({', '.join('Tensor' for _ in metas)})" if several else "Tensor"
    parsed = schemas.parse(f"{name}({args}) -> {returned}")
    body = Body(forward, several, formula, function)
    names = [*(a.name for a in parsed.args), *([f"result{i}" for i in range(len(metas))] if several else ["result"])]
    read, kept = (tuple(n for i, n in enumerate(names) if i in some) for some in (_read(formula.graph), formula.saved))
    register(Op(parsed, Metas(metas), body.eagerly, Decompose(body), vjp=Vjp(formula, read, kept)))
    dispatcher.define(parsed)


@dataclass(frozen=True)
class Metas:
    """The shape rule: the call was captured for these sizes."""

    results: tuple[TensorMeta, ...]

    def __call__(self, *args: Any) -> Any:
        return self.results if len(self.results) > 1 else self.results[0]


@dataclass(frozen=True)
class Body:
    """What the op means. ``function``: the name of the program's class."""

    graph: Graph
    several: bool
    formula: Formula
    function: str

    def __call__(self, *args: Any) -> Any:
        made = replayed(self.graph, args)
        return made if self.several else made[0]

    def eagerly(self, *args: Any) -> Any:
        """On torch tensors, whose autograd takes the program's gradient too."""
        asked = torch.is_grad_enabled() and any(a.requires_grad for a in args)
        made = _named(self.function).apply(self, *args) if asked else run_graph(self.graph, args)
        return made if self.several else made[0]


class ByTorch(torch.autograd.Function):
    """The op as a node of torch's tape, where a graph runs op by op."""

    @staticmethod
    def forward(ctx: Any, body: Body, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Saves what the program saves, and holds the rest."""
        results = tuple(run_graph(body.graph, args))
        ctx.formula, saved = body.formula, body.formula.saved
        ctx.save_for_backward(*(t if i in saved else None for i, t in enumerate((*args, *results))))
        ctx.held = [t if i in body.formula.held else None for i, t in enumerate((*args, *results))]
        kept = results[body.formula.tangents :]  # of the forward's inside: constants, as what a program saves there is
        ctx.mark_non_differentiable(*kept, *(r for r in results[: body.formula.tangents] if not r.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """By the formula's graph."""
        formula: Formula = ctx.formula
        known = ctx.held
        if formula.saved:
            known = [t if i in formula.saved else known[i] for i, t in enumerate(ctx.saved_tensors)]
        made = run_graph(formula.graph, (*known, *grads[: formula.tangents]))
        return None, *formula.placed(made, operator.add)


@cache
def _named(name: str) -> type[ByTorch]:
    """torch calls a node by its class."""
    return type(name, (ByTorch,), {"__doc__": ByTorch.__doc__})


@dataclass(frozen=True)
class Formula:
    """The backward: ``graph`` takes the op's ``args`` arguments, its ``results`` results and the gradients that come in, and
    gives the gradients of the given tensors at ``wanted``. ``saved``: the arguments and results, by position, that the program
    has torch keep."""

    graph: Graph
    args: int
    results: int
    given: tuple[Ref, ...]
    outside: tuple[Ref, ...]
    wanted: tuple[int, ...]
    saved: frozenset[int]

    @cached_property
    def held(self) -> frozenset[int]:
        """What else the backward reads."""
        return frozenset(i for i in _read(self.graph) - self.saved if i < self.args + self.results)

    def __call__(self, grads: Sequence[Any], args: Sequence[Any], results: Sequence[Any], needs: Sequence[Any]) -> list[Any]:
        tangents = [
            g if g is not None else ops.full_like(r, 0.0) for g, r in zip(grads[: self.tangents], results, strict=False)
        ]
        made = replayed(self.graph, (*args, *results, *tangents))
        return [g if need else None for g, need in zip(self.placed(made, ops.add), needs, strict=True)]

    @property
    def tangents(self) -> int:
        """How many gradients come in: the values that the backward reads besides the results have none."""
        return len(self.graph.placeholders) - self.args - self.results

    def placed(self, made: Sequence[Any], add: Callable[[Any, Any], Any]) -> list[Any]:
        """The gradients by argument of the op: one given twice has their sum, others None."""
        found: list[Any] = [None] * self.args
        for at, grad in zip(self.wanted, made, strict=True):
            position = self.outside.index(self.given[at])
            found[position] = grad if found[position] is None else add(found[position], grad)
        return found


def replayed(graph: Graph, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Record a graph's nodes again, on these values."""
    values = dict(zip((p.name for p in graph.placeholders), inputs, strict=True))

    def given(value: Any) -> Any:
        return map_refs(value, lambda r: values[r.name])

    for node in graph.nodes[len(inputs) : -1]:
        if node.kind == "item":
            values[node.name] = values[node.args[0].name][node.args[1]]
        elif node.kind == "call":
            values[node.name] = dispatcher.call_bound(node.target, given(node.args))
        else:
            recorder: GraphBuilder = next(iter(dispatcher.tensors_in(inputs))).recorder
            values[node.name] = recorder.extern(node.target, given(node.args), {k: given(v) for k, v in node.kwargs}, node.meta)
    return tuple(given(r) for r in graph.output.args[0])
