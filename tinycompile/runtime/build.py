"""``build(source) -> call``: compile and load every kernel, then execute the wrapper's text in a namespace that holds them.

Everything is compiled, loaded and linked before the first launch, so a failure here leaves no effect behind.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.device import Device
from tinycompile.base.errors import BackendError, InternalError
from tinycompile.base.target import Target
from tinycompile.ir.source import KernelSource, Source
from tinycompile.ops.in_place import names_a_write
from tinycompile.ops.record import OPS
from tinycompile.runtime import cpp_build, interpreter_worker, triton_build, triton_restore
from tinycompile.runtime.ahead import Ahead
from tinycompile.runtime.arrange import arrange
from tinycompile.runtime.autotune import STEM, Tuned, Tuner, only
from tinycompile.runtime.cache import Entry
from tinycompile.runtime.contest import Slot
from tinycompile.runtime.counters import Counters
from tinycompile.runtime.linked import Linked
from tinycompile.runtime.twins import canonical_cpp

Call = Callable[..., tuple[Any, ...]]
Launcher = Callable[..., Any]
LIBRARY = "kernels.so"


def build(
    source: Source, target: Target, device: Device, entry: Entry | None = None, tuner: Tuner | None = None
) -> tuple[Call, dict[str, bytes]]:
    """The callable, and the binaries made (by file name) for the disk cache.

    ``entry``: a disk cache entry with the binaries of an earlier build of the same source. ``tuner``: kernels with several
    configurations time them at their first call, unless it recalls a choice. Raises BackendError when code doesn't build.
    """
    if target.language == "cpp":
        launchers, binaries = _build_cpp(source, target, entry)
    elif device.type == "cpu":
        sure = [k for k in source.kernels if k.name not in source.offered]
        launchers, binaries = {k.name: interpreter_worker.interpreted(k) for k in sure}, {}
    else:
        launchers, binaries = _build_triton(source, max(device.index, 0), entry, tuner)
    return link(source, device, launchers, tuner), binaries


@dataclass(frozen=True)
class Begun:
    """A callable whose kernels may still be on their way. It must not be called before ``finish()``, which waits for them, puts
    them in place, and returns the binaries made, as :func:`build` does. Raises BackendError when code doesn't build."""

    call: Call
    finish: Callable[[], dict[str, bytes]]


def begin(source: Source, target: Target, device: Device, ahead: Ahead, tuner: Tuner | None = None) -> Begun:
    """:func:`build` without waiting, where ``ahead`` builds the kernels."""
    if tuner is not None or (target.language == "triton" and device.type == "cpu"):
        call, binaries = build(source, target, device, None, tuner)
        return Begun(call, lambda: binaries)
    waiting = [k for k in source.kernels if k.name not in source.offered]
    call, linked = _linked(source, device, dict.fromkeys((k.name for k in waiting), _unbuilt), None)
    job = ahead.submit(_build_cpp, source, target, None) if target.language == "cpp" else None

    def finish() -> dict[str, bytes]:
        launchers, binaries = (
            job.result() if job is not None else _build_triton(source, max(device.index, 0), None, None, ahead)
        )
        linked.update(launchers)
        return binaries

    return Begun(call, finish)


def _unbuilt(*_: Any) -> None:
    raise InternalError("a kernel was launched before it was built")


def link(source: Source, device: Device, launchers: Mapping[str, Launcher], tuner: Tuner | None = None) -> Call:
    """The wrapper's function, with ``launchers`` (by kernel name) and all else that its text names. ``tuner``: decides the
    source's choices; without one they take the library's way."""
    return _linked(source, device, launchers, tuner)[0]


def _linked(source: Source, device: Device, launchers: Mapping[str, Launcher], tuner: Tuner | None) -> tuple[Call, Linked]:
    namespace: dict[str, Any] = {
        "torch": torch,
        "empty": torch_private.empty_strided_cpu if device.type == "cpu" else torch_private.empty_strided_cuda,
        "stream": functools.partial(torch_private.raw_stream, max(device.index, 0)) if device.type == "cuda" else _no_stream,
        "counters": Counters(max(device.index, 0)),
        "as_strided": torch.as_strided,
        "restride": restride,
        **launchers,
        **{name: resolve(kind, path) for name, kind, path in source.externs},
    }
    slots = {name: Slot() for name in source.offered}
    namespace.update(slots)
    linked = Linked(source, namespace)
    for name, launcher in launchers.items():
        if isinstance(launcher, Tuned):
            launcher.settled = functools.partial(linked.replace, name)  # the wrapper then calls the winner itself
    call: Call = linked.link()
    for choice in source.choices:
        arrange(choice, source, device, linked, slots, tuner)
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        call = _on_device(call, max(device.index, 0))
    return call, linked


def _no_stream() -> int:
    return 0


def _on_device(call: Call, index: int) -> Call:
    """Several cards: allocations and launches go to the current device, so make it the graph's."""

    def switched(*inputs: Any) -> tuple[Any, ...]:
        with torch.cuda.device(index):
            return call(*inputs)

    return switched


def _build_cpp(source: Source, target: Target, entry: Entry | None) -> tuple[dict[str, Launcher], dict[str, bytes]]:
    if not source.kernels:
        return {}, {}
    keys = [canonical_cpp(k.text, source.prelude) for k in source.kernels]
    first: dict[str, KernelSource] = {}
    for kernel, key in zip(source.kernels, keys, strict=True):
        first.setdefault(key, kernel)
    binaries: dict[str, bytes] = {}
    if entry is not None:
        path = entry.path(LIBRARY)
    else:
        path = cpp_build.compile_functions(source.prelude, [k.text for k in first.values()], target)
        binaries[LIBRARY] = path.read_bytes()
    library = cpp_build.load(path)
    pairs = zip(source.kernels, keys, strict=True)
    return {k.name: cpp_build.launcher(k, library, first[key].name) for k, key in pairs}, binaries


def _build_triton(
    source: Source, index: int, entry: Entry | None, tuner: Tuner | None, ahead: Ahead | None = None
) -> tuple[dict[str, Launcher], dict[str, bytes]]:
    sure = [k for k in source.kernels if k.name not in source.offered]
    tuned = [k for k in sure if tuner is not None and len(k.configs) > 1]
    plain = [k for k in sure if k not in tuned]
    launchers = _tuned(tuned, index, tuner) if tuner is not None else {}
    if entry is not None:
        return launchers | triton_restore.restore_all(plain, entry, index), {}
    compiled = triton_build.compile_kernels(plain, index, ahead)
    made = {kernel.name: launcher for kernel, launcher in zip(plain, compiled, strict=True)}
    return launchers | made, triton_restore.all_binaries(made)


def _tuned(kernels: Sequence[KernelSource], index: int, tuner: Tuner) -> dict[str, Launcher]:
    """The winners of earlier tunings, and launchers that will tune."""
    launchers: dict[str, Launcher] = {}
    open_ = []
    for kernel in kernels:
        choice = tuner.recall(kernel)
        if choice is None:
            open_.append(kernel)
        else:
            launchers[kernel.name] = triton_restore.restore(only(kernel, choice.config), choice.entry.folder, STEM, index)
    candidates = triton_build.compile_candidates([(k, k.configs) for k in open_], index)
    for kernel, found in zip(open_, candidates, strict=True):
        launchers[kernel.name] = Tuned(kernel, found, functools.partial(_keep, tuner, kernel, found))
    return launchers


def _keep(tuner: Tuner, kernel: KernelSource, found: Sequence[Launcher], best: int, seconds: Sequence[float]) -> None:
    tuner.keep(kernel, best, seconds, triton_restore.binaries(STEM, found[best]))


def resolve(kind: str, target: str) -> Callable[..., Any]:
    """The function that an extern call runs: an op record's eager kernel, or a dotted path such as ``torch.fft.fft``."""
    if kind == "call":
        return OPS[target].eager
    module, *path = target.split(".")
    found: Any = importlib.import_module(module)
    for name in path:
        found = getattr(found, name)
    return functools.partial(uncounted, found) if names_a_write(target) else found


def uncounted(fn: Callable[..., Any], written: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A write to an input that does not count up its version: the code around the graph knows how often the program wrote."""
    fn(written.data, *args, **kwargs)
    return written


def restride(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A copy with the strides that the plan assumed: a library kernel laid its result out in another way."""
    if tuple(tensor.shape) != tuple(size):
        raise BackendError(f"a library call returned shape {tuple(tensor.shape)} where {tuple(size)} was planned")
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
