"""Ways to run a captured graph under test: op by op, Loops in numpy, or C++ with one translation unit for many graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinycompile.base.artifacts import Artifacts
from tinycompile.base.device import Device
from tinycompile.codegen.cpp.emit import prelude
from tinycompile.compiler import generate
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_module import GraphModule
from tinycompile.ir.loops import ExternCall
from tinycompile.ir.loops_reference import run_loops
from tinycompile.ir.source import Source
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import OPS, Extern
from tinycompile.passes.pipeline import optimize
from tinycompile.runtime import cpp_build
from tinycompile.runtime.build import link

Run = Callable[..., Sequence[Any]]


def library_calls(steps: Iterable[Any]) -> list[str]:
    """The torch functions among the steps of Loops or of a Plan. Making room for a result without elements is none."""
    found = [s for s in steps if isinstance(s, ExternCall)]
    return [s.target for s in found if not (s.target in ("torch.empty_strided", "empty") and 0 in s.args[0])]


@dataclass
class EagerBackend:
    """The captured graph, op by op: finds faults of capture and of meta rules."""

    externs: list[str] = field(default_factory=list)

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Run:
        verify_graph(module.graph)
        for node in module.graph.nodes:
            if node.kind == "extern" or (node.kind == "call" and isinstance(OPS[node.target].lowering, Extern)):
                self.externs.append(node.target)
        return module

    def finish(self) -> None:
        """Nothing is left to do before the first run."""


@dataclass
class LoopsBackend:
    """Passes and lowering, then the numpy interpreter: finds their faults without a compiler."""

    externs: list[str] = field(default_factory=list)

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Run:
        loops = lower(optimize(module.graph))
        verify_loops(loops)
        self.externs += library_calls(loops.steps)
        return lambda *tensors: tuple(run_loops(loops, tensors))

    def finish(self) -> None:
        """Nothing is left to do before the first run."""


@dataclass
class _Later:
    """A graph whose code exists, but is not built yet."""

    source: Source
    call: Run | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        assert self.call is not None, "finish() comes before the first run"
        return self.call(*inputs)


@dataclass
class CppBackend:
    """All stages; the kernels of every graph seen until :meth:`finish` are one translation unit."""

    externs: list[str] = field(default_factory=list)
    waiting: list[_Later] = field(default_factory=list)

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Run:
        source = self._generate(module.graph)
        self.waiting.append(_Later(source))
        return self.waiting[-1]

    def _generate(self, graph: Graph) -> Source:
        plan, source = generate(graph, cpp_build.cpu_target(), Artifacts(), {})
        self.externs += library_calls(plan.steps)
        return source

    def finish(self) -> None:
        """Build every graph that waits."""
        texts, names = [], []
        for i, later in enumerate(self.waiting):
            renamed = [replace(k, name=f"g{i}_{k.name}") for k in later.source.kernels]
            names.append(renamed)
            texts += [
                re.sub(rf"\bkernel_{o.name}(?=\w*\()", f"kernel_{k.name}", k.text)
                for k, o in zip(renamed, later.source.kernels, strict=True)
            ]
        target = cpp_build.cpu_target()
        library = cpp_build.load(cpp_build.compile_cpp("\n\n".join([prelude(target), *texts]), target)) if texts else None
        for later, renamed in zip(self.waiting, names, strict=True):
            launchers = {
                o.name: cpp_build.launcher(k, library) for k, o in zip(renamed, later.source.kernels, strict=True) if library
            }
            later.call = link(later.source, Device("cpu"), launchers)
        self.waiting.clear()


BACKENDS: dict[str, Callable[[], EagerBackend | LoopsBackend | CppBackend]] = {
    "eager": EagerBackend,
    "loops": LoopsBackend,
    "cpp": CppBackend,
}
