"""Compiled Triton kernels to files and back: a second process loads the cubin and runs none of Triton's compiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tinycompile.ir.source import KernelSource
from tinycompile.runtime import triton_build
from tinycompile.runtime.launch import make_launcher, static_launcher

Launcher = Callable[..., Any]


def binaries(source: KernelSource, launcher: Launcher) -> dict[str, bytes]:
    """The files of one compiled kernel. None for an autotuned one: its choice is made at its first call, after this."""
    kernel = getattr(launcher, "kernel", None) or getattr(getattr(launcher, "__self__", None), "kernel", None)
    if kernel is None:
        return {}
    metadata = next(Path(p) for name, p in kernel.metadata_group.items() if name.endswith(".json"))
    return {f"{source.name}.json": metadata.read_bytes(), f"{source.name}.cubin": kernel.asm["cubin"]}


def restore(source: KernelSource, folder: Path, device_index: int, autotune: bool = False) -> Launcher:
    """The launcher of a kernel whose files lie in ``folder``; compiled again where they don't."""
    group = {f"{source.name}.{kind}": str(folder / f"{source.name}.{kind}") for kind in ("json", "cubin")}
    if not all(Path(p).exists() for p in group.values()):
        return triton_build.compile_kernel(source, device_index, autotune)
    config = source.configs[0]
    metadata = json.loads(Path(group[f"{source.name}.json"]).read_text())
    stored = SimpleNamespace(metadata=SimpleNamespace(**metadata), metadata_group=group)
    with torch.cuda.device(device_index):
        static = static_launcher(source, config, stored)
    if static is not None:
        return static  # Triton itself is not even imported
    kernel = triton_build.compiled_kernel(source, config, group)
    with torch.cuda.device(device_index):
        return make_launcher(source, config, kernel)
