"""A backward where only some outputs come with a gradient.

torch leaves the others undefined, and what leads to them takes no part. Zeros in their place would be as good only where
nothing is infinite (zero times that is NaN), and would read saved tensors that may have been edited since. So a backward of the
outputs at hand is recorded by itself. It reads what the whole backward was going to read: values are recognised in both joint
graphs by what they are computed from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from tinycompile.aot.joint import Joint
from tinycompile.aot.partition import Split
from tinycompile.base.expr import Expr, symbols
from tinycompile.ir.builder import dims_in, inputs_of, map_refs, refs_in, size_sources
from tinycompile.ir.effects import is_pure
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ops.record import OPS, View


@dataclass(frozen=True, slots=True)
class Pullback:
    """A compiled backward. ``call`` takes the split's numbers, saved tensors and tangents at these positions. ``places``: for
    each gradient of the split, where it is among the results; None where none comes.

    ``given_up``: it takes one list, which it empties, so that saved tensors are freed as it goes; ``overwritten``: positions of
    inputs in whose memory it writes. ``by_ops`` computes the same op by op: for tangents that torch has wrapped or that are
    sparse, and, where kernels are ``refusing`` bad input, for what they refuse; a backward that frees what it has read is not
    run twice (the forward has seen the same indices, and keeping all would double the peak)."""

    call: Callable[..., tuple[Any, ...]]
    numbers: tuple[int, ...]
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    places: tuple[int | None, ...]
    by_ops: Callable[..., tuple[Any, ...]]
    refusing: bool = False
    given_up: bool = False
    overwritten: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Derived:
    """A backward that can be differentiated: ``call`` takes the inputs, these of the random results, and the tangents that are
    defined. ``reads``: the inputs that it depends on; ``places`` and ``by_ops`` as above."""

    call: Callable[..., tuple[Any, ...]]
    by_ops: Callable[..., tuple[Any, ...]]
    random: tuple[int, ...]
    reads: frozenset[int]
    places: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The graph of such a backward; the rest as in :class:`Pullback`."""

    graph: Graph
    numbers: tuple[int, ...]
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    places: tuple[int | None, ...]


def whole_of(split: Split) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The positions of all of it, in the order of :class:`Pullback`."""
    numbers, saved, tangents, gradients = (
        tuple(range(len(all_))) for all_ in (split.sizes, split.saved, split.tangents, split.gradients)
    )
    return numbers, saved, tangents, gradients


def places_of(split: Split, part: Joint) -> tuple[int | None, ...]:
    """For each gradient of the split, where it is among those of a joint graph of some outputs."""
    where = {i: at for at, i in enumerate(part.gradients)}
    return tuple(where.get(i) for i in split.gradients)


def zeros_will_do(split: Split, undefined: AbstractSet[int]) -> bool:
    """Whether zeros for these tangents change no gradient: they are only added to others, and multiplied by plain numbers. One
    that nothing reads is no zero: it went through a slope of zero, which times what is infinite gives NaN."""
    placeholders = split.backward.placeholders
    first = len(split.sizes) + len(split.saved)
    zero = {placeholders[first + i].name for i in undefined}
    if not zero <= {r.name for n in split.backward.nodes[len(placeholders) :] for r in inputs_of(n)}:
        return False
    for node in split.backward.nodes[len(placeholders) : -1]:
        given = {r.name for r in inputs_of(node)}
        if not given & zero or (node.target == "add" and not given <= zero and node.kind == "call"):
            continue
        if node.kind != "call" or not given <= zero or not _keeps_zeros(node):
            return False
        zero.add(node.name)
    return True


def _keeps_zeros(node: Node) -> bool:
    if node.target == "add":
        return all(isinstance(a, Ref) for a in node.args[:2])
    return isinstance(OPS[node.target].lowering, View) or node.target in ("neg", "to", "clone", "restride", "sum")


# --- the part --------------------------------------------------------------------------------------------------------------


def part_of(split: Split, joint: Joint, part: Joint) -> Part | None:
    """The backward of the outputs that ``part`` has tangents of. ``split``: of ``joint``, that of all; both are optimized
    alike. None where it reads what the whole backward doesn't."""
    same: dict[Any, int] = {}
    theirs, ours = _numbered(joint, same), _numbered(part, same)
    inputs = split.backward.placeholders[: len(split.sizes) + len(split.saved)]
    ready = {theirs[p.name]: i for i, p in enumerate(inputs) if p.name in theirs}
    tangents = part.graph.placeholders[part.primals :]
    gradients = part.graph.output.args[0][part.outputs :]
    read, body = _needed(part.graph, gradients, {name: ready[n] for name, n in ours.items() if n in ready}, tangents)
    if not _computable(body, tangents):
        return None
    nodes = {n.name: n for n in part.graph.nodes}
    taken = {i: _as_input(nodes[name]) for name, i in read.items()}
    known = size_sources(_graph(part.graph, [*taken.values(), *tangents], (), ()))
    for symbol in {s.name for n in (*taken.values(), *tangents, *body) for d in _dims(n) for s in symbols(d)} - known.keys():
        at = next((i for i, p in enumerate(inputs) if p.name == symbol and p.meta is None), None)
        if at is None:
            return None
        taken[at] = inputs[at]
    count, order = len(split.sizes), sorted(taken)
    given_up = tuple(taken[i].name for i in order if inputs[i].name in split.backward.donated)
    return Part(
        replace(_graph(part.graph, [*(taken[i] for i in order), *tangents], body, tuple(gradients)), donated=given_up),
        tuple(i for i in order if i < count),
        tuple(i - count for i in order if i >= count),
        tuple(split.tangents.index(i) for i in part.tangents),
        places_of(split, part),
    )


def _numbered(joint: Joint, same: dict[Any, int]) -> dict[str, int]:
    """A number for each value, by name: equal for values computed alike from the same primals and tangents, and for copies.
    ``same`` is shared by the graphs that are compared."""
    numbers: dict[str, int] = {}
    metas: dict[str, Any] = {}
    calls = Counter[Any]()
    given = iter([*(("primal", i) for i in range(joint.primals)), *(("tangent", i) for i in joint.tangents)])
    for node in joint.graph.nodes[:-1]:
        if node.kind == "placeholder":
            key: Any = next(given)
        else:
            args = map_refs((node.args, *node.kwargs), lambda r: Ref(f"{numbers[r.name]}"))
            key = node.kind, node.target, repr(args)  # 1, 1.0 and True differ, and 0.0 and -0.0
            if not is_pure(node):
                calls[key] += 1
                key = *key, calls[key]
        metas[node.name] = node.meta
        copy = node.kind == "call" and node.target == "restride" and metas[node.args[0].name].strides == node.meta.strides
        if node.name in joint.copies:  # where torch keeps the value itself, that is read as it is by then
            numbers[node.name] = same.setdefault(("copy", numbers[joint.copies[node.name]]), len(same))
        else:
            numbers[node.name] = numbers[node.args[0].name] if copy else same.setdefault(key, len(same))
    return numbers


def _needed(
    graph: Graph, roots: Sequence[Any], ready: Mapping[str, int], tangents: Sequence[Node]
) -> tuple[dict[str, int], list[Node]]:
    """What is to be given, of what is ``ready``, and the nodes to be computed from it, in order."""
    wanted = {r.name for r in refs_in(tuple(roots))}
    read: dict[str, int] = {}
    body: list[Node] = []
    for node in reversed(graph.nodes[:-1]):
        if node.name not in wanted or node in tangents:
            continue
        if node.name in ready:
            read[node.name] = ready[node.name]
        else:
            body.append(node)
            wanted.update(r.name for r in inputs_of(node))
    return read, body[::-1]


def _computable(body: Sequence[Node], tangents: Sequence[Node]) -> bool:
    """Whether a backward can compute these: what stands before it is neither given nor drawn again."""
    late = {t.name for t in tangents}
    for node in body:
        if any(r.name in late for r in inputs_of(node)):
            late.add(node.name)
        elif node.kind == "placeholder" or not is_pure(node):
            return False
    return True


def _as_input(node: Node) -> Node:
    return node if node.kind == "placeholder" else Node(node.name, "placeholder", "", meta=node.meta, loc=node.loc)


def _dims(node: Node) -> Iterable[Expr]:
    return dims_in((node.args, node.kwargs, node.meta))


def _graph(of: Graph, inputs: Sequence[Node], body: Sequence[Node], results: tuple[Any, ...]) -> Graph:
    nodes = (*inputs, *body, Node("output", "output", "", (results,)))
    return Graph(f"{of.name}_backward_of_some", nodes, of.hints)
