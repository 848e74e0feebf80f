"""What the cache key covers of the compiler itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinycompile import compiler

pytestmark = pytest.mark.pure


def test_any_change_of_the_source_changes_the_packages_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's text, its name, its folder, one more of them; not what Python keeps beside them."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "__pycache__").mkdir()
    (tmp_path / "compiler.py").write_text("one = 1\n")
    monkeypatch.setattr(compiler, "__file__", str(tmp_path / "compiler.py"))
    seen = [compiler.package_hash.__wrapped__()]
    for kept in ("notes.txt", "ops/__pycache__/compiler.py"):
        (tmp_path / kept).write_text("one = 2\n")
        assert compiler.package_hash.__wrapped__() == seen[0]
    (tmp_path / "compiler.py").write_text("one = 2\n")
    seen.append(compiler.package_hash.__wrapped__())
    (tmp_path / "compiler.py").rename(tmp_path / "ops" / "compiler.py")
    seen.append(compiler.package_hash.__wrapped__())
    (tmp_path / "ops" / "compiler.py").rename(tmp_path / "ops" / "other.py")
    seen.append(compiler.package_hash.__wrapped__())
    (tmp_path / "ops" / "prelude.h").write_text("")
    seen.append(compiler.package_hash.__wrapped__())
    assert len(set(seen)) == len(seen)
