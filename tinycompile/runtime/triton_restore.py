"""Compiled Triton kernels to files and back: a second process loads the cubin and runs none of Triton's compiler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tinycompile.ir.source import KernelSource
from tinycompile.runtime import triton_build
from tinycompile.runtime.cache import Entry
from tinycompile.runtime.launch import make_launcher, static_launcher

Launcher = Callable[..., Any]


TWINS = "twins.json"  # by kernel, under whose name its files are kept: layers have many that differ in names alone


def compiled_of(launcher: Launcher) -> Any | None:
    """The compiled kernel behind a launcher; None where it has none."""
    return getattr(launcher, "kernel", None) or getattr(getattr(launcher, "__self__", None), "kernel", None)


def binaries(stem: str, launcher: Launcher) -> dict[str, bytes]:
    """The files of one compiled kernel, as ``stem.json`` and ``stem.cubin``."""
    kernel = compiled_of(launcher)
    if kernel is None:
        return {}
    metadata = next(Path(p) for name, p in kernel.metadata_group.items() if name.endswith(".json"))
    return {f"{stem}.json": metadata.read_bytes(), f"{stem}.cubin": kernel.asm["cubin"]}


def all_binaries(launchers: Mapping[str, Launcher]) -> dict[str, bytes]:
    """The files of several, by name: once for those that share a compiled kernel."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(compiled_of(launcher)), name) for name, launcher in launchers.items()}
    files = {TWINS: json.dumps(names).encode()}
    for name in first.values():
        files.update(binaries(name, launchers[name]))
    return files


@dataclass(frozen=True)
class Stored:
    """A compiled kernel on disk, with what a launcher asks of Triton's own."""

    metadata: Any
    metadata_group: dict[str, str]
    asm: dict[str, bytes]


def restore_all(sources: Sequence[KernelSource], entry: Entry, device_index: int) -> dict[str, Launcher]:
    """The launchers of kernels whose files :func:`all_binaries` made, by name."""
    names: dict[str, str] = json.loads(entry.text(TWINS)) if TWINS in entry.files else {}
    stems = {source.name: names.get(source.name, source.name) for source in sources}
    stored = {stem: _stored(entry.folder, stem) for stem in dict.fromkeys(stems.values())}
    return {source.name: _restored(source, stored[stems[source.name]], device_index) for source in sources}


def restore(source: KernelSource, folder: Path, stem: str, device_index: int) -> Launcher:
    """The launcher of a kernel whose files lie in ``folder``; compiled again where they don't."""
    return _restored(source, _stored(folder, stem), device_index)


def _stored(folder: Path, stem: str) -> Stored | None:
    group = {f"{stem}.{kind}": str(folder / f"{stem}.{kind}") for kind in ("json", "cubin")}
    metadata, cubin = (Path(p) for p in group.values())
    if not metadata.exists() or not cubin.exists():
        return None
    return Stored(SimpleNamespace(**json.loads(metadata.read_text())), group, {"cubin": cubin.read_bytes()})


def _restored(source: KernelSource, stored: Stored | None, device_index: int) -> Launcher:
    if stored is None:
        return triton_build.compile_kernel(source, device_index)
    config = source.configs[0]
    with torch.cuda.device(device_index):
        static = static_launcher(source, config, stored)
    if static is not None:
        return static  # Triton itself is not even imported
    kernel = triton_build.compiled_kernel(source, config, stored.metadata_group)
    with torch.cuda.device(device_index):
        return make_launcher(source, config, kernel)
