"""``config``, log channels and artifacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinycompile.base.artifacts import Artifacts
from tinycompile.base.config import CHANNELS, Config, config
from tinycompile.base.logs import enabled, log

pytestmark = pytest.mark.pure


def test_the_environment_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINYCOMPILE_CACHE_DIR", "TINYCOMPILE_DUMP", "TINYCOMPILE_LOG", "TINYCOMPILE_ON_ERROR", "TINYCOMPILE_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    plain = Config()
    assert plain.cache_dir.endswith(".cache/tinycompile") and "~" not in plain.cache_dir
    assert (plain.on_error, plain.disk_cache, plain.dump_dir, plain.log) == ("eager", True, None, frozenset())
    assert (plain.recompile_limit, plain.dynamic, plain.max_autotune, plain.verify_ir) == (8, None, False, False)
    monkeypatch.setenv("TINYCOMPILE_VERIFY", "1")
    assert Config().verify_ir
    monkeypatch.setenv("TINYCOMPILE_CACHE_DIR", "/some/where")
    monkeypatch.setenv("TINYCOMPILE_DUMP", "out")
    monkeypatch.setenv("TINYCOMPILE_LOG", "graph, guards,")
    monkeypatch.setenv("TINYCOMPILE_ON_ERROR", "raise")
    changed = Config()
    assert (changed.cache_dir, changed.dump_dir, changed.on_error) == ("/some/where", "out", "raise")
    assert changed.log == {"graph", "guards"}
    monkeypatch.setenv("TINYCOMPILE_LOG", "all")
    assert Config().log == CHANNELS


def test_wrong_words_in_the_environment_are_named_and_not_heeded() -> None:
    code = "from tinycompile.base.config import config; print(sorted(config.log), config.on_error)"
    env = {"TINYCOMPILE_LOG": "grpah,guards", "TINYCOMPILE_ON_ERROR": "rise", "PATH": ""}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "['guards'] eager"
    assert "grpah" in done.stderr and "fusion" in done.stderr and "'rise'" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_error", "ignore"),
        ("recompile_limit", 0),
        ("recompile_limit", True),
        ("log", "graph"),
        ("log", {"x"}),
        ("disk_cache", 1),
    ],
)
def test_a_wrong_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"config.{name} can't be .*: it is "):
        setattr(config, name, value)


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no entry 'recompil_limit'"):
        config.recompil_limit = 3  # type: ignore[attr-defined]


def test_patch_restores_also_after_an_error() -> None:
    before = str(config)
    with pytest.raises(ZeroDivisionError), config.patch(recompile_limit=1, log={"cache"}):
        assert config.recompile_limit == 1 and config.log == frozenset({"cache"})
        1 / 0
    with pytest.raises(ValueError), config.patch(recompile_limit=1, dynamic="yes"):
        pass
    assert str(config) == before


def test_codegen_key_has_what_changes_code_and_nothing_else() -> None:
    key = config.codegen_key()
    with config.patch(max_autotune=not config.max_autotune):
        assert config.codegen_key() != key
    with config.patch(recompile_limit=99, cache_dir="elsewhere", log={"graph"}):
        assert config.codegen_key() == key


def test_log_prints_only_when_its_channel_is_on(capsys: pytest.CaptureFixture[str]) -> None:
    log("graph", "unheard")
    with config.patch(log={"graph"}):
        assert enabled("graph") and not enabled("cache")
        log("graph", "one\ntwo")
        log("cache", "unheard")
    captured = capsys.readouterr()
    assert captured.err == "[graph] one\n[graph] two\n" and captured.out == ""
    with pytest.raises(ValueError, match="unknown log channel"):
        log("grpah", "x")


def test_artifacts_keep_their_order_and_write_files(tmp_path: Path) -> None:
    texts = Artifacts()
    texts["4_loops.py"] = "loops"
    texts["1_graph.py"] = "graph\n"
    assert list(texts) == ["4_loops.py", "1_graph.py"] and len(texts) == 2 and "4_loops.py" in texts
    assert texts["4_loops.py"] == "loops" and texts.get("x", "none") == "none"
    folder = texts.write(tmp_path / "a" / "b")
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"4_loops.py": "loops\n", "1_graph.py": "graph\n"}


@pytest.mark.parametrize("name", ["", "../x", "a/b", "/x"])
def test_an_artifact_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        Artifacts()[name] = "text"
