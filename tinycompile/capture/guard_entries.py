"""Entries: what held dicts hold under their keys. A model has hundreds, so they are checked in bulk by functions in C.

A dict that has the version it had when its entries were last found right needs no look at all: see :class:`Watched`."""

from __future__ import annotations

import gc
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Any

from tinycompile.base import dict_versions
from tinycompile.base.dict_versions import Reader, Snapshot
from tinycompile.capture.sources import Held
from tinycompile.capture.trust import trusts_variables_of

# What reading a changed object can raise; such a guard fails, it doesn't crash.
READ_ERRORS = (AttributeError, KeyError, IndexError, TypeError, NameError, ValueError, ArithmeticError)
_is, _getitem, _contains = operator.is_, operator.getitem, operator.contains
_code, _ask_object = operator.attrgetter("__code__"), object.__getattribute__  # (no ``__getattribute__`` of the program's)


@dataclass(frozen=True, slots=True)
class Entry:
    """``container`` holds ``value`` under ``key``. ``how``: ``is``, ``equal``, ``absent`` (nothing is under the key), ``code``
    (a function still runs this code), ``keys`` (the container has these, in this order), or ``dict`` (this is still the
    ``__dict__`` of an object)."""

    how: str
    container: Held
    key: Any
    value: Any
    label: str

    def holds(self) -> bool:
        """Whether it is still so."""
        held = self.container.value
        try:
            if self.how == "absent":
                return self.key not in held
            if self.how == "code":
                return held.__code__ is self.value
            if self.how == "dict":
                return _ask_object(held, "__dict__") is self.value
            if self.how == "keys":
                return tuple(held) == self.value
            found = held[self.key]
        except READ_ERRORS:
            return False
        return found is self.value if self.how == "is" else type(found) is type(self.value) and found == self.value


def every(entries: Sequence[Entry]) -> Callable[[], bool]:
    """A check of all entries, one pass in C for each kind."""
    checks = [_CHECKS[how](group) for how in _CHECKS if (group := [e for e in entries if e.how == how])]
    if len(checks) == 1:
        return checks[0]
    return lambda: all(check() for check in checks)


def _columns(entries: Iterable[Entry]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    containers, keys, values = zip(*((e.container.value, e.key, e.value) for e in entries), strict=True)
    return containers, keys, values


def _identical(entries: Sequence[Entry]) -> Callable[[], bool]:
    containers, keys, values = _columns(entries)
    return lambda: all(map(_is, map(_getitem, containers, keys), values))


def _equal(entries: Sequence[Entry]) -> Callable[[], bool]:
    containers, keys, values = _columns(entries)
    types = tuple(map(type, values))

    def check() -> bool:
        found = tuple(map(_getitem, containers, keys))
        return tuple(map(type, found)) == types and found == values

    return check


def _absent(entries: Sequence[Entry]) -> Callable[[], bool]:
    containers, keys, _ = _columns(entries)
    return lambda: not any(map(_contains, containers, keys))


def _same_code(entries: Sequence[Entry]) -> Callable[[], bool]:
    functions, _, codes = _columns(entries)
    return lambda: all(map(_is, map(_code, functions), codes))


def _same_dicts(entries: Sequence[Entry]) -> Callable[[], bool]:
    objects, _, dicts = _columns(entries)
    return lambda: all(map(_is, map(_ask_object, objects, repeat("__dict__")), dicts))


def _same_keys(entries: Sequence[Entry]) -> Callable[[], bool]:
    containers, _, keys = _columns(entries)
    return lambda: tuple(map(tuple, containers)) == keys


_CHECKS: dict[str, Callable[[Sequence[Entry]], Callable[[], bool]]] = {
    "is": _identical, "equal": _equal, "absent": _absent, "code": _same_code, "keys": _same_keys,
    "dict": _same_dicts,
}  # fmt: skip


# --- dicts with versions ------------------------------------------------------------------------------------


def watchable(container: Any) -> dict[Any, Any] | None:
    """The dict to watch for a container, where a change of that changes its version, and is rare: the dict of a class stands
    behind its proxy. Globals of the program change all the time. An empty dict may be filled without a change of version
    (CPython 3.12 tells watchers that it was cloned, and torch does not listen). So may the attributes of an object whose values
    lie behind the object itself (3.13): the collector finds none of them in its dict. They are read there, or not at all."""
    if not dict_versions.can_tell():
        return None
    if type(container) is MappingProxyType:
        behind = gc.get_referents(container)
        container = behind[0] if len(behind) == 1 else None
    plain = type(container) in (dict, OrderedDict) and bool(container)
    if not plain or ("__builtins__" in container and not trusts_variables_of(container)):
        return None
    return container if gc.get_referents(container) or dict_versions.lies_inline(container) else None


def to_watch(entries: Sequence[Entry]) -> list[Any]:
    """For each entry the dict to watch, or the object whose ``__dict__`` is; None where nothing tells of changes. The order of
    an OrderedDict has no version."""
    behind = {id(e.container.value): e.container.value for e in entries}
    owners = {id(e.container.value) for e in entries if e.how == "dict"}
    found = {at: _owner(held) if at in owners else watchable(held) for at, held in behind.items()}
    return [
        None if e.how == "keys" and isinstance(e.container.value, OrderedDict) else found[id(e.container.value)]
        for e in entries
    ]


def _owner(obj: Any) -> Any:
    return obj if dict_versions.points_to_dict(obj) else None


class Watched:
    """Checks entries of watchable dicts. A dict of an unchanged version is not looked into; one that changes again and again
    without breaking a guard (a module that counts its calls) is looked into at each call."""

    _PATIENCE = 4  # the first look counts

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = list(zip(to_watch(entries), entries, strict=True))
        self._every = every(entries)
        self._changes: dict[int, int] = {}  # by id of a dict
        dicts = tuple({id(d): d for d, _ in self._entries if d is not None}.values())
        self._state = _State(dicts, Reader(dicts), None)  # no versions yet: the first call looks

    def __call__(self) -> bool:
        state = self._state
        if state.read() != state.versions:
            return self._look_again()
        return state.restless is None or state.restless()

    def _look_again(self) -> bool:
        state = self._state
        read = Reader(state.dicts)
        now = read()  # before the look: a change during it is seen next time
        if not self._every():
            return False
        parts = read.parts(now)
        before = [None] * len(parts) if state.versions is None else state.read.parts(state.versions)
        for held, was, part in zip(state.dicts, before, parts, strict=True):
            if was != part:
                self._changes[id(held)] = self._changes.get(id(held), 0) + 1
        quiet = [i for i, held in enumerate(state.dicts) if self._changes[id(held)] < self._PATIENCE]
        dicts, versions = state.dicts, now
        if len(quiet) < len(dicts):
            dicts = tuple(dicts[i] for i in quiet)
            read = Reader(dicts)
            versions = read()
            if read.parts(versions) != [parts[i] for i in quiet]:
                return True  # changed since then: the next call looks again
        restless = [e for d, e in self._entries if self._changes.get(id(d), 0) >= self._PATIENCE]
        # An object that lies where another lay is that one to those who see its address alone. So what is there lives on.
        there = tuple(e.container.value[e.key] for _, e in self._entries if e.how == "equal")
        self._state = _State(dicts, read, versions, every(restless) if restless else None, there)
        return True


@dataclass(frozen=True, slots=True)
class _State:
    """What was found at the last look. ``dicts``: those that are watched; ``restless``: a check of all others; ``there``: what
    stays alive."""

    dicts: tuple[Any, ...]
    read: Reader
    versions: Snapshot | None
    restless: Callable[[], bool] | None = None
    there: tuple[Any, ...] = ()
