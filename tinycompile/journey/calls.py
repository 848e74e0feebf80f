"""Watching calls of compiled functions, replays of CUDA graphs, threads that start, and what is no work of the program's.

Python looks ``__call__`` up on the class, so the watched form is put there for as long as somebody watches: otherwise a call
costs what it always does.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any

from tinycompile.api import CompiledFunction
from tinycompile.base.logs import user_line
from tinycompile.compiler import stage_order
from tinycompile.eager import no_trace
from tinycompile.entries import CacheEntry
from tinycompile.journey.events import Handler, Step
from tinycompile.journey.recorder import Recorder
from tinycompile.pieces import Piece
from tinycompile.runtime.cuda_graphs import GraphedCall

_RECORDERS: list[Recorder] = []
_lock = threading.Lock()
_call, _replay, _compile = CompiledFunction.__call__, GraphedCall.__call__, Piece._compile
_start = threading.Thread.start


def watch(recorder: Recorder) -> None:
    """Record a step for each call from now on."""
    with _lock:
        _RECORDERS.append(recorder)
        setattr(CompiledFunction, "__call__", _watched_call)  # noqa: B010  # mypy takes an assignment for a redefinition
        setattr(GraphedCall, "__call__", _watched_replay)  # noqa: B010
        setattr(Piece, "_compile", _watched_compile)  # noqa: B010
        setattr(threading.Thread, "start", _watched_start)  # noqa: B010
    no_trace.around.append(recorder.aside)


def unwatch(recorder: Recorder) -> None:
    """End :func:`watch`. Raises ValueError when it does not watch."""
    with _lock:
        _RECORDERS.remove(recorder)
        if not _RECORDERS:
            setattr(CompiledFunction, "__call__", _call)  # noqa: B010
            setattr(GraphedCall, "__call__", _replay)  # noqa: B010
            setattr(Piece, "_compile", _compile)  # noqa: B010
            setattr(threading.Thread, "start", _start)  # noqa: B010
    no_trace.around.remove(recorder.aside)


def _watched_call(self: CompiledFunction, *args: Any, **kwargs: Any) -> Any:
    with ExitStack() as stack:
        steps = [stack.enter_context(r.step("compiled", self.__name__)) for r in tuple(_RECORDERS)]
        line = user_line()
        before, found = self._entries, self._entries
        start = perf_counter_ns()
        hit = next((i for i, entry in enumerate(found) if entry.guard(*args, **kwargs)), None)
        end = perf_counter_ns()
        try:
            return _call(self, *args, **kwargs)
        finally:
            told = "no specialisation fits" if hit is None else f"specialisation {hit + 1} of {len(found)} fits"
            for step in [s for s in steps if not s.end]:  # a profile that is over has ended them
                step.line = line
                step.handlers.append(Handler("GUARDS", "check", told, "", 0, start, end))
                if self._entries is not before:
                    _tell_compile(step, self, end)


def _tell_compile(step: Step, function: CompiledFunction, start: int) -> None:
    """The stages of a compile that happened in this call, one after the other."""
    for stage, seconds in stage_order(function._entries[0].times):
        end = start + int(seconds * 1e9)
        step.handlers.append(Handler("COMPILE", "stage", stage, "", 0, start, end))
        start = end


def _watched_compile(self: Piece, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CacheEntry:
    with ExitStack() as stack:
        for recorder in tuple(_RECORDERS):
            stack.enter_context(recorder.aside())
        return _compile(self, args, kwargs)


def _watched_start(self: threading.Thread) -> None:
    for recorder in tuple(_RECORDERS):
        recorder.thread_started()
    _start(self)


def _watched_replay(self: GraphedCall, *inputs: Any) -> Any:
    with ExitStack() as stack:
        for recorder in tuple(_RECORDERS):
            stack.enter_context(recorder.step("replay", self.name))
        return _replay(self, *inputs)
