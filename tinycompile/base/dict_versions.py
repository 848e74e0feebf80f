"""Whether dicts have changed: the version that CPython keeps in each, read for many of them in one call.

PEP 509: ``ma_version_tag`` of a dict is another number after each change. It is there up to Python 3.13, and Python code can't
ask for it, so its eight bytes are read where they lie: behind the object's head and the number of entries (``PyDictObject`` in
``cpython/dictobject.h``). 300 dicts take 0.5 us so. ``torch._C._dynamo.guards.dict_version``, which is used where this place
does not pass the test below, takes 28 us on Python 3.12: there it does not read the number, but has itself told of each change.

On Python 3.13 the attributes of most objects lie behind the object itself, and change without a change of its dict's version.
Then all of these words are read: which objects the values are, and in which order they came (``struct _dictvalues``).
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinycompile.base import torch_private, words
from tinycompile.base.words import WORD

Watchable = Sequence[Any]  # dicts, and objects whose ``__dict__`` is watched: whether it is another
Snapshot = tuple[bytes | Sequence[int], tuple[bytes, ...] | None]
_CLASS = WORD  # where an object has the pointer to its class
_LENGTH = object.__basicsize__  # and a dict the number of its entries
_VERSION = _LENGTH + WORD
_VALUES = _VERSION + 2 * WORD  # and the pointer to its values, where it shares its keys
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


# --- values that lie behind their object ---


class _Inline(NamedTuple):
    """Where the values of a dict lie: the address, and the number of words."""

    address: int
    length: int


def _inline(watched: Any) -> _Inline | None:
    """None where a dict has its values to itself. The pointer to them is zero, or leads to a head of four bytes: how many there
    may be, how many there were, whether they lie behind an object, whether they count."""
    if not LIES_IN_MEMORY or sys.version_info[:2] != (3, 13) or not issubclass(type(watched), dict):
        return None
    (address,) = words.read(id(watched) + _VALUES, 1)
    room, _, embedded, valid = words.reader([address])()[:4] if address else bytes(4)
    return _Inline(address, 1 + room + -(-room // WORD)) if embedded and valid else None


def lies_inline(mapping: dict[Any, Any]) -> bool:
    """Whether a dict's values lie behind the object whose ``__dict__`` it is, where they are looked for."""
    found = _inline(mapping)
    if found is None:
        return False
    return set(map(id, mapping.values())) <= set(words.read(found.address, found.length)[1:])


def points_to_dict(obj: Any) -> bool:
    """Whether an object has the pointer to its ``__dict__`` where it is looked for."""
    managed = LIES_IN_MEMORY and type(obj).__flags__ & (1 << 4) and not issubclass(type(obj), dict)
    return bool(managed) and words.reader([_address(obj)])() == _written(id(object.__getattribute__(obj, "__dict__")))


# --- many of them ---


def can_tell() -> bool:
    """Whether versions can be read at all."""
    return LIES_IN_MEMORY or torch_private.dict_version is not None


class Reader:
    """Calling it gives the versions of all; another value after any change. Whoever holds it keeps them alive."""

    def __init__(self, watched: Watchable) -> None:
        self._groups: dict[int, list[int]] = {}  # by count of words: positions of those with values behind an object
        if not LIES_IN_MEMORY:
            version = torch_private.dict_version
            assert version is not None
            self._versions: Callable[[], Sequence[int] | bytes] = lambda: tuple(map(version, watched))
            return
        addresses, inline = list(map(_address, watched)), [_inline(w) for w in watched]
        groups: dict[int, list[int]] = {}
        for i, found in enumerate(inline):
            if found is not None:
                addresses[i] = id(watched[i]) + _VALUES  # the pointer: what it leads to is read while it is the same
                self._groups.setdefault(found.length, []).append(i)
                groups.setdefault(found.length, []).append(found.address)
        self._versions = words.reader(addresses)
        self._pointers = words.reader([addresses[i] for i, found in enumerate(inline) if found is not None])
        self._expected = _written(*(found.address for found in inline if found is not None))
        self._blocks = [words.reader(at, count) for count, at in groups.items()]

    def __call__(self) -> Snapshot:
        if not self._groups:
            return self._versions(), ()
        found = self._versions()
        return found, tuple([read() for read in self._blocks]) if self._pointers() == self._expected else None

    def bare(self) -> Callable[[], object]:
        """The same as a function that takes less where none has its values behind an object. What it gives is only compared."""
        return self if self._groups else self._versions

    def parts(self, snapshot: Snapshot) -> list[tuple[int, bytes | None]]:
        """What was read of each."""
        versions, blocks = snapshot
        known = versions if isinstance(versions, tuple) else memoryview(versions).cast("Q")  # type: ignore[arg-type]
        more: dict[int, bytes] = {}
        for (count, places), block in zip(self._groups.items(), blocks or (), strict=False):
            more.update((at, block[i * count * WORD : (i + 1) * count * WORD]) for i, at in enumerate(places))
        return [(number, more.get(i)) for i, number in enumerate(known)]


def still(objects: Sequence[Any], empty: Sequence[dict[Any, Any]]) -> Callable[[], bool] | None:
    """A check that objects are of the classes they have now, and that dicts are empty; None where memory does not tell. Whoever
    holds it keeps them alive."""
    if not LIES_IN_MEMORY or not all(issubclass(type(d), dict) for d in empty):
        return None
    read = words.reader([*(id(o) + _CLASS for o in objects), *(id(d) + _LENGTH for d in empty)])
    expected = _written(*(id(type(o)) for o in objects), *(0 for _ in empty))
    return lambda: read() == expected
