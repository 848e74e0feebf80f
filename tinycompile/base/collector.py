"""Python's cyclic collector, paused while we compile.

A compile makes some hundred thousand objects, nearly all of which live until its end: the collector looked at them, and at all
that torch has, again and again, and found nothing. It was a third of the time of our stages, and more of Triton's. Reference
counts free the rest at once, as ever. It is one switch of the process, so it comes back when the last of several compiles ends,
and only if it was on when the first began.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Pause:
    """How many compiles go on, and whether the collector was on before the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.was_on = False

    @contextmanager
    def held(self) -> Iterator[None]:
        with self.lock:
            if self.count == 0:
                self.was_on = gc.isenabled()
                gc.disable()
            self.count += 1
        try:
            yield
        finally:
            with self.lock:
                self.count -= 1
                if self.count == 0 and self.was_on:
                    gc.enable()

    def forget(self) -> None:
        """In a forked child, where no other thread goes on: nobody compiles."""
        self.lock = threading.Lock()
        if self.count and self.was_on:
            gc.enable()
        self.count = 0


_pause = _Pause()
os.register_at_fork(after_in_child=_pause.forget)


def without_collections(fn: F) -> F:
    """``fn``, during whose calls the cyclic collector rests."""

    @functools.wraps(fn)
    def paused(*args: Any, **kwargs: Any) -> Any:
        with _pause.held():
            return fn(*args, **kwargs)

    return paused  # type: ignore[return-value]  # it takes and gives what fn does
