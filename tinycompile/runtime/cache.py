"""The cache on disk: ``<root>/v<schema>/<kk>/<key>/`` holds ``meta.json`` and the files of one compile.

A key is the sha256 of its *parts*, a dict of named texts (graph, shapes, target, versions, ...). An entry is written to a
temporary folder and renamed, so other processes see all of it or nothing. Whatever is wrong with an entry (cut off,
changed, owned by someone else, an older layout) makes it a miss; whatever stops us from writing costs one warning and no
more. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinycompile.base.logs import warn

SCHEMA = 1  # raise it when the layout of an entry changes: older entries are then never looked at
META = "meta.json"
_TEMPORARY = "tmp-"

_warned: set[str] = set()  # roots that we have complained about


@dataclass(frozen=True, slots=True)
class Entry:
    """One compile on disk. ``files`` by name, checked against their checksums; ``meta``: parts, creation time, checksums."""

    key: str
    folder: Path
    files: Mapping[str, bytes]
    meta: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A file as text."""
        return self.files[name].decode()

    def path(self, name: str) -> Path:
        """Where a file lies, for loaders that want a path. It is never rewritten in place."""
        return self.folder / name

    @property
    def parts(self) -> Mapping[str, str]:
        """What the key was made of."""
        return self.meta["parts"]

    @property
    def size(self) -> int:
        """Bytes in files."""
        return sum(len(data) for data in self.files.values())


@dataclass(frozen=True, slots=True)
class Miss:
    """Why there was no entry: the nearest entry and, for each part that differs, (name, theirs, ours)."""

    nearest: str | None
    differences: tuple[tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        if self.nearest is None:
            return "the cache holds no entry with any part in common"
        if not self.differences:
            return f"entry {self.nearest[:12]} has the same parts but is damaged, or is not ours"
        told = "; ".join(_first_difference(*difference) for difference in self.differences)
        return f"nearest entry {self.nearest[:12]} differs in {told}"


class DiskCache:
    """A folder of entries. Safe with other threads and processes on the same folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser()
        self.folder = self.root / f"v{SCHEMA}"

    @staticmethod
    def key(parts: Mapping[str, str]) -> str:
        """The sha256, in hex, of the parts in canonical form."""
        return _sha256(_canonical(dict(parts)).encode())

    def get(self, key: str) -> Entry | None:
        """The entry, or None when there is none, or none that can be trusted."""
        folder = self._entry_folder(key)
        if not _ours(self.folder) or not os.path.lexists(folder):
            return None
        try:
            return _read(key, folder)
        except (OSError, _DamagedError):
            self._discard(folder)  # it would otherwise be read, and found wanting, at each start
            return None

    def put(self, key: str, files: Mapping[str, bytes | str], parts: Mapping[str, str]) -> Entry | None:
        """Store an entry; a sound one that is there stays. None, after one warning a root, when the folder can't be written."""
        if self.key(parts) != key:
            raise ValueError("the key is not that of these parts")
        data = {name: _plain(name, content) for name, content in files.items()}
        try:
            self._make_folders(key)
            staged = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
            try:
                return self._publish(key, staged, data, parts)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        except OSError as error:
            self._warn(error)
            return None

    def why_missed(self, parts: Mapping[str, str]) -> Miss:
        """Compare with the entry that shares the most parts. Reads every entry's meta: for people, not for the hot path."""
        best: tuple[int, str, tuple[tuple[str, str, str], ...]] | None = None
        for key, meta in self._metas():
            theirs = meta["parts"]
            names = sorted(theirs.keys() | parts.keys())
            differ = tuple((n, theirs.get(n, ""), parts.get(n, "")) for n in names if theirs.get(n) != parts.get(n))
            if len(differ) < len(names) and (best is None or len(differ) < best[0]):
                best = (len(differ), key, differ)
        return Miss(None) if best is None else Miss(best[1], best[2])

    def ls(self) -> list[Entry]:
        """All sound entries, newest first."""
        entries = [entry for key, _ in self._metas() if (entry := self.get(key)) is not None]
        return sorted(entries, key=lambda entry: entry.meta["created"], reverse=True)

    def show(self, prefix: str) -> Entry:
        """The one entry whose key starts with ``prefix``; KeyError, saying which, when there is none or more than one."""
        found = [key for key, _ in self._metas() if key.startswith(prefix)]
        if len(found) != 1:
            raise KeyError(f"{len(found)} entries start with {prefix!r}" + "".join(f"\n  {key}" for key in found))
        entry = self.get(found[0])
        if entry is None:
            raise KeyError(f"entry {found[0]} is damaged or is not ours")
        return entry

    def clear(self) -> tuple[int, int]:
        """Remove everything, temporary folders of dead processes too; (entries, bytes) removed."""
        if not self.folder.exists():
            return 0, 0
        sizes = [sum(f.stat().st_size for f in folder.iterdir()) for folder in self._entry_folders()]
        shutil.rmtree(self.folder)
        return len(sizes), sum(sizes)

    def problem(self) -> str | None:
        """Why entries can't be written here, in words; None when they can. Tries it."""
        try:
            self._make_folders("00")
            os.rmdir(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
        except OSError as error:
            return str(error)
        return None

    # -- within ---------------------------------------------------------------------------------------------------------

    def _entry_folder(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _entry_folders(self) -> Iterator[Path]:
        yield from (folder for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]/*")) if folder.is_dir())

    def _make_folders(self, key: str) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only what lies below the root is ours to judge: the root may be any folder that the user named.
        for folder in (self.folder, self.folder / key[:2]):
            folder.mkdir(mode=0o700, exist_ok=True)
            if not _ours(folder):
                raise PermissionError(f"{folder} belongs to another user, or others may write to it")

    def _publish(self, key: str, staged: Path, data: dict[str, bytes], parts: Mapping[str, str]) -> Entry | None:
        meta = {
            "schema": SCHEMA,
            "created": time.time(),
            "files": {name: {"sha256": _sha256(content), "bytes": len(content)} for name, content in data.items()},
            "parts": dict(parts),
        }
        for name, content in data.items():
            (staged / name).write_bytes(content)
        (staged / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        target = self._entry_folder(key)
        for _ in range(10):  # each turn, another process may have put its own entry, sound or not
            try:
                os.rename(staged, target)
            except OSError:
                if not target.exists():
                    raise
                if (there := self.get(key)) is not None:
                    return there
                self._discard(target)
            else:
                return Entry(key, target, data, meta)
        raise OSError(f"{target} can't be replaced")

    def _discard(self, folder: Path) -> None:
        """Take a folder out of sight in one step, then delete it. Where that can't be done it stays a miss."""
        try:
            grave = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
            try:
                os.rename(folder, grave / folder.name)
            finally:
                shutil.rmtree(grave, ignore_errors=True)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self._warn(error)

    def _metas(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not _ours(self.folder):
            return
        for folder in self._entry_folders():
            try:
                yield folder.name, _read_meta(folder.name, folder)
            except (OSError, _DamagedError):
                continue  # damaged: a miss

    def _warn(self, error: OSError) -> None:
        if str(self.root) in _warned:
            return
        _warned.add(str(self.root))
        warn(
            f"the disk cache at {self.root} can't be used ({error}); compiling goes on without it. "
            f"TINYCOMPILE_CACHE_DIR names another folder."
        )


class _DamagedError(Exception):
    """An entry is not what was written."""


def _read(key: str, folder: Path) -> Entry:
    meta = _read_meta(key, folder)
    files: dict[str, bytes] = {}
    for name, expected in meta["files"].items():
        files[name] = (folder / name).read_bytes()
        if _sha256(files[name]) != expected["sha256"]:
            raise _DamagedError(name)
    return Entry(key, folder, files, meta)


def _read_meta(key: str, folder: Path) -> dict[str, Any]:
    """``meta.json``, checked: ours, of this layout, its parts giving this very key, its file names plain."""
    if not _ours(folder):
        raise _DamagedError("not ours")
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        sound = (
            meta["schema"] == SCHEMA
            and DiskCache.key(meta["parts"]) == key
            and isinstance(meta["created"], float)
            and all(_is_plain(name) and isinstance(file["sha256"], str) for name, file in meta["files"].items())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(META) from error
    if not sound:
        raise _DamagedError(META)
    return meta


def _ours(folder: Path) -> bool:
    """A real folder (no link) of this user that nobody else can write to."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return False
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


def _is_plain(name: str) -> bool:
    return name == os.path.basename(name) and name not in ("", ".", "..", META)


def _plain(name: str, content: bytes | str) -> bytes:
    if not _is_plain(name):
        raise ValueError(f"not a plain file name: {name!r}")
    return content.encode() if isinstance(content, str) else content


def _canonical(parts: dict[str, str]) -> str:
    return json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _first_difference(name: str, theirs: str, ours: str) -> str:
    """The part's name and the first line in which the two texts differ."""
    old, new = theirs.splitlines() or [""], ours.splitlines() or [""]
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    was, now = (lines[at].strip() if at < len(lines) else "(nothing)" for lines in (old, new))
    where = f"{name} line {at + 1}" if max(len(old), len(new)) > 1 else name
    return f"{where}: {was!r} then, {now!r} now"
