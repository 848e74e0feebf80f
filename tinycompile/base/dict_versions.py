"""Whether dicts have changed: the version that CPython keeps in each, read for many of them in one call.

PEP 509: ``ma_version_tag`` of a dict is another number after each change. It is there up to Python 3.13, and Python code can't
ask for it, so its eight bytes are read where they lie: behind the object's head and the number of entries (``PyDictObject`` in
``cpython/dictobject.h``). 300 dicts take 0.5 us so. ``torch._C._dynamo.guards.dict_version``, which is used where this place
does not pass the test below, takes 28 us on Python 3.12: there it does not read the number, but has itself told of each change.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Sequence
from typing import Any

from tinycompile.base import torch_private, words
from tinycompile.base.words import WORD

Watchable = Sequence[Any]  # dicts, and objects whose ``__dict__`` is watched: whether it is another
Snapshot = bytes | tuple[int, ...]
_CLASS = WORD  # where an object has the pointer to its class
_LENGTH = object.__basicsize__  # and a dict the number of its entries
_VERSION = _LENGTH + WORD
_DICT = -3 * WORD  # where an object has the pointer to its ``__dict__``: before its head


def _address(watched: Any) -> int:
    """Of a dict's version, or of an object's pointer. Whoever reads it keeps the object alive."""
    return id(watched) + (_VERSION if issubclass(type(watched), dict) else _DICT)  # isinstance may ask the program


def _lies_there() -> bool:
    """Whether this interpreter has the version where it is looked for: it changes with each change, and with nothing else."""
    known = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] <= (3, 13)
    if not known or sysconfig.get_config_var("Py_GIL_DISABLED") or dict.__basicsize__ != object.__basicsize__ + 4 * WORD:
        return False
    probe: dict[Any, Any] = {"a": 1}
    version, facts = words.reader([_address(probe)]), words.reader([id(probe) + _CLASS, id(probe) + _LENGTH])
    seen = [version()]
    changes: tuple[Callable[[], object], ...] = (
        lambda: probe.__setitem__("a", 2),
        lambda: probe.__setitem__("b", 3),
        lambda: probe.update(b=4),
        lambda: probe.pop("b"),
        lambda: probe.setdefault("c", 5),
        probe.popitem,
        probe.clear,
        lambda: probe.update({"d": 6}),
    )
    for change in changes:
        change()
        seen.append(version())
        _ = probe.get("d"), list(probe.items()), probe == {}
        if version() != seen[-1] or facts() != _written(id(dict), len(probe)):
            return False
    return len(set(seen)) == len(seen)


def _written(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(WORD, sys.byteorder) for n in numbers)


LIES_IN_MEMORY = _lies_there()


def points_to_dict(obj: Any) -> bool:
    """Whether an object has the pointer to its ``__dict__`` where it is looked for."""
    managed = LIES_IN_MEMORY and type(obj).__flags__ & (1 << 4) and not issubclass(type(obj), dict)
    return bool(managed) and words.reader([_address(obj)])() == _written(id(object.__getattribute__(obj, "__dict__")))


def can_tell() -> bool:
    """Whether versions can be read at all."""
    return LIES_IN_MEMORY or torch_private.dict_version is not None


def reader(watched: Watchable) -> Callable[[], Snapshot]:
    """A function that gives the versions of all; another value after any change. Whoever holds it keeps them alive."""
    if LIES_IN_MEMORY:
        return words.reader(list(map(_address, watched)))
    version = torch_private.dict_version
    assert version is not None
    return lambda: tuple(map(version, watched))


def still(objects: Sequence[Any], empty: Sequence[dict[Any, Any]]) -> Callable[[], bool] | None:
    """A check that objects are of the classes they have now, and that dicts are empty; None where memory does not tell. Whoever
    holds it keeps them alive."""
    if not LIES_IN_MEMORY or not all(issubclass(type(d), dict) for d in empty):
        return None
    read = words.reader([*(id(o) + _CLASS for o in objects), *(id(d) + _LENGTH for d in empty)])
    expected = _written(*(id(type(o)) for o in objects), *(0 for _ in empty))
    return lambda: read() == expected


def changed(before: Snapshot, after: Snapshot) -> list[int]:
    """Which have changed, by position."""
    return [i for i, (was, now) in enumerate(zip(_numbers(before), _numbers(after), strict=True)) if was != now]


def of_some(snapshot: Snapshot, places: Sequence[int]) -> Snapshot:
    """The part of a snapshot that is of these."""
    if isinstance(snapshot, bytes):
        return b"".join([snapshot[i * WORD : (i + 1) * WORD] for i in places])
    return tuple(snapshot[i] for i in places)


def _numbers(snapshot: Snapshot) -> Sequence[int]:
    return memoryview(snapshot).cast("Q") if isinstance(snapshot, bytes) else snapshot
