"""The cache on disk: what is put is what is got; whatever is wrong with an entry or a folder is a miss, never a failure."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tinycompile.base.errors import FallbackWarning
from tinycompile.runtime.cache import META, DiskCache, Entry

pytestmark = pytest.mark.pure

PARTS = {"graph": "def f(x):\n    return x + 1\n", "target": "sm_90", "torch": "2.13.0"}
KEY = DiskCache.key(PARTS)
FILES = {"kernel.py": "print('hello')\n", "kernel.cubin": bytes(range(256)) * 20, "empty": b""}


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def put(cache: DiskCache) -> Entry:
    entry = cache.put(KEY, FILES, PARTS)
    assert entry is not None
    return entry


def test_a_new_cache_is_empty(cache: DiskCache) -> None:
    assert cache.get(KEY) is None
    assert cache.ls() == []
    assert cache.clear() == (0, 0)
    assert not cache.root.exists(), "looking must not create anything"


def test_what_is_put_is_got(cache: DiskCache) -> None:
    put(cache)
    entry = DiskCache(cache.root).get(KEY)
    assert entry is not None
    assert entry.text("kernel.py") == FILES["kernel.py"]
    assert entry.files["kernel.cubin"] == FILES["kernel.cubin"]
    assert entry.path("kernel.cubin").read_bytes() == FILES["kernel.cubin"]
    assert entry.parts == PARTS
    assert entry.size == len(FILES["kernel.py"]) + 256 * 20


def test_layout_and_modes(cache: DiskCache) -> None:
    entry = put(cache)
    assert entry.folder == cache.root / "v1" / KEY[:2] / KEY
    for folder in (cache.root, cache.folder, entry.folder.parent, entry.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(cache.folder)) == [KEY[:2]], "no temporary folder is left"


def test_key_depends_on_every_name_and_text() -> None:
    variants = [PARTS, {**PARTS, "target": "sm_80"}, {**PARTS, "more": ""}, {"graph": PARTS["graph"]}, {"ab": "c"}, {"a": "bc"}]
    assert len({DiskCache.key(parts) for parts in variants}) == len(variants)
    assert DiskCache.key(dict(reversed(PARTS.items()))) == KEY


def test_key_must_be_that_of_the_parts(cache: DiskCache) -> None:
    with pytest.raises(ValueError, match="not that of these parts"):
        cache.put("0" * 64, FILES, PARTS)


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".", "..", META, "/etc/passwd"])
def test_file_names_are_plain(cache: DiskCache, name: str) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        cache.put(KEY, {name: b""}, PARTS)


def _edit_meta(folder: Path, **changes: object) -> None:
    meta = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps({**meta, **changes}))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGE = {
    "file cut off": lambda f: _cut(f / "kernel.cubin"),
    "file changed": lambda f: (f / "kernel.py").write_text("print('jello')\n"),
    "file missing": lambda f: (f / "kernel.py").unlink(),
    "empty file filled": lambda f: (f / "empty").write_text("x"),
    "meta missing": lambda f: (f / META).unlink(),
    "meta cut off": lambda f: _cut(f / META),
    "meta empty": lambda f: (f / META).write_text(""),
    "meta no json": lambda f: (f / META).write_bytes(b"\xff\xfe\x00"),
    "meta other type": lambda f: (f / META).write_text("[1, 2]"),
    "meta lacks files": lambda f: (f / META).write_text('{"schema": 1}'),
    "meta parts changed": lambda f: _edit_meta(f, parts={**PARTS, "target": "sm_80"}),
    "meta other schema": lambda f: _edit_meta(f, schema=0),
    "meta names a path": lambda f: _edit_meta(f, files={"../../x": {"sha256": "", "bytes": 0}}),
    "folder writable by others": lambda f: f.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_a_miss_and_is_replaced(cache: DiskCache, damage) -> None:
    damage(put(cache).folder)
    assert cache.get(KEY) is None
    put(cache)
    entry = cache.get(KEY)
    assert entry is not None and entry.text("kernel.py") == FILES["kernel.py"]
    assert sorted(os.listdir(cache.folder)) == [KEY[:2]]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_put_replaces_a_damaged_entry_that_nobody_looked_at(cache: DiskCache, damage) -> None:
    damage(put(cache).folder)
    put(cache)
    assert cache.get(KEY) is not None


def test_a_foreign_folder_is_a_miss(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert cache.get(KEY) is None
    assert cache.ls() == []
    with pytest.warns(FallbackWarning, match="belongs to another user"):
        assert cache.put(KEY, FILES, PARTS) is None


def test_a_link_in_place_of_the_folder_is_not_followed(cache: DiskCache, tmp_path: Path) -> None:
    put(cache)
    os.rename(cache.folder, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", cache.folder)
    assert cache.get(KEY) is None


def test_a_read_only_folder_gives_one_warning() -> None:
    cache = DiskCache("/proc/tinycompile")  # nobody, not even root, can make a folder there
    with pytest.warns(FallbackWarning, match="TINYCOMPILE_CACHE_DIR") as caught:
        assert cache.put(KEY, FILES, PARTS) is None
        assert cache.put(KEY, FILES, PARTS) is None
        assert cache.get(KEY) is None
    assert len(caught) == 1
    assert cache.problem() is not None


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(FallbackWarning):
        assert cache.put(KEY, FILES, PARTS) is None
    assert cache.get(KEY) is None
    assert cache.clear() == (0, 0)


def test_a_full_disk_leaves_nothing_behind(cache: DiskCache) -> None:
    """The file size limit makes write() fail as a full disk does: after some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.warns(FallbackWarning) as caught:
            assert cache.put(KEY, FILES, PARTS) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caught) == 1
    assert cache.get(KEY) is None
    assert sorted(os.listdir(cache.folder)) == [KEY[:2]]
    put(cache)


def test_problem_is_none_when_all_is_well(cache: DiskCache) -> None:
    assert cache.problem() is None


def test_threads_that_put_and_get_the_same_entry(cache: DiskCache) -> None:
    def work(i: int) -> bool:
        return put(cache).text("kernel.py") == FILES["kernel.py"] and cache.get(KEY) is not None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
    assert sorted(os.listdir(cache.folder)) == [KEY[:2]]


RACER = """
    import sys
    from tinycompile.runtime.cache import DiskCache
    cache = DiskCache(sys.argv[1])
    for i in range(100):
        parts = {"n": str(i % 7)}
        key = DiskCache.key(parts)
        data = (str(i % 7) * 5000).encode()
        entry = cache.get(key) or cache.put(key, {"data": data}, parts)
        assert entry is not None and entry.files["data"] == data
        if i % 10 == int(sys.argv[2]):
            (entry.folder / "data").write_bytes(b"")  # damage it under the others' feet
"""


def test_processes_at_once(cache: DiskCache) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(RACER), str(cache.root), str(i)], stderr=subprocess.PIPE
        )
        for i in range(2)
    ]
    for racer in racers:
        _, err = racer.communicate(timeout=120)
        assert racer.returncode == 0, err.decode()


def test_why_missed_names_the_part_and_the_line(cache: DiskCache) -> None:
    put(cache)
    changed = {**PARTS, "graph": "def f(x):\n    return x + 2\n"}
    miss = cache.why_missed(changed)
    assert miss.nearest == KEY
    assert [name for name, _, _ in miss.differences] == ["graph"]
    assert str(miss).endswith("graph line 2: 'return x + 1' then, 'return x + 2' now")


def test_why_missed_takes_the_nearest_entry(cache: DiskCache) -> None:
    for parts in ({**PARTS, "target": "sm_80", "torch": "2.11"}, {**PARTS, "torch": "2.12"}, {"other": "x"}):
        cache.put(DiskCache.key(parts), {}, parts)
    assert str(cache.why_missed(PARTS)).endswith("differs in torch: '2.12' then, '2.13.0' now")


def test_why_missed_when_nothing_is_near(cache: DiskCache) -> None:
    assert "no entry" in str(cache.why_missed(PARTS))
    cache.put(DiskCache.key({"a": "1"}), {}, {"a": "1"})
    assert cache.why_missed(PARTS).nearest is None


def test_ls_show_clear(cache: DiskCache) -> None:
    put(cache)
    other = {**PARTS, "target": "sm_80"}
    cache.put(DiskCache.key(other), {"one": b"1"}, other)
    assert {entry.key for entry in cache.ls()} == {KEY, DiskCache.key(other)}
    assert cache.show(KEY[:10]).parts == PARTS
    with pytest.raises(KeyError, match="2 entries start with ''"):
        cache.show("")
    with pytest.raises(KeyError, match="0 entries"):
        cache.show("zz")
    entries, size = cache.clear()
    assert entries == 2 and size > 256 * 20
    assert cache.ls() == []


def test_clear_takes_leftovers_of_dead_processes(cache: DiskCache) -> None:
    put(cache)
    (cache.folder / "tmp-dead").mkdir()
    cache.clear()
    assert not cache.folder.exists()


def test_no_warning_in_normal_use(cache: DiskCache) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put(cache)
        put(cache)
        cache.get(KEY)
        cache.why_missed(PARTS)
