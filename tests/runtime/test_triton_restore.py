"""Compiled kernels in the disk cache: twins share files, and come back each with a launcher of its own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tinycompile.base import torch_private
from tinycompile.ir.source import Config, KernelArg, KernelSource
from tinycompile.runtime import triton_restore
from tinycompile.runtime.cache import DiskCache

pytestmark = pytest.mark.pure


def kernel(name: str) -> KernelSource:
    args = (KernelArg("x", "pointer", "float32"),)
    return KernelSource(name, "triton", f"def {name}(x_ptr): pass\n", args, (3,), (Config(),))


def launcher(folder: Path, name: str, code: bytes) -> Any:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, "shared": 0, "num_warps": 4}))
    return SimpleNamespace(kernel=SimpleNamespace(metadata_group={path.name: str(path)}, asm={"cubin": code}))


def test_twins_share_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = launcher(tmp_path, "first", b"one"), launcher(tmp_path, "third", b"three")
    twin = SimpleNamespace(kernel=one.kernel)
    files = triton_restore.all_binaries({"first": one, "second": twin, "third": other})
    assert sorted(files) == ["first.cubin", "first.json", "third.cubin", "third.json", triton_restore.TWINS]
    disk = DiskCache(str(tmp_path / "cache"))
    parts = {"graph": "twins"}
    disk.put(DiskCache.key(parts), files, parts)
    entry = disk.get(DiskCache.key(parts))
    assert entry is not None
    loads, launched = list[Any](), list[Any]()

    def load(path: str, name: str, shared: int, device: int) -> tuple[int, int, int]:
        loads.append((Path(path).read_bytes(), name))
        return len(loads), 32, 0

    torchs = SimpleNamespace(_load_kernel=load, _launch_kernel=lambda *args: launched.append((args[0], args[7])))
    monkeypatch.setattr(torch_private, "static_launcher", torchs)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    made = triton_restore.restore_all([kernel("first"), kernel("second"), kernel("third")], entry, -1)
    assert loads == [(b"one", "first"), (b"three", "third")]
    tensors = [torch.zeros(1) for _ in range(3)]
    for (_, run), x in zip(made.items(), tensors, strict=True):
        run(0, x)
    assert launched == [(1, (tensors[0].data_ptr(),)), (1, (tensors[1].data_ptr(),)), (2, (tensors[2].data_ptr(),))]


def test_what_is_not_there_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_restore.triton_build, "compile_kernel", lambda source, index: f"compiled {source.name}")
    assert triton_restore.restore(kernel("lost"), tmp_path, "lost", 0) == "compiled lost"
