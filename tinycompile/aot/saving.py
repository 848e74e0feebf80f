"""What a backward reads from memory, and what it computes again: the cheapest choice, as a minimum cut.

A value that the backward reads is saved, or computed again from values that are. Each value is an edge whose capacity is what
saving it costs, and what may not be computed again hangs on the source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tinycompile.aot.cut import INFINITE, FlowNetwork
from tinycompile.base.errors import InternalError
from tinycompile.base.expr import evaluate
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.builder import inputs_of
from tinycompile.ir.effects import is_random
from tinycompile.ir.graph import Node
from tinycompile.ops.record import OPS, Extern, Indexed, Pointwise, View


@dataclass(frozen=True, slots=True)
class Scene:
    """A forward and its backward, as sets of names. ``nodes``: all but the output, in their order.

    ``shared``: what is computed before the backward begins, and needed by it; ``readers``: the backward's own nodes, and
    ``ends`` what it returns; ``early``: what is computed before in any case. ``held``: values that are kept alive in any case,
    and ``results`` those that are in memory in any case. ``passing``: what can't be saved, ``fixed``: what is never computed
    again, ``again``: what is not to be saved."""

    nodes: Mapping[str, Node]
    hints: Mapping[str, int]
    shared: AbstractSet[str]
    readers: AbstractSet[str]
    ends: AbstractSet[str]
    early: AbstractSet[str]
    held: AbstractSet[str]
    results: AbstractSet[str]
    passing: AbstractSet[str] = frozenset()
    fixed: AbstractSet[str] = frozenset()
    again: AbstractSet[str] = frozenset()

    def bytes_of(self, name: str) -> int:
        """The size of a node's result at the sizes seen at capture."""
        meta = self.nodes[name].meta
        if not isinstance(meta, TensorMeta):
            return 0
        count = meta.numel
        return (count if isinstance(count, int) else evaluate(count, self.hints)) * meta.dtype.itemsize


def choose(scene: Scene, budget: float) -> list[str]:
    """Names of the values to save. Less than a full budget lets dear values be computed again, until few enough are saved."""
    saved = cheapest(scene)
    if budget >= 1:
        return saved
    total, order = saved_bytes(scene, saved), by_size(scene)
    low, high = 0, len(order)
    while low < high:  # the fewest that must be computed again
        middle = (low + high) // 2
        if saved_bytes(scene, cheapest(scene, frozenset(order[:middle]))) <= budget * total:
            high = middle
        else:
            low = middle + 1
    return cheapest(scene, frozenset(order[:low]))


def by_size(scene: Scene) -> list[str]:
    """What may be computed again at all, the largest first; of equal ones every second first, then every second of the rest, so
    that what stays saved is spread over the program."""
    sizes: dict[int, list[str]] = {}
    for name in scene.nodes:
        if name in scene.shared and not _never_again(scene, name):
            sizes.setdefault(scene.bytes_of(name), []).append(name)
    order: list[str] = []
    for size in sorted(sizes, reverse=True):
        left = sizes[size]
        while left:
            order += left[::2]
            left = left[1::2]
    return order


def saved_bytes(scene: Scene, saved: Iterable[str]) -> int:
    """Bytes that the forward keeps alive for the backward and that nobody else does."""
    return sum(scene.bytes_of(n) for n in saved if n not in scene.held)


def cheapest(scene: Scene, allowed: Collection[str] = frozenset()) -> list[str]:
    """The cheapest set of values from which the backward can be computed; ``allowed`` may be computed again though dear."""
    allowed = {*scene.again, *allowed}
    never = scene.again - scene.results | scene.passing
    net = FlowNetwork()
    source, sink = net.node(), net.node()
    gates: dict[str, tuple[int, int]] = {}
    read_late = {r.name for n in scene.readers for r in inputs_of(scene.nodes[n])} | scene.ends
    whole = read_by_libraries(scene, scene.readers)
    early = read_by_libraries(scene, scene.early)
    for name, node in scene.nodes.items():
        if name not in scene.shared:
            continue
        enter, leave = gates[name] = net.node(), net.node()
        net.edge(enter, leave, INFINITE if name in never else _cost(scene, node, name in early))
        if node.kind == "placeholder" or name in scene.fixed or (_banned(node, whole) and name not in allowed):
            net.edge(source, enter, INFINITE)
        for ref in inputs_of(node):
            net.edge(gates[ref.name][1], enter, INFINITE)
        if name in read_late:
            net.edge(leave, sink, INFINITE)
    beyond = net.sink_side(source, sink)
    cut = [name for name, (enter, leave) in gates.items() if not beyond[enter] and beyond[leave]]
    for name in cut:
        if not isinstance(scene.nodes[name].meta, TensorMeta) and scene.nodes[name].kind != "placeholder":
            raise InternalError(f"the partitioner would save {name}, which is no tensor")
    return cut


def _banned(node: Node, whole: AbstractSet[str]) -> bool:
    """Whether a value is not to be computed again: it is dear, or it would have to be written to memory once more. What is made
    of nothing, like zeros, is better written when it is needed than held until then."""
    if not is_cheap(node):
        return True
    return node.name in whole and not is_view(node) and node.kind != "item" and bool(inputs_of(node))


def to_compute_again(nodes: Mapping[str, Node], known: AbstractSet[str], marked: AbstractSet[str]) -> frozenset[str]:
    """The values that are not to be saved: the ``marked`` ones of those that are ``known``, what a pass or a formula made of
    them, and what is computed from these for the backward. Not those that are never computed again, nor what is read from one
    with several results."""
    if not marked:
        return frozenset()
    of_next, phase = dict[str, bool](), False
    for node in reversed(list(nodes.values())):
        phase = node.name in marked if node.name in known else phase
        of_next[node.name] = phase
    found = set[str]()
    for name, node in nodes.items():
        read = {r.name for r in inputs_of(node)}
        wanted = of_next[name] or (name not in known and not read.isdisjoint(found))
        made = nodes[node.args[0].name] if node.kind == "item" else node
        if wanted and not is_random(made) and made.kind not in ("extern", "placeholder"):
            found.add(name)
    return frozenset(found)


def _never_again(scene: Scene, name: str) -> bool:
    """Inputs, random numbers, and calls of which nobody knows what they do."""
    node = scene.nodes[name]
    return name in scene.fixed or is_random(node) or node.kind in ("extern", "placeholder")


def is_cheap(node: Node) -> bool:
    """Whether a fused kernel computes it on the way."""
    if node.kind == "item":
        return True
    return node.kind == "call" and not is_random(node) and isinstance(OPS[node.target].lowering, (Pointwise, View, Indexed))


def is_view(node: Node) -> bool:
    return node.kind == "call" and isinstance(OPS[node.target].lowering, View)


def _cost(scene: Scene, node: Node, in_memory: bool) -> int:
    """Saving costs a read, and a write where the forward would not write the value anyway."""
    if not isinstance(node.meta, TensorMeta):
        return 1 if node.kind == "placeholder" else INFINITE
    if is_view(node):
        return INFINITE  # what it views is saved
    held = node.kind in ("placeholder", "item") or in_memory or not is_cheap(node) or node.name in scene.results
    return (1 if held else 2) * scene.bytes_of(node.name) + 1


def read_by_libraries(scene: Scene, readers: AbstractSet[str]) -> set[str]:
    """Values that library calls among ``readers`` take, as they are or through views: they must be in memory."""
    found: set[str] = set()
    for name, node in reversed(list(scene.nodes.items())):
        outside = name in readers and (
            node.kind == "extern" or (node.kind == "call" and isinstance(OPS[node.target].lowering, Extern))
        )
        if outside or (name in found and is_view(node)):
            found.update(r.name for r in inputs_of(node))
    return found
