"""``Linked``: a wrapper with the functions that its text names, and the way to watch them.

A watcher is put in place of the launchers and library functions themselves, in the wrapper's namespace: while nobody watches, a
call costs nothing more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from tinycompile.ir.source import Source
from tinycompile.runtime.autotune import Tuned
from tinycompile.runtime.inlined import inline

Function = Callable[..., Any]
# ``watcher(source, kind, name, function) -> function``; ``kind``: ``kernel`` (a launcher), ``library``, or ``memory`` (which
# makes buffers).
Watcher = Callable[[Source, str, str, Function], Function]

_WATCHERS: list[Watcher] = []
_lock = threading.Lock()


def wrapper_file(source: Source) -> str:
    """What tracebacks call the file of a wrapper."""
    return f"<tinycompile {source.name} wrapper>"


class Linked:
    """The wrapper of one ``source``; its text runs in ``namespace``. ``plain``: its launchers and library functions by name.

    While nobody watches, its function has the launches in place of calls of the launchers (``inlined.py``)."""

    __slots__ = ("__weakref__", "_as_written", "_call", "namespace", "plain", "source")

    def __init__(self, source: Source, namespace: dict[str, Any]) -> None:
        self.source, self.namespace = source, namespace
        names = ["empty", *(k.name for k in source.kernels), *(name for name, _, _ in source.externs)]
        self.plain: dict[str, Function] = {name: namespace[name] for name in names if name in namespace}
        self._call: Callable[[], FunctionType | None] = _none_yet
        with _lock:
            _live.add(self)
            self.put()

    def link(self) -> FunctionType:
        """Run the wrapper's text. Its function ``call``."""
        exec(compile(self.source.wrapper, wrapper_file(self.source), "exec"), self.namespace)
        call: FunctionType = self.namespace["call"]
        call.linked = self  # type: ignore[attr-defined]  # lives as long as the code
        with _lock:
            self._call, self._as_written = weakref.ref(call), call.__code__
            self.put()
        return call

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
        self._put_code()

    def _put_code(self) -> None:
        """The function's code: as it is written where somebody watches the launchers, or one of them is still to be chosen."""
        call = self._call()
        if call is None:
            return
        launches = {name: f.inlined for name, f in self.plain.items() if hasattr(f, "inlined")}
        if not launches or _WATCHERS or any(isinstance(f, Tuned) for f in self.plain.values()):
            call.__code__ = self._as_written
        else:
            call.__code__ = inline(self.source.wrapper, wrapper_file(self.source), launches, self.namespace)


def _none_yet() -> None:
    """The wrapper's text has not run."""


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
