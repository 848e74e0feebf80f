"""Keys that a thread adds to all its calls, or takes away: ``with include(Key.TRACING): ...``."""

from __future__ import annotations

import threading

from tinycompile.dispatch.keys import Key, KeySet


class LocalKeys(threading.local):
    """Included and excluded keys. Class attributes are the values in a thread that never set them."""

    include: int = 0
    exclude: int = 0
    changed: int = 0  # both together: one look tells small calls that there are none


LOCAL = LocalKeys()


class _Guard:
    """Changes this thread's sets for a ``with`` block. One object may be entered again inside itself and in several threads."""

    __slots__ = ("_before", "_mask", "_name")

    def __init__(self, name: str, keys: int | Key) -> None:
        self._name = name
        self._mask = keys.bit if isinstance(keys, Key) else int(keys)
        self._before: dict[int, list[int]] = {}

    def __enter__(self) -> None:
        before = getattr(LOCAL, self._name)
        self._before.setdefault(threading.get_ident(), []).append(before)
        setattr(LOCAL, self._name, before | self._mask)
        LOCAL.changed = LOCAL.include | LOCAL.exclude

    def __exit__(self, *exc: object) -> None:
        stack = self._before[threading.get_ident()]
        setattr(LOCAL, self._name, stack.pop())
        LOCAL.changed = LOCAL.include | LOCAL.exclude
        if not stack:
            del self._before[threading.get_ident()]


def include(keys: int | Key) -> _Guard:
    """Add keys to every call of this thread inside a ``with`` block."""
    return _Guard("include", keys)


def exclude(keys: int | Key) -> _Guard:
    """Take keys away from every call of this thread inside a ``with`` block; exclusion beats inclusion."""
    return _Guard("exclude", keys)


def included() -> KeySet:
    """This thread's included keys."""
    return KeySet(LOCAL.include)


def excluded() -> KeySet:
    """This thread's excluded keys."""
    return KeySet(LOCAL.exclude)
