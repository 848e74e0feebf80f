"""``Linked``: a wrapper with the functions that its text names, and the way to watch them.

A watcher is put in place of the launchers and library functions themselves, in the wrapper's namespace: while nobody watches, a
call costs what it always does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from tinycompile.ir.source import Source

Function = Callable[..., Any]
# ``watcher(source, kind, name, function) -> function``; ``kind``: ``kernel`` (a launcher), ``library``, or ``memory`` (which
# makes buffers).
Watcher = Callable[[Source, str, str, Function], Function]

_WATCHERS: list[Watcher] = []
_lock = threading.Lock()


class Linked:
    """The wrapper of one ``source``; its text runs in ``namespace``. ``plain``: its launchers and library functions by name."""

    __slots__ = ("__weakref__", "namespace", "plain", "source")

    def __init__(self, source: Source, namespace: dict[str, Any]) -> None:
        self.source, self.namespace = source, namespace
        names = ["empty", *(k.name for k in source.kernels), *(name for name, _, _ in source.externs)]
        self.plain: dict[str, Function] = {name: namespace[name] for name in names if name in namespace}
        with _lock:
            _live.add(self)
            self.put()

    def replace(self, name: str, function: Function) -> None:
        """Call ``function`` from now on."""
        self.update({name: function})

    def update(self, functions: Mapping[str, Function]) -> None:
        """Call these from now on, by name."""
        with _lock:
            self.plain.update(functions)
            self.put()

    def put(self) -> None:
        """Set the namespace: the plain functions, or what the watchers make of them."""
        kinds = {"empty": "memory", **{k.name: "kernel" for k in self.source.kernels}}
        for name, function in self.plain.items():
            for watcher in _WATCHERS:
                function = watcher(self.source, kinds.get(name, "library"), name, function)
            self.namespace[name] = function


_live: weakref.WeakSet[Linked] = weakref.WeakSet()


def watch(watcher: Watcher) -> None:
    """Put ``watcher``'s functions in place of those of all compiled code, also of what is compiled later."""
    with _lock:
        _WATCHERS.append(watcher)
        for linked in list(_live):
            linked.put()


def unwatch(watcher: Watcher) -> None:
    """End :func:`watch`. Raises ValueError when it does not watch."""
    with _lock:
        _WATCHERS.remove(watcher)
        for linked in list(_live):
            linked.put()
