"""Streams of devices that users add: what ``register_device(..., streams=)`` gives, and who is on which.

The names are torch's: a queue is what ``torch.cuda.Stream`` is on a card, a mark what ``torch.cuda.Event`` is there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tinycompile.eager.storage import Storage

POOL = 32  # streams of one device; further ones share these in turns, as torch's do


class Mark(Protocol):
    """A place in a queue. For timing it also has ``elapsed_time(end)``, in milliseconds."""

    def synchronize(self) -> None:
        """Let the host wait until the queue has come here."""

    def query(self) -> bool:
        """Whether it has."""


class Queue(Protocol):
    """Work that is done in order."""

    def record_event(self) -> Mark:
        """A mark behind all that was given so far."""

    def wait_event(self, event: Any) -> None:
        """What is given from now on is done after the mark, which may be another queue's."""

    def synchronize(self) -> None:
        """Let the host wait until all is done."""

    def query(self) -> bool:
        """Whether all is done."""


class DeviceQueues:
    """The queues of one registered device, by index: a default one, a pool, and where each thread launches."""

    def __init__(self, make: Callable[[int], Queue]) -> None:
        self._make = make
        self._default: dict[int, Queue] = {}
        self._pool: dict[int, list[Queue]] = {}
        self._given: dict[int, int] = {}
        self._entered = _Entered()
        self._lock = threading.Lock()

    def default(self, index: int) -> Queue:
        """Where everything runs unless said otherwise."""
        with self._lock:
            found = self._default.get(index)
            if found is None:
                found = self._default[index] = self._make(index)
            return found

    def another(self, index: int) -> Queue:
        """A new one while the pool isn't full, then those of the pool in turns."""
        with self._lock:
            pool, given = self._pool.setdefault(index, []), self._given.get(index, 0)
            self._given[index] = given + 1
            if len(pool) < POOL:
                pool.append(self._make(index))
            return pool[given % POOL]

    def current(self, index: int) -> Queue:
        """Where this thread launches."""
        entered = self._entered.queues.get(index)
        return entered[-1] if entered else self.default(index)

    def enter(self, index: int, queue: Queue) -> None:
        """This thread launches on ``queue`` until ``leave``."""
        self._entered.queues.setdefault(index, []).append(queue)

    def leave(self, index: int) -> None:
        """Back to where it launched before."""
        self._entered.queues[index].pop()

    def synchronize(self, index: int) -> None:
        """Let the host wait for all of them."""
        for queue in (self.default(index), *self._pool.get(index, ())):
            queue.synchronize()


class _Entered(threading.local):
    def __init__(self) -> None:
        self.queues: dict[int, list[Queue]] = {}


QUEUES: dict[str, DeviceQueues] = {}
"""Of registered devices that have streams, by name."""


# --- memory that other queues use --------------------------------------------------------------------------------------------


_users: weakref.WeakKeyDictionary[Storage, list[Queue]] = weakref.WeakKeyDictionary()
_lingering: list[tuple[Any, Sequence[Mark]]] = []


def used_on(storage: Storage, queue: Queue) -> None:
    """When the storage goes, its memory stays until ``queue`` has done what it was given by then."""
    users = _users.get(storage)
    if users is None:
        users = _users[storage] = []
        weakref.finalize(storage, _linger, storage.memory, users).atexit = False
    if not any(queue is user for user in users):
        users.append(queue)


def _linger(memory: Any, users: Sequence[Queue]) -> None:
    _lingering.append((memory, [queue.record_event() for queue in users]))


def let_go() -> None:
    """Of the memory that lingers, what is done with."""
    _lingering[:] = [held for held in _lingering if not all(mark.query() for mark in held[1])]
