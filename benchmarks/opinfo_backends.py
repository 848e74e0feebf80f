"""Ways to run a captured graph under test: op by op, Loops in numpy, C++ with one translation unit for many graphs, Triton.

Each can stand in for a backend of the compiler, so that a graph goes the way that a user's does: training graphs come as two
halves, attention is recognised, a kernel that refuses its input is redone. Code is built in one go by ``finish``.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import tinycompile.backends
from tinycompile.backends import cuda_target, graph_device
from tinycompile.base.artifacts import Artifacts
from tinycompile.base.device import Device
from tinycompile.base.target import A100, H100, Target
from tinycompile.codegen.cpp.emit import prelude
from tinycompile.compiler import CompiledGraph, generate
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_module import GraphModule
from tinycompile.ir.loops import ExternCall
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.source import KernelSource, Source
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Extern
from tinycompile.passes.pipeline import optimize
from tinycompile.runtime import cpp_build, triton_build
from tinycompile.runtime.build import link
from tinycompile.runtime.interpreter_worker import interpreted
from tinycompile.runtime.twins import canonical_cpp, twin_key

Run = Callable[..., Sequence[Any]]
Launchers = Mapping[str, Callable[..., Any]]
CPU = Device("cpu")


def library_calls(steps: Iterable[Any]) -> list[str]:
    """The torch functions among the steps of Loops or of a Plan. Making room for a result without elements is none."""
    found = [s for s in steps if isinstance(s, ExternCall)]
    return [s.target for s in found if not (s.target in ("torch.empty_strided", "empty") and 0 in s.args[0])]


@dataclass
class EagerBackend:
    """The captured graph, op by op: finds faults of capture and of meta rules. ``externs``: library calls met so far."""

    place: str = "aot_eager"  # the backend that it stands in for
    externs: list[str] = field(default_factory=list)

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Run:
        """As a user's own backend."""
        return self.compile_one(module.graph, inputs, Artifacts()).call

    def compile_one(self, graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
        """As the compiler calls a backend of its own."""
        call = self.prepare(graph)
        return CompiledGraph(graph, None, graph_device(graph), lambda *tensors: tuple(call(*tensors)), None, artifacts)

    def prepare(self, graph: Graph) -> Run:
        """Something that runs the graph."""
        verify_graph(graph)
        for node in graph.nodes:
            if node.kind == "extern" or (node.kind == "call" and isinstance(OPS[node.target].lowering, Extern)):
                self.externs.append(node.target)
        return GraphModule(graph).run

    def finish(self) -> None:
        """Build what waits for it."""


@dataclass
class LoopsBackend(EagerBackend):
    """Passes and lowering, then the numpy interpreter: finds their faults without a compiler."""

    def prepare(self, graph: Graph) -> Run:
        loops = lower(optimize(graph))
        verify_loops(loops)
        self.externs += library_calls(loops.steps)
        return lambda *tensors: tuple(run_loops(loops, tensors))


@dataclass
class _Later:
    """A graph whose code exists, but is not built yet."""

    source: Source
    call: Run | None = None

    def __call__(self, *inputs: Any) -> Any:
        assert self.call is not None, "finish() comes before the first run"
        return self.call(*inputs)


@dataclass
class CodeBackend(EagerBackend):
    """All stages; the kernels of every graph seen until :meth:`finish` are built at once."""

    waiting: list[_Later] = field(default_factory=list)

    def target(self) -> Target:
        """What code is generated for."""
        raise NotImplementedError

    def device(self) -> Device:
        """Where the tensors are."""
        return CPU

    def launchers(self, sources: Sequence[Source]) -> Sequence[Launchers]:
        """Build the kernels of each source."""
        raise NotImplementedError

    def compile_one(self, graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
        found = graph_device(graph)
        if found is None or found.type != self.device().type:  # on several devices, or another: op by op, as it always is
            return super().compile_one(graph, inputs, artifacts)
        plan, source = generate(graph, self.target(), artifacts, {})
        self.externs += library_calls(plan.steps)
        self.waiting.append(_Later(source))
        return CompiledGraph(graph, self.target(), self.device(), self.waiting[-1], source, artifacts, plan)

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        for later, launchers in zip(waiting, self.launchers([w.source for w in waiting]), strict=True):
            later.call = link(later.source, self.device(), launchers)


@dataclass
class CppBackend(CodeBackend):
    """One translation unit; kernels that differ in names alone are in it once."""

    place: str = "cpp"

    def target(self) -> Target:
        return cpp_build.cpu_target()

    def launchers(self, sources: Sequence[Source]) -> Sequence[Launchers]:
        start, names, texts = prelude(self.target()), dict[str, str](), list[str]()
        for kernel in (k for source in sources for k in source.kernels):
            key = canonical_cpp(kernel.text, start)
            if key not in names:
                names[key] = f"g{len(names)}_{kernel.name}"
                texts.append(re.sub(rf"\bkernel_{kernel.name}(?=\w*\()", f"kernel_{names[key]}", kernel.text))
        if not texts:
            return [{} for _ in sources]
        with tempfile.TemporaryDirectory() as folder:  # a library that is loaded needs no file
            library = cpp_build.load(cpp_build.compile_cpp("\n\n".join([start, *texts]), self.target(), folder))

        def launcher(kernel: KernelSource) -> Callable[..., None]:
            return cpp_build.launcher(kernel, library, names[canonical_cpp(kernel.text, start)])

        return [{k.name: launcher(k) for k in source.kernels} for source in sources]


@dataclass
class InterpretedBackend(CodeBackend):
    """Triton for sm_90, in Triton's interpreter."""

    place: str = "triton"

    def target(self) -> Target:
        return H100

    def launchers(self, sources: Sequence[Source]) -> Sequence[Launchers]:
        return [{k.name: interpreted(k) for k in source.kernels} for source in sources]


@dataclass
class OfflineBackend(CodeBackend):
    """Triton for sm_90, compiled for sm_80 and sm_90 without a device. Nothing can run, so the graph runs op by op."""

    place: str = "triton"
    seen: set[Any] = field(default_factory=set)

    def target(self) -> Target:
        return H100

    def compile_one(self, graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
        made = super().compile_one(graph, inputs, artifacts)
        for target in (A100, H100):
            for kernel in generate(graph, target, Artifacts(), {})[1].kernels:
                what = (twin_key(kernel), kernel.configs[0], target.arch)
                if what not in self.seen:
                    triton_build.compile_offline(kernel, int(target.arch.removeprefix("sm_")))
                    self.seen.add(what)
        self.waiting.clear()
        return replace(made, call=GraphModule(graph).run, source=None)


@dataclass
class CudaBackend(CodeBackend):
    """Triton on the GPU at hand."""

    place: str = "triton"

    def target(self) -> Target:
        return cuda_target(0)

    def device(self) -> Device:
        return Device("cuda", 0)

    def launchers(self, sources: Sequence[Source]) -> Sequence[Launchers]:
        made = iter(triton_build.compile_kernels([k for s in sources for k in s.kernels], 0))
        return [{k.name: next(made) for k in source.kernels} for source in sources]


BACKENDS: dict[str, Callable[[], EagerBackend]] = {
    "eager": EagerBackend,
    "loops": LoopsBackend,
    "cpp": CppBackend,
    "triton": InterpretedBackend,
    "offline": OfflineBackend,
    "cuda": CudaBackend,
}


@contextlib.contextmanager
def standing_in(backend: EagerBackend) -> Iterator[None]:
    """``backend`` is what the compiler finds under the name that it stands in for."""
    if backend.place == "triton":  # chosen by name before the registry is asked
        with patch.object(tinycompile.backends, "_triton", backend.compile_one):
            yield
    else:
        with patch.dict(tinycompile.backends._REGISTERED, {backend.place: backend.compile_one}):
            yield
