"""READ FIRST. The pipeline: the only file that knows the order of the stages.

    capture -> Graph -> optimize -> Graph -> lower -> Loops -> plan -> Plan -> emit -> Source -> build -> callable

A graph whose inputs require grad is split into a forward and a backward first, and both halves take this way: see
``training.py``. Each stage is a pure function from one IR to the next; each result is verified (when ``config.verify_ir``),
printed as an artifact, and timed. ``docs/pipeline.md`` has a page for each.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.device import Device
from tinycompile.base.logs import log
from tinycompile.base.shapes import ShapeEnv, assume
from tinycompile.base.target import GENERIC, Target
from tinycompile.codegen.emit import assemble, described, emit
from tinycompile.fuse.planner import plan as make_plan
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_text import print_graph
from tinycompile.ir.loops_text import print_loops
from tinycompile.ir.plan import Kernel, Plan
from tinycompile.ir.plan_text import print_plan
from tinycompile.ir.source import KernelSource, Source
from tinycompile.ir.source_text import dump_source, load_source
from tinycompile.ir.verify_graph import verify_graph
from tinycompile.ir.verify_loops import verify_loops
from tinycompile.ir.verify_plan import verify_plan
from tinycompile.lower.lowering import lower
from tinycompile.ops.record import CUSTOM
from tinycompile.passes.pipeline import PASSES, optimize
from tinycompile.runtime.ahead import building
from tinycompile.runtime.autotune import Tuner
from tinycompile.runtime.build import begin, build
from tinycompile.runtime.cache import DiskCache
from tinycompile.runtime.registered import link_registered
from tinycompile.runtime.triton_build import begin as begin_kernel

SCHEMA = 1
# ``codegen(kernel, plan)`` of a registered device: text for people, and a function that runs the kernel; None: not this one.
Codegen = Callable[[Kernel, Plan], tuple[str, Callable[..., None]] | None]


@dataclass
class CompiledGraph:
    """One graph, compiled: the callable, everything that was made on the way, and how long each stage took (seconds).

    ``target`` and ``source`` are None where a backend runs the graph without generating code. ``backward``: the other half
    of a graph whose inputs require grad; ``graph`` is then the forward half, and ``call`` attaches both to torch's
    autograd. ``autotune``: it was asked for; ``tuner``: where something is decided by timing, it can tell what was found.
    ``parts``: the code of each region of a graph over several devices (``regions.py``), which has no source of its own.
    """

    graph: Graph
    target: Target | None
    device: Device | None
    call: Callable[..., tuple[Any, ...]]
    source: Source | None
    artifacts: Artifacts
    plan: Plan | None = None
    times: dict[str, float] = field(default_factory=dict)
    from_disk: bool = False
    backward: CompiledGraph | None = None
    tuner: Tuner | None = None
    autotune: bool = False
    parts: tuple[CompiledGraph, ...] = ()

    @property
    def aligned_inputs(self) -> Collection[int] | None:
        """Positions of the inputs on whose alignment to 16 bytes generated code relies; None: all, for gradients may."""
        if self.source is None or (self.target is not None and self.target.language != "triton"):
            return ()
        return self.source.aligned if self.backward is None else None


def compile_graph(graph: Graph, target: Target, device: Device, artifacts: Artifacts, autotune: bool = False) -> CompiledGraph:
    """Run every stage after capture, or load their result from the disk cache. ``autotune``: time the candidate
    configurations of each Triton kernel at its first call, and generated matrix products beside the library's."""
    times: dict[str, float] = {}
    asked = autotune or config.max_autotune
    autotune = asked and target.language == "triton" and device.type == "cuda"
    disk = DiskCache(config.cache_dir) if config.disk_cache else None
    with _timed(times, "key"):
        printed = print_graph(graph)
        parts = key_parts(printed, graph.hints, target, device) | ({"autotune": f"yes, TF32 {_tf32()}"} if autotune else {})
        key = DiskCache.key(parts)
        entry = disk.get(key) if disk else None
    tuner = Tuner(disk, tuning_parts(parts, device)) if autotune else None
    artifacts["1_graph.py"] = printed
    if entry is not None:
        with _timed(times, "load"):
            source = load_source(entry.text("source.json"))
            assume(source.relations)
            call, _ = build(source, target, device, entry, tuner)
        for name in sorted(entry.files):
            if name[0] in "456":
                artifacts.lazy(name, functools.partial(entry.text, name))
        _passes_on_demand(graph, artifacts)
        log("cache", f"disk hit {key[:12]} for {graph.name}")
        return CompiledGraph(graph, target, device, call, source, artifacts, None, times, True, tuner=tuner, autotune=asked)
    if disk and "cache" in config.log:
        log("cache", f"disk miss {key[:12]} for {graph.name}: {disk.why_missed(parts)}")
    with building() as ahead:  # kernels are built while more are generated, of a training graph's other half too
        ready = None
        if target.language == "triton" and device.type == "cuda" and not autotune:
            ready = functools.partial(begin_kernel, device_index=max(device.index, 0), ahead=ahead)
        the_plan, source = generate(graph, target, artifacts, times, products=autotune, ready=ready)
        assume(source.relations)
        with _timed(times, "build"):
            begun = begin(source, target, device, ahead, tuner)

        def finish() -> None:
            with _timed(times, "build"):
                binaries = begun.finish()
            if disk:
                with _timed(times, "store"):
                    texts = {name: artifacts[name] for name in artifacts if name[0] in "456"}
                    disk.put(key, {"source.json": dump_source(source), **texts, **binaries}, parts)

        ahead.at_the_end(finish)
    return CompiledGraph(graph, target, device, begun.call, source, artifacts, the_plan, times, tuner=tuner, autotune=asked)


def compile_registered(graph: Graph, device: Device, codegen: Codegen, artifacts: Artifacts) -> CompiledGraph | None:
    """For a registered device: the same stages, and its ``codegen`` for each kernel; None where that returns None for one.
    Nothing goes to the disk cache, for launchers are live objects."""
    times: dict[str, float] = {}
    plan = fuse(graph, GENERIC, artifacts, times)
    with _timed(times, "codegen"):
        made = {k.nest.name: codegen(k, plan) for k in plan.kernels}
        found = {name: one for name, one in made.items() if one is not None}
        if len(found) < len(made):
            return None
        sources = {k.nest.name: described(k, plan, device.type, found[k.nest.name][0]) for k in plan.kernels}
        source = assemble(plan, sources, GENERIC)
        artifacts["6_kernels.txt"] = "\n\n".join(k.text for k in source.kernels)
        artifacts["6_wrapper.py"] = source.wrapper
    with _timed(times, "build"):
        call = link_registered(source, device, {name: launch for name, (_, launch) in found.items()})
    return CompiledGraph(graph, None, device, call, source, artifacts, plan, times)


def stage_times(parts: Iterable[CompiledGraph]) -> dict[str, float]:
    """Seconds by stage, of several together."""
    times: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.times.items():
            times[stage] = times.get(stage, 0.0) + seconds
    return times


def generate(
    graph: Graph,
    target: Target,
    artifacts: Artifacts,
    times: dict[str, float],
    products: bool = False,
    ready: Callable[[KernelSource], None] | None = None,
) -> tuple[Plan, Source]:
    """Optimize, lower, fuse, and generate code: all stages that need no device. ``products``: matrix products are generated
    too, to be timed beside the library's. ``ready``: see :func:`~tinycompile.codegen.emit.emit`. What the sizes at capture
    decide on the way is told with the source, whether or not it was known before: the source may be used for another capture
    of the same graph."""
    env = ShapeEnv(dict(graph.hints))
    with env.active():
        plan = fuse(graph, target, artifacts, times, products)
        with _timed(times, "codegen"):
            source = replace(emit(plan, target, products and _tf32(), ready), relations=tuple(env.relations))
            name = "6_triton.py" if target.language == "triton" else "6_cpp.cpp"
            artifacts[name] = "\n\n".join([*filter(None, [source.prelude]), *(k.text for k in source.kernels)])
            artifacts["6_wrapper.py"] = source.wrapper
    for kernel in source.kernels:
        log("kernels", kernel.text)
    return plan, source


def _tf32() -> bool:
    """Whether torch lets products of float32 round to TF32."""
    return torch.backends.cuda.matmul.allow_tf32


def fuse(graph: Graph, target: Target, artifacts: Artifacts, times: dict[str, float], products: bool = False) -> Plan:
    """Optimize, lower and plan."""
    check = config.verify_ir
    with _timed(times, "optimize"):
        if check:
            verify_graph(graph)
        optimized = optimize(graph, observe=functools.partial(_keep_pass, artifacts))
    with _timed(times, "lower"):
        loops = lower(optimized, products=target.language == "triton")
        if check:
            verify_loops(loops)
        artifacts.lazy("4_loops.py", lambda: print_loops(loops))
    with _timed(times, "fuse"):
        plan = make_plan(loops, target, products)
        if check:
            verify_plan(plan)
        artifacts.lazy("5_plan.py", lambda: print_plan(plan))
    for d in plan.decisions:
        log("fusion", f"{d.first} + {d.second}: {'fused' if d.fused else 'not fused'} [{d.rule}] {d.why}")
    return plan


def _passes_on_demand(graph: Graph, artifacts: Artifacts) -> None:
    """No pass ran for code from the disk cache: they run when somebody asks what they did."""

    @cache
    def results() -> dict[int, Graph]:
        found: dict[int, Graph] = {}
        optimize(graph, observe=lambda index, name, after: found.update({index: after}))
        return found

    def text(index: int) -> str:
        return print_graph(results()[index])

    for index, (name, _) in enumerate(PASSES):
        artifacts.lazy(_pass_file(index, name), functools.partial(text, index))


def _pass_file(index: int, name: str) -> str:
    return f"3_{index:02d}_{name}.py"


def _keep_pass(artifacts: Artifacts, index: int, name: str, graph: Graph) -> None:
    artifacts.lazy(_pass_file(index, name), lambda: print_graph(graph))


def key_parts(printed_graph: str, hints: Iterable[tuple[str, int]], target: Target, device: Device) -> dict[str, str]:
    """All that the generated code depends on, by name: what the cache key is the hash of."""
    repeatable = {"deterministic": "yes"} if torch.are_deterministic_algorithms_enabled() else {}
    return repeatable | {
        "graph": printed_graph,
        "sizes": ", ".join(f"{name} is {size}" for name, size in sorted(hints)),  # they decide what the ranges don't
        "target": repr(target),
        "device": str(device),
        "config": config.codegen_key(),
        "versions": f"schema {SCHEMA}, python {platform.python_version()}, torch {torch.__version__}, "
        f"triton {_triton_version()}",
        "package": package_hash(),
        "custom ops": " ".join(f"{n}={h}" for n, h in sorted(CUSTOM.items()) if f"ops.{n}(" in printed_graph),
    }


def tuning_parts(parts: dict[str, str], device: Device) -> dict[str, str]:
    """What the choice of a kernel's configuration depends on besides the kernel."""
    card = torch.cuda.get_device_name(max(device.index, 0))
    return {"tuned on": card, **{name: parts[name] for name in ("target", "versions", "package")}}


@cache
def package_hash() -> str:
    """sha256 of the package's own source: an edited compiler never reads what an older one wrote."""
    digest = hashlib.sha256()
    root = os.path.dirname(__file__)
    for folder, folders, names in os.walk(root):  # pathlib takes six times as long, in the first compile of every process
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(n for n in names if n.endswith((".py", ".h"))):
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                digest.update(f"{folder[len(root) :]}/{name}\0".encode() + file.readall())
    return digest.hexdigest()


@cache
def _triton_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


@contextmanager
def _timed(times: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        times[stage] = times.get(stage, 0.0) + time.perf_counter() - start


def stage_order(times: dict[str, float]) -> Sequence[tuple[str, float]]:
    """Stage times in pipeline order."""
    order = ("capture", "aot", "key", "load", "optimize", "lower", "fuse", "codegen", "build", "store")
    return [(s, times[s]) for s in order if s in times]
