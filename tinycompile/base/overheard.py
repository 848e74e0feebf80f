"""Warnings that come up where we run something on the side: overheard, or kept from being shown, in one thread alone.

``warnings.catch_warnings`` does so for all threads, and lets Python forget which warnings it has shown: what a program is to
see once it would see again. Here two entries stand first among the filters for as long as some thread needs them. They match
in the threads that do."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

_LOCK = threading.RLock()  # (what is freed meanwhile may warn, and end up here)


class _Here(threading.local):
    """What this thread listens into, and the warnings that it is not to show (None: any)."""

    heard: list[warnings.WarningMessage] | None = None
    mute: tuple[Collection[str] | None, ...] = ()


_here = _Here()


def told_by(text: str) -> str:
    """A warning's text without torch's note of the line of C++ that gave it."""
    return text.partition(" (Triggered internally at ")[0]


class _Listens:
    """Stands for a pattern of texts: it matches while the thread listens."""

    def match(self, text: str) -> bool:
        return _here.heard is not None


class _Mutes:
    """It matches what the thread is not to show."""

    def match(self, text: str) -> bool:
        return any(texts is None or told_by(text) in texts for texts in _here.mute)


_ENTRIES: tuple[Any, ...] = (("always", _Listens(), Warning, None, 0), ("ignore", _Mutes(), Warning, None, 0))
_users = 0
_shown: Callable[..., None] = warnings.showwarning


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if _here.heard is None:
        _shown(message, category, filename, lineno, file, line)
    else:
        _here.heard.append(warnings.WarningMessage(message, category, filename, lineno, file, line))


def _enter() -> None:
    global _users, _shown
    with _LOCK:
        _users += 1
        if tuple(warnings.filters[:2]) != _ENTRIES:
            _remove()
            warnings.filters[:0] = _ENTRIES  # type: ignore[index]  # (it is a list)
        if warnings.showwarning is not _show:
            _shown, warnings.showwarning = warnings.showwarning, _show


def _leave() -> None:
    global _users
    with _LOCK:
        _users -= 1
        if not _users:
            _remove()
            if warnings.showwarning is _show:
                warnings.showwarning = _shown


def _remove() -> None:
    """Also where the program has put others before them."""
    filters: Any = warnings.filters
    if tuple(filters[:2]) == _ENTRIES:
        del filters[:2]
        return
    for entry in _ENTRIES:
        if entry in filters:
            filters.remove(entry)


class overheard:  # noqa: N801 (a context manager, used like a function)
    """Within the block warnings of this thread are neither shown nor raised: they are in the list that the block is given."""

    __slots__ = ("_before", "heard")

    def __enter__(self) -> list[warnings.WarningMessage]:
        self.heard: list[warnings.WarningMessage] = []
        self._before, _here.heard = _here.heard, self.heard
        _enter()
        return self.heard

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _leave()
        _here.heard = self._before


@contextmanager
def muted(texts: Collection[str] | None = None) -> Iterator[None]:
    """Within the block warnings of this thread are not shown, or those with these texts; who listens hears them still."""
    before, _here.mute = _here.mute, (*_here.mute, texts)
    _enter()
    try:
        yield
    finally:
        _leave()
        _here.mute = before


@contextmanager
def as_if_new(spaces: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Within the block what Python notes in these modules' variables to have shown counts as not shown yet."""
    noted = [(registry, dict(registry)) for registry in (space.get("__warningregistry__") for space in spaces) if registry]
    for registry, _ in noted:
        registry.clear()
    try:
        yield
    finally:
        for registry, before in noted:
            registry.clear()
            registry.update(before)
