"""Compiled code for some arguments, and who owns it.

What was compiled for a module holds its parameters, so the module must own it: when the module dies, its compiled code goes
with it, though the function lives on. The code hangs on the module's dict of forward hooks, an OrderedDict, which takes
attributes and is no part of ``vars(module)`` or ``state_dict``. Copies and pickles of the module come without it. The function
holds only a weak reference."""

from __future__ import annotations

import weakref
from builtins import type  # a program may replace it while its own code runs
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

    With a ``stop`` the code ends at a break: ``run`` returns the state there, from which ``drive`` goes on. Without one,
    ``guarded`` is guard and run as one function, which returns ``MISS`` where the guard does not hold."""

    guard: Callable[..., bool]
    run: Callable[..., Any]
    captured: Captured
    compiled: CompiledGraph | None
    artifacts: Artifacts
    times: dict[str, float] = field(default_factory=dict)
    stop: Stop | None = None
    guarded: Callable[..., Any] | None = None


def itself(entry: Any) -> CacheEntry | None:
    """The entry behind a stand-in; None where it has died."""
    return entry() if type(entry) is OwnedEntry else entry


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


class OwnedEntry(weakref.ref[CacheEntry]):
    """A weak stand-in for a CacheEntry that a module owns; calling it gives the entry, None once that is gone. It has all that
    the entry has, but must not be used long: whoever runs an entry holds it."""

    __slots__ = ("_owner",)

    def __new__(cls, entry: CacheEntry, owner: torch.nn.Module, gone: Callable[[Any], None]) -> OwnedEntry:
        return super().__new__(cls, entry, gone)

    def __init__(self, entry: CacheEntry, owner: torch.nn.Module, gone: Callable[[Any], None]) -> None:
        super().__init__(entry, gone)  # type: ignore[call-arg]  # the stubs know __new__ alone
        self._owner = weakref.ref(owner)

    def __getattr__(self, name: str) -> Any:
        entry = self()
        if entry is None:
            raise ReferenceError("the module that this code was compiled for is gone")
        return getattr(entry, name)

    def drop(self) -> None:
        """Take the entry from its owner."""
        entry, owner = self(), self._owner()
        if entry is not None and owner is not None:
            held = getattr(owner.__dict__.get("_forward_hooks"), _ATTRIBUTE, None)
            if isinstance(held, _Belongings):
                held.entries.pop(id(entry), None)


def give(entry: CacheEntry, owner: torch.nn.Module, gone: Callable[[Any], None]) -> CacheEntry:
    """Make ``owner`` keep the entry; what the function is to keep instead. ``gone(it)`` is called when the entry dies."""
    hooks = owner.__dict__.get("_forward_hooks")  # none where ``__init__`` did not run
    held = getattr(hooks, _ATTRIBUTE, None)
    if not isinstance(held, _Belongings):
        held = _Belongings()
        try:
            setattr(hooks, _ATTRIBUTE, held)
        except AttributeError:  # somebody put a plain dict there, or nobody anything
            return entry
    held.entries[id(entry)] = entry
    return cast(CacheEntry, OwnedEntry(entry, owner, gone))  # it has all that an entry has
