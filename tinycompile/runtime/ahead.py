"""``Ahead``: kernels that are built on threads while more code is generated.

Compilers of kernels leave the interpreter lock while they work. So a kernel goes to them as soon as its text is there, and only
when a graph, or both halves of one with gradients, is all generated does anybody wait.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Job = concurrent.futures.Future[Any]


class Ahead:
    """Jobs that are under way. ``kernels``: those of Triton's kernels, by what is compiled."""

    def __init__(self) -> None:
        self.kernels: dict[Any, Job] = {}
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._last: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Start ``fn(*args)`` on a thread."""
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
        return self._pool.submit(fn, *args)

    def at_the_end(self, finish: Callable[[], None]) -> None:
        """Call ``finish`` when nothing is left to generate; it waits for what it needs."""
        self._last.append(finish)

    def finish(self) -> None:
        """Do all that was left for the end."""
        while self._last:
            self._last.pop(0)()

    def close(self) -> None:
        """Let the threads go; what has not begun never will."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


_around: ContextVar[Ahead | None] = ContextVar("ahead", default=None)


@contextmanager
def building() -> Iterator[Ahead]:
    """Jobs that somebody around us waits for; else our own, all finished at the end, which raises what they raise."""
    around = _around.get()
    if around is not None:
        yield around
        return
    mine = Ahead()
    token = _around.set(mine)
    try:
        yield mine
        mine.finish()
    finally:
        _around.reset(token)
        mine.close()
