"""``build(source) -> call``: compile and load every kernel, then execute the wrapper's text in a namespace that holds them.

Everything is compiled, loaded and linked before the first launch, so a failure here leaves no effect behind.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.device import Device
from tinycompile.base.errors import BackendError
from tinycompile.base.target import Target
from tinycompile.ir.source import Source
from tinycompile.ops.record import OPS
from tinycompile.runtime import cpp_build, interpreter_worker, triton_build
from tinycompile.runtime.cache import Entry

Call = Callable[..., tuple[Any, ...]]


def build(source: Source, target: Target, device: Device, entry: Entry | None = None) -> tuple[Call, dict[str, Any], dict[str, bytes]]:
    """Returns the callable, its launchers by kernel name, and the binaries made (by file name) for the disk cache.

    ``entry``: a disk cache entry with binaries of an earlier build of the same source. Raises BackendError when code doesn't build.
    """
    launchers, binaries = _launchers(source, target, device, entry)
    namespace: dict[str, Any] = {
        "torch": torch,
        "empty": functools.partial(_empty, device.torch()) if device.type != "cpu" else torch_private.empty_strided_cpu,
        "stream": _stream(device),
        "as_strided": torch.as_strided,
        "restride": restride,
        **launchers,
        **{name: resolve(kind, path) for name, kind, path in source.externs},
    }
    exec(compile(source.wrapper, f"<tinycompile {source.name} wrapper>", "exec"), namespace)
    return namespace["call"], launchers, binaries


def resolve(kind: str, target: str) -> Callable[..., Any]:
    """The function that an extern call runs: an op record's eager kernel, or a dotted path such as ``torch.fft.fft``."""
    if kind == "call":
        return OPS[target].eager
    module, *path = target.split(".")
    found: Any = importlib.import_module(module)
    for name in path:
        found = getattr(found, name)
    return found


def restride(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A copy with the strides that the plan assumed: a library kernel laid its result out in another way."""
    if tuple(tensor.shape) != tuple(size):
        raise BackendError(f"a library call returned shape {tuple(tensor.shape)} where {tuple(size)} was planned")
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
