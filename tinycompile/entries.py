"""Compiled code for some arguments, and who owns it.

What was compiled for a module holds its parameters, so the module must own it: when the module dies, its compiled code goes
with it, though the function lives on. The code hangs on the module's dict of forward hooks, an OrderedDict, which takes
attributes and is no part of ``vars(module)`` or ``state_dict``. Copies and pickles of the module come without it. The function
holds only a weak reference."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from tinycompile.base.artifacts import Artifacts
from tinycompile.capture.captured import Captured
from tinycompile.capture.trampoline import Stop
from tinycompile.compiler import CompiledGraph

_ATTRIBUTE = "_tinycompile_owned"


@dataclass
class CacheEntry:
    """One specialisation of a piece. ``compiled`` is None where it runs eagerly; ``captured.breaks`` says why.

    With a ``stop`` the code ends at a break: ``run`` returns the state there, from which ``drive`` goes on."""

    guard: Callable[..., bool]
    run: Callable[..., Any]
    captured: Captured
    compiled: CompiledGraph | None
    artifacts: Artifacts
    times: dict[str, float] = field(default_factory=dict)
    stop: Stop | None = None


def itself(entry: CacheEntry) -> CacheEntry | None:
    """The entry behind a stand-in; None where it has died."""
    return entry.entry if isinstance(entry, OwnedEntry) else entry


def by_first_argument(entries: Sequence[CacheEntry], parameters: Sequence[str]) -> dict[int, tuple[CacheEntry, ...]]:
    """Those whose first argument is guarded to be one object, by its id."""
    found: dict[int, tuple[CacheEntry, ...]] = {}
    for entry in entries:
        made = itself(entry)
        if made is not None and parameters and parameters[0] in made.captured.identities:
            key = id(made.captured.identities[parameters[0]])
            found[key] = (*found.get(key, ()), entry)
    return found


class _Belongings:
    """What a module owns, by id."""

    def __init__(self) -> None:
        self.entries: dict[int, CacheEntry] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Belongings:
        return _Belongings()

    def __reduce__(self) -> Any:
        return bool, ()  # nothing of ours is needed to read the pickle


class OwnedEntry:
    """A weak stand-in for a CacheEntry that a module owns. Once that is gone its guard holds for nothing."""

    __slots__ = ("__weakref__", "_eagerly", "_entry", "_owner")

    def __init__(
        self, entry: CacheEntry, owner: torch.nn.Module, eagerly: Callable[..., Any], gone: Callable[[Any], None]
    ) -> None:
        me = weakref.ref(self)
        self._entry = weakref.ref(entry, lambda _: gone(me()))
        self._owner = weakref.ref(owner)
        self._eagerly = eagerly

    def guard(self, /, *args: Any, **kwargs: Any) -> bool:
        """The entry's guard."""
        entry = self._entry()
        return entry is not None and entry.guard(*args, **kwargs)

    @property
    def run(self) -> Callable[..., Any]:
        """The entry's code; the plain function if the entry has died since its guard was asked."""
        entry = self._entry()
        return self._eagerly if entry is None else entry.run

    @property
    def entry(self) -> CacheEntry | None:
        """The entry itself, as long as it lives."""
        return self._entry()

    def __getattr__(self, name: str) -> Any:
        entry = self._entry()
        if entry is None:
            if name in ("stop", "compiled"):
                return None
            raise ReferenceError("the module that this code was compiled for is gone")
        return getattr(entry, name)

    def drop(self) -> None:
        """Take the entry from its owner."""
        entry, owner = self._entry(), self._owner()
        if entry is not None and owner is not None:
            held = getattr(owner.__dict__["_forward_hooks"], _ATTRIBUTE, None)
            if isinstance(held, _Belongings):
                held.entries.pop(id(entry), None)


def give(entry: CacheEntry, owner: torch.nn.Module, eagerly: Callable[..., Any], gone: Callable[[Any], None]) -> CacheEntry:
    """Make ``owner`` keep the entry; what the function is to keep instead. ``gone(it)`` is called when the entry dies."""
    hooks = owner.__dict__["_forward_hooks"]
    held = getattr(hooks, _ATTRIBUTE, None)
    if not isinstance(held, _Belongings):
        held = _Belongings()
        try:
            setattr(hooks, _ATTRIBUTE, held)
        except AttributeError:  # somebody put a plain dict there
            return entry
    held.entries[id(entry)] = entry
    return cast(CacheEntry, OwnedEntry(entry, owner, eagerly, gone))  # it has all that an entry has
