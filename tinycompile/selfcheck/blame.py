"""Which stage made a wrong answer: the same inputs through the pipe, stopping after each stage, until one differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.artifacts import Artifacts
from tinycompile.compiler import CompiledGraph
from tinycompile.fuse.planner import plan as make_plan
from tinycompile.ir.graph import Graph
from tinycompile.ir.interpreter import run_graph
from tinycompile.ir.loops import Buffer, ExternCall, Loops
from tinycompile.ir.loops_reference import run_loops, run_nest
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.source import Source
from tinycompile.lower.lowering import lower
from tinycompile.passes.pipeline import PASSES, optimize
from tinycompile.runtime.linked import unwatch, watch
from tinycompile.selfcheck.judge import Difference, Judge, difference
from tinycompile.selfcheck.trial import Fn, Trial
from tinycompile.training import compile_training


def blame(graph: Graph, compiled: CompiledGraph, trial: Trial, judge: Judge) -> str:
    """The stage, pass or kernel at fault, in words. ``judge`` tells whether results are wrong."""
    if compiled.backward is None:
        return _first_wrong(graph, compiled, trial, judge)
    outputs = len(graph.output.args[0]) + len(trial.inputs)
    halves = compile_training(graph, [x.tensor for x in trial.inputs], [x.needs for x in trial.inputs], _op_by_op, Artifacts())
    found = judge(trial.run(halves.call))
    if found is not None:
        return f"aot: the {'forward' if found.result < outputs else 'backward'} graph, run by torch, is wrong already"
    return _kernels(compiled, trial) or "codegen"


def _op_by_op(graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
    return CompiledGraph(graph, None, None, lambda *given: run_graph(graph, given), None, artifacts)


def _first_wrong(graph: Graph, compiled: CompiledGraph, trial: Trial, judge: Judge) -> str:
    for stage, fn in _stages(graph, compiled):
        try:
            found = judge(trial.run(fn))
        except Exception as error:  # noqa: BLE001  # a stage that can't even run is the answer
            return f"{stage} ({type(error).__name__}: {error})"
        if found is not None:
            return stage
    return _kernels(compiled, trial) or "codegen"


def _stages(graph: Graph, compiled: CompiledGraph) -> Iterator[tuple[str, Fn]]:
    """What each stage made, as a function of the graph's inputs."""
    done = graph
    for name, run in PASSES:
        done = run(done)
        yield f"the pass {name!r}", lambda *given, g=done: run_graph(g, given)
    loops = lower(done)
    yield "lowering", lambda *given: _in_numpy(loops, given)
    if compiled.target is not None:
        fused = _as_loops(loops, make_plan(loops, compiled.target))
        yield "fusion", lambda *given: _in_numpy(fused, given)


def _as_loops(loops: Loops, plan: Plan) -> Loops:
    steps = tuple(s.nest if isinstance(s, Kernel) else s for s in plan.steps if isinstance(s, Kernel | ExternCall))
    return replace(loops, steps=steps, buffers=plan.buffers, outputs=plan.outputs)


def _in_numpy(loops: Loops, given: Sequence[Any]) -> tuple[Any, ...]:
    """On CPU clones; what a nest writes to an input is copied back."""
    moved = [x.cpu() if isinstance(x, torch.Tensor) else x for x in given]
    found = run_loops(loops, moved)
    for x, at in zip(given, moved, strict=True):
        if isinstance(x, torch.Tensor) and x is not at:
            x.copy_(at)
    device = next((x.device for x in given if isinstance(x, torch.Tensor)), None)
    return tuple(o.to(device) if isinstance(o, torch.Tensor) else o for o in found)


# ----------------------------------------------------------------------------------------------------------- single kernels


def _kernels(compiled: CompiledGraph, trial: Trial) -> str:
    """Each launch beside numpy's run of its nest, on what the kernel was really given."""
    halves = [h for h in (compiled, compiled.backward) if h is not None]
    watchers = [_Watcher(h) for h in halves]
    for each in watchers:
        watch(each)
    try:
        trial.run(compiled.call)
    finally:
        for each in watchers:
            unwatch(each)
    wrong = [w for each in watchers for w in each.wrong]
    return f"codegen: the kernel {wrong[0]}" if wrong else ""


class _Watcher:
    """Stands in for the launchers of one compiled graph; ``wrong`` collects the kernels that are."""

    def __init__(self, half: CompiledGraph) -> None:
        assert half.source is not None and half.target is not None
        self.source, self.wrong = half.source, list[str]()
        plan = half.plan or make_plan(lower(optimize(half.graph)), half.target)
        self._kernels = {k.nest.name: k for k in plan.kernels}
        self._buffers = {b.name: b for b in plan.buffers}

    def __call__(self, source: Source, kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        kernel = self._kernels.get(name)
        if source is not self.source or kind != "kernel" or kernel is None:
            return function
        return lambda stream, *args: self._launch(kernel, name, function, stream, args)

    def _launch(self, kernel: Kernel, name: str, function: Callable[..., Any], stream: Any, args: tuple[Any, ...]) -> Any:
        params = next(k.args for k in self.source.kernels if k.name == name)
        given = dict(zip([p.name for p in params], args, strict=False))
        before = {n: t.detach().cpu().clone() for n, t in given.items() if isinstance(t, torch.Tensor)}
        result = function(stream, *args)
        sizes = {n: v for n, v in given.items() if isinstance(v, int)}
        try:
            found = self._beside_numpy(kernel, before, given, sizes)
        except KeyError:
            return result  # an argument of another form: this launch can't be told
        if found is not None:
            self.wrong.append(f"{name} ({found.what})")
        return result

    def _beside_numpy(
        self, kernel: Kernel, before: dict[str, torch.Tensor], after: dict[str, Any], sizes: dict[str, int]
    ) -> Difference | None:
        memory = {n: before[n] for n in kernel.reads}
        memory |= {n: before[n].clone() for n in kernel.writes}
        buffers: dict[str, Buffer] = {n: self._buffers[n] for n in (*kernel.reads, *kernel.writes)}
        run_nest(kernel.nest, buffers, memory, sizes)
        return difference([after[n].detach().cpu() for n in kernel.writes], [memory[n] for n in kernel.writes], None)
