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


def binaries(stem: str, launcher: Launcher) -> dict[str, bytes]:
    """The files of one compiled kernel, as ``stem.json`` and ``stem.cubin``."""
    kernel = getattr(launcher, "kernel", None) or getattr(getattr(launcher, "__self__", None), "kernel", None)
    if kernel is None:
        return {}
    metadata = next(Path(p) for name, p in kernel.metadata_group.items() if name.endswith(".json"))
    return {f"{stem}.json": metadata.read_bytes(), f"{stem}.cubin": kernel.asm["cubin"]}


def restore(source: KernelSource, folder: Path, stem: str, device_index: int) -> Launcher:
    """The launcher of a kernel whose files lie in ``folder``; compiled again where they don't."""
    group = {f"{stem}.{kind}": str(folder / f"{stem}.{kind}") for kind in ("json", "cubin")}
    if not all(Path(p).exists() for p in group.values()):
        return triton_build.compile_kernel(source, device_index)
    config = source.configs[0]
    metadata = json.loads(Path(group[f"{stem}.json"]).read_text())
    stored = SimpleNamespace(metadata=SimpleNamespace(**metadata), metadata_group=group)
    with torch.cuda.device(device_index):
        static = static_launcher(source, config, stored)
    if static is not None:
        return static  # Triton itself is not even imported
    kernel = triton_build.compiled_kernel(source, config, group)
    with torch.cuda.device(device_index):
        return make_launcher(source, config, kernel)
