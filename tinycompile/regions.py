"""Graphs over several devices: runs of nodes that stay on one device are graphs of their own, which are compiled each for its
device; what crosses devices, or writes, runs by torch in between, in the program's order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from tinycompile.base.artifacts import Artifacts
from tinycompile.base.device import Device
from tinycompile.base.errors import KernelError
from tinycompile.base.expr import symbols
from tinycompile.base.meta import TensorMeta
from tinycompile.compiler import CompiledGraph, stage_times
from tinycompile.ir.builder import dims_in, inputs_of, size_sources
from tinycompile.ir.effects import writes_in_between, written
from tinycompile.ir.graph import Graph, Node, Ref
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.interpreter import Interpreter, run_graph, torch_function
from tinycompile.ops.in_place import names_a_write
from tinycompile.runtime.build import restride, uncounted

COMPILED = ("cpu", "cuda")  # the device types that kernels are written for
_ALIGNED = 16  # bytes, as kernels rely on


class OpByOp(Interpreter):
    """As compiled code, it does not count its writes to inputs: see :func:`~tinycompile.runtime.build.uncounted`."""

    def extern(self, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if names_a_write(node.target):
            return uncounted(torch_function(node.target), *args, **kwargs)
        return super().extern(node, args, kwargs)


@dataclass(frozen=True)
class Region:
    """A run of nodes on one device. The placeholders of ``graph`` are called as the values that they take, its outputs are
    those that somebody else reads."""

    graph: Graph
    device: Device


Step = Union[Node, Region]


def regions(graph: Graph) -> tuple[Step, ...]:
    """The graph's nodes in their order, with runs of two or more on one device as regions; no region where writes and
    computations alternate."""
    count = len(graph.placeholders)
    nodes = _results_behind_calls(graph.nodes[count:-1])
    if writes_in_between(graph):
        return tuple(nodes)
    known = {n.name: n for n in graph.nodes}
    runs: list[tuple[Device | None, list[Node]]] = []
    for node in nodes:
        if node.kind == "item":  # right behind its call: where that is
            runs[-1][1].append(node)
            continue
        device = _only_device(node, known)
        if not runs or device is None or runs[-1][0] != device:
            runs.append((device, []))
        runs[-1][1].append(node)
    steps: list[Step] = []
    for number, (device, run) in enumerate(runs):
        calls = sum(n.kind != "item" for n in run)
        steps += [Region(_part(graph, run, known, number), device)] if device is not None and calls > 1 else run
    return tuple(steps)


def _results_behind_calls(nodes: Sequence[Node]) -> list[Node]:
    """Items right behind the call that they are taken from."""
    items: dict[str, list[Node]] = {}
    for node in nodes:
        if node.kind == "item":
            items.setdefault(node.args[0].name, []).append(node)
    return [n for node in nodes if node.kind != "item" for n in (node, *items.get(node.name, ()))]


def _only_device(node: Node, known: Mapping[str, Node]) -> Device | None:
    """The device on which all that a node reads and makes lies; None for several, for other values than tensors, for writes."""
    metas = [node.meta, *(known[r.name].meta for r in inputs_of(node))]
    flat = [m for meta in metas for m in (meta if isinstance(meta, tuple) else (meta,))]
    found = {m.device if isinstance(m, TensorMeta) else None for m in flat}
    device = found.pop() if len(found) == 1 else None
    return device if device is not None and device.type in COMPILED and not written(node) else None


def _part(graph: Graph, run: Sequence[Node], known: Mapping[str, Node], number: int) -> Graph:
    made = {n.name for n in run}
    taken = dict.fromkeys(r.name for n in run for r in inputs_of(n) if r.name not in made)
    read = {r.name for n in graph.nodes if n.name not in made for r in inputs_of(n)}
    inputs = tuple(Node(name, "placeholder", "", meta=known[name].meta) for name in taken)
    given = [n.name for n in run if n.name in read and isinstance(n.meta, TensorMeta)]
    output = Node("output", "output", "output", (tuple(Ref(name) for name in given),))
    nodes = (*inputs, *run, output)
    here = Graph(f"{graph.name}_part{number}", nodes, graph.hints)
    named = {s.name for n in nodes for d in dims_in((n.args, n.kwargs, n.meta)) for s in symbols(d)}
    sizes = tuple(Node(name, "placeholder", "size") for name in sorted(named - set(size_sources(here))))
    return Graph(here.name, (*sizes, *nodes), graph.hints)


# --- running ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Compiled:
    """A region's code. ``checked``: positions of inputs that other steps made, in strides of their own perhaps."""

    region: Region
    code: CompiledGraph
    checked: tuple[int, ...]

    def run(self, machine: Interpreter) -> None:
        graph = self.region.graph
        given: list[Any] = [machine.sizes[n.name] if n.target == "size" else machine.values[n.name] for n in graph.placeholders]
        for i in self.checked:
            meta = graph.placeholders[i].meta
            strides = tuple(machine.fill(s) for s in meta.strides)
            if given[i].stride() != strides:
                given[i] = restride(given[i], tuple(machine.fill(s) for s in meta.shape), strides)
        try:
            found = self.code.call(*given) if self._fit(given) else run_graph(graph, given)
        except KernelError:  # torch raises its own error
            found = run_graph(graph, given)
        machine.values.update(zip((r.name for r in graph.output.args[0]), found, strict=True))

    def _fit(self, given: Sequence[Any]) -> bool:
        """Whether the addresses are those that kernels rely on: a part of another region's result may begin anywhere."""
        wanted = self.code.aligned_inputs
        places = range(len(given)) if wanted is None else wanted
        return all(not isinstance(given[i], torch.Tensor) or given[i].data_ptr() % _ALIGNED == 0 for i in places)


class _Machine(OpByOp):
    def __init__(self, graph: Graph, steps: Sequence[Node | _Compiled]) -> None:
        super().__init__(graph)
        self.steps = steps

    def start(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The graph's outputs."""
        self.values = dict(zip((n.name for n in self.graph.placeholders), inputs, strict=True))
        self.sizes = self.read_sizes()
        for step in self.steps:
            if isinstance(step, Node):
                self.values[step.name] = self.run_node(step)
            else:
                step.run(self)
        return tuple(self.fill(a) for a in self.graph.output.args[0])


def _run(graph: Graph, steps: Sequence[Node | _Compiled], *inputs: Any) -> tuple[Any, ...]:
    # Whoever wants gradients of this graph compiles them: what torch runs here must not hang on the inputs.
    with torch.no_grad():
        return _Machine(graph, steps).start(inputs)


def compile_regions(
    graph: Graph, compile_one: Callable[[Graph, Sequence[Any], Artifacts], CompiledGraph], artifacts: Artifacts
) -> CompiledGraph | None:
    """Compile each region; None where there is none, or where a size can't be read off the graph's inputs."""
    steps = regions(graph)
    parts = [s for s in steps if isinstance(s, Region)]
    known = size_sources(graph)
    if not parts or any(n.target == "size" and n.name not in known for p in parts for n in p.graph.placeholders):
        return None
    by_torch = {s.name for s in steps if isinstance(s, Node)}
    made: dict[int, _Compiled] = {}
    texts = []
    for part in parts:
        texts.append(Artifacts())
        code = compile_one(part.graph, (), texts[-1])
        checked = tuple(i for i, n in enumerate(part.graph.placeholders) if n.name in by_torch)
        made[id(part)] = _Compiled(part, code, checked)
    compiled = [made[id(p)].code for p in parts]
    artifacts["1_graph.py"] = print_graph(graph)
    for name in dict.fromkeys(name for text in texts for name in text if name[0] in "3456"):
        artifacts.lazy(name, functools.partial(_joined, parts, texts, name))
    call = functools.partial(_run, graph, [s if isinstance(s, Node) else made[id(s)] for s in steps])
    from_disk = all(code.from_disk for code in compiled)
    return CompiledGraph(
        graph, None, None, call, None, artifacts, None, stage_times(compiled), from_disk, parts=tuple(compiled)
    )


def _joined(parts: Sequence[Region], texts: Sequence[Artifacts], name: str) -> str:
    mark = "//" if name.endswith(".cpp") else "#"
    pairs = zip(parts, texts, strict=True)
    return "\n\n".join(f"{mark} {part.graph.name} on {part.device}\n{text[name]}" for part, text in pairs if name in text)
