"""The key by which Triton tells its own versions apart: from what the file system says, once."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinycompile.runtime.triton_key import files_key, install

pytestmark = pytest.mark.pure


def package(folder: Path) -> Path:
    for name in ("compiler/a.py", "backends/nvidia/b.py", "_C/libtriton.so", "language/c.py", "runtime/cache.py", "tools/d.py"):
        path = folder / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, ns=(0, 10**18))
    return folder / "triton"


def test_every_covered_file_counts(tmp_path: Path) -> None:
    root = package(tmp_path)
    before = files_key(root)
    assert files_key(root) == before
    for name in ("compiler/a.py", "backends/nvidia/b.py", "_C/libtriton.so", "runtime/cache.py"):
        os.utime(root / name, ns=(0, 10**18 + 1))
        assert files_key(root) != before
        before = files_key(root)
    (root / "language/c.py").write_text("longer than it was")
    assert files_key(root) != before


def test_installed_where_there_is_such_a_function(tmp_path: Path) -> None:
    root = package(tmp_path)
    cache = SimpleNamespace(triton_key=lambda: "slow")
    triton = SimpleNamespace(__version__="3.6.0", __file__=str(root / "__init__.py"), runtime=SimpleNamespace(cache=cache))
    install(triton)
    assert cache.triton_key() == f"3.6.0-{files_key(root)}"
    other = SimpleNamespace(
        __version__="9", __file__=str(root / "__init__.py"), runtime=SimpleNamespace(cache=SimpleNamespace())
    )
    install(other)
    assert not hasattr(other.runtime.cache, "triton_key")
