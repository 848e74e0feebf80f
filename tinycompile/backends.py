"""Backends by name, and the choice among them per graph."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import config
from tinycompile.base.device import Device
from tinycompile.base.errors import BackendError
from tinycompile.base.logs import log, warn_once
from tinycompile.base.meta import TensorMeta
from tinycompile.base.target import H100, Target
from tinycompile.compiler import CompiledGraph, compile_graph, compile_registered
from tinycompile.eager.device_memory import is_registered, registered
from tinycompile.ir.graph import Graph
from tinycompile.ir.graph_module import GraphModule
from tinycompile.ir.graph_text import print_graph
from tinycompile.passes.pipeline import optimize
from tinycompile.regions import OpByOp, compile_regions
from tinycompile.runtime import cpp_build, overlap
from tinycompile.runtime.cuda_graphs import graphed
from tinycompile.runtime.registered import run_by_ops

CompileFn = Callable[[Graph, Sequence[Any], Artifacts], CompiledGraph]
Backend = str | Callable[..., Any] | None

_REGISTERED: dict[str, CompileFn] = {}


def register_backend(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Register ``fn(graph_module, example_inputs) -> callable`` under ``name`` (default: its own). Usable as a decorator.

    The callable takes the graph's inputs and returns a tuple of its outputs. Raises ValueError if the name is taken.
    """
    if fn is None:
        return functools.partial(register_backend, name=name)
    if not callable(fn):
        raise TypeError(f"a backend is a function, not {type(fn).__name__}")
    key = name or fn.__name__
    if key in _REGISTERED:
        raise ValueError(f"backend {key!r} is registered already")
    _REGISTERED[key] = functools.partial(_call_user_backend, fn)
    return fn


def list_backends() -> list[str]:
    """The names that ``backend=`` takes, sorted."""
    return sorted(_REGISTERED)


def lookup_backend(backend: Backend, *, mode: str = "default") -> CompileFn:
    """The compile function of a backend: a name, a callable, or None (chosen per graph). ``mode``: Triton's kernels time their
    candidate configurations in ``max-autotune``, graphs on CUDA are recorded in ``reduce-overhead``. Raises BackendError for
    unknown names."""
    if backend in (None, "triton"):
        compile_one = _default if backend is None else _triton
        if mode == "max-autotune":
            return functools.partial(compile_one, autotune=True)
        if mode == "reduce-overhead":
            return functools.partial(_recorded, functools.partial(compile_one, overlaps=True))
        return compile_one
    if callable(backend):
        return functools.partial(_call_user_backend, backend)
    if backend not in _REGISTERED:
        raise BackendError(f"unknown backend {backend!r}; there are {', '.join(list_backends())}{_nearest(backend)}")
    return _REGISTERED[backend]


def _nearest(name: object) -> str:
    close = difflib.get_close_matches(str(name), list_backends(), 1)
    return f". Did you mean {close[0]!r}?" if close else ""


def takes_halves(backend: Backend) -> bool:
    """Whether a backend gets a forward and a backward graph where inputs require grad; others get the captured graph itself."""
    return backend in (None, "triton", "cpp", "aot_eager")


def generates_code(backend: Backend) -> bool:
    """Whether a backend is one of ours that writes kernels."""
    return backend in (None, "triton", "cpp")


def graph_devices(graph: Graph) -> set[Device]:
    """Where its tensors are."""
    return {n.meta.device for n in graph.nodes if isinstance(n.meta, TensorMeta)}


def graph_device(graph: Graph) -> Device | None:
    """The one device of all tensors of the graph; None when there are several or none."""
    found = graph_devices(graph)
    return found.pop() if len(found) == 1 else None


def touches_registered(graph: Graph) -> bool:
    """Whether some tensor is on a registered device: the graph's tensors are ours then, and our tape follows them."""
    return any(map(is_registered, graph_devices(graph)))


@functools.cache
def cuda_target(index: int) -> Target:
    """The card's numbers, read from torch."""
    p = torch.cuda.get_device_properties(index)
    shared = getattr(p, "shared_memory_per_block_optin", H100.shared)
    return Target("triton", f"sm_{p.major}{p.minor}", p.multi_processor_count, p.L2_cache_size, shared)


def _default(
    graph: Graph, inputs: Sequence[Any], artifacts: Artifacts, autotune: bool = False, overlaps: bool = False
) -> CompiledGraph:
    device = graph_device(graph)
    try:
        if is_registered(device):
            return _on_registered(graph, inputs, artifacts)
        if device is None and not touches_registered(graph):
            one = functools.partial(_default, autotune=autotune, overlaps=overlaps)
            apart = compile_regions(graph, one, artifacts)
            if apart is not None:
                return apart
        if device is not None and device.type == "cuda":
            return _triton(graph, inputs, artifacts, autotune, overlaps)
        if device is not None and device.type == "cpu":
            if cpp_build.compiler() is not None:
                return _cpp(graph, inputs, artifacts, autotune)
            warn_once(
                "no C++ compiler (g++ or clang++) was found: CPU graphs run op by op. `python -m tinycompile doctor` says more."
            )
    except BackendError as error:  # a compiler that is there and does not work, say
        if config.on_error == "raise":
            raise
        log("kernels", f"{graph.name}: {error}")
        words = " ".join(str(error).splitlines()[:2])
        warn_once(
            f"a kernel could not be built ({words}): its graph runs op by op. TINYCOMPILE_LOG=kernels shows all that was said.",
            of="a kernel could not be built",
        )
    return _eager(graph, inputs, artifacts)


def _triton(
    graph: Graph, inputs: Sequence[Any], artifacts: Artifacts, autotune: bool = False, overlaps: bool = False
) -> CompiledGraph:
    device = graph_device(graph)
    if device is None or device.type not in ("cuda", "cpu"):
        log("kernels", f"{graph.name}: tensors on several devices or on none run op by op")
        return _eager(graph, inputs, artifacts)
    target = cuda_target(max(device.index, 0)) if device.type == "cuda" else H100
    if overlaps and device.type == "cuda" and overlap.possible(target):
        target = replace(target, overlaps=True)
    return compile_graph(graph, target, device, artifacts, autotune)


def _recorded(compile_one: CompileFn, graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
    """Through CUDA graphs, where they can be used; each half of a training graph through its own. What a forward saves for
    its backward is copied out of the recording, as every result is, so it outlives the next replay."""
    compiled = compile_one(graph, inputs, artifacts)
    if compiled.source is None:
        log("kernels", f"{graph.name}: no CUDA graph: it runs op by op, and torch's own tape can't be replayed")
        return compiled
    return replace(compiled, call=graphed(compiled.call, graph, compiled.device, compiled.source.donated))


def _cpp(graph: Graph, inputs: Sequence[Any], artifacts: Artifacts, autotune: bool = False) -> CompiledGraph:
    device = graph_device(graph)
    if device is None or device.type != "cpu":
        raise BackendError('backend="cpp" takes graphs on CPU tensors only')
    if cpp_build.compiler() is None:
        raise BackendError('backend="cpp" needs g++ or clang++ on the PATH')
    return compile_graph(graph, cpp_build.cpu_target(), device, artifacts, autotune)


def _on_registered(graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
    """By the device's ``codegen``; op by op where it has none or leaves a kernel out, or where our tape must follow."""
    here, device = registered(), graph_device(graph)
    assert here is not None and device is not None
    artifacts["1_graph.py"] = print_graph(graph)
    by_ops = CompiledGraph(graph, None, device, functools.partial(run_by_ops, graph), None, artifacts)
    if here.codegen is None or (torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs)):
        return by_ops
    made = compile_registered(graph, device, here.codegen, artifacts)
    return by_ops if made is None else made


def _eager(graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
    artifacts["1_graph.py"] = print_graph(graph)
    return CompiledGraph(graph, None, graph_device(graph), functools.partial(_run, graph), None, artifacts)


def _run(graph: Graph, *inputs: Any) -> tuple[Any, ...]:
    return OpByOp(graph).run(*inputs)


def _aot_eager(graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
    return _eager(optimize(graph), inputs, artifacts)


def _call_user_backend(fn: Callable[..., Any], graph: Graph, inputs: Sequence[Any], artifacts: Artifacts) -> CompiledGraph:
    artifacts["1_graph.py"] = print_graph(graph)
    name = getattr(fn, "__name__", repr(fn))
    try:
        call = fn(GraphModule(graph), list(inputs))
    except Exception as error:
        raise BackendError(f"backend {name!r} raised {type(error).__name__} for {graph.name}: {error}") from error
    if not callable(call):
        raise BackendError(f"backend {name!r} returned {call!r} for {graph.name}, which can't be called")
    return CompiledGraph(graph, None, graph_device(graph), call, None, artifacts)


_REGISTERED.update(triton=_triton, cpp=_cpp, eager=_eager, aot_eager=_aot_eager)
