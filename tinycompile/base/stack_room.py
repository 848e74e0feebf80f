"""How much of Python's stack is left: capture takes several frames for one of the program's, and so do wrappers of compiled
functions that call each other. The program must not miss them."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import CodeType, FrameType

import torch

from tinycompile.base.internal_frames import is_ours

_C_COUNTS = sys.version_info < (3, 12)  # calls from C take of the same limit
_CALLED = ("__call__", torch.nn.Module.__call__.__name__)  # those of objects
_KEPT = 250  # frames for what capture and the stages behind it do besides following calls
_MOST = 6000  # frames, however many Python allows: wrappers that call each other take of C's stack, too
_MOST_OF_OURS = 12_000  # in each call of a wrapper are three, and they take a KiB of the 8 MiB that there are


class _Thread(threading.local):
    """For how many of its frames the limit was raised. ``at``: up to which frame (its id) how many of ours were counted.
    ``left``: how many frames the interpreter lets it have yet, and the limit."""

    frames = 0
    at: tuple[int, int] = (0, 0)

    def __init__(self) -> None:
        self.left: memoryview[int] | None = None if _LEFT_AT is None else _numbers(_state() + _LEFT_AT, 2)


def _state() -> int:
    """Where the interpreter keeps what it knows of this thread, which lies there as long as the thread's variables do."""
    read = ctypes.pythonapi.PyThreadState_Get
    read.restype = ctypes.c_void_p
    return int(read())


def _numbers(address: int, count: int) -> memoryview[int]:
    """The C ints that lie there, as they are whenever they are read."""
    return memoryview((ctypes.c_int * count).from_address(address)).cast("B").cast("i")


def _left_at() -> int | None:
    """Where in it the frames that are left and the limit are (``PyThreadState`` in ``cpython/pystate.h``): a number that calls
    lower by one each, before one that is the limit. None where that is not seen."""

    def seen(calls: int) -> list[int]:
        return seen(calls - 1) if calls else list(_numbers(_state(), 32))

    at_first, then, limit = seen(0), seen(3), sys.getrecursionlimit()
    found = [i for i in range(31) if at_first[i] - then[i] == 3 and at_first[i + 1] == then[i + 1] == limit]
    return found[0] * ctypes.sizeof(ctypes.c_int) if len(found) == 1 else None


_LEFT_AT = _left_at() if sys.implementation.name == "cpython" else None
_thread = _Thread()


class _Limit:
    """Python's recursion limit, which is one for all threads: what the program set, and what was added for frames of ours."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.era = self.programs = self.added = self.now = 0

    def of_this_thread(self) -> int:
        """What the program set, and what was added for frames of this thread."""
        now = sys.getrecursionlimit()
        return self.programs + _thread.frames if self.added and now == self.now else now

    def add(self, frames: int) -> int:
        """Raise it. Returns the era: another after each time that the program set the limit."""
        with self.lock:
            now = sys.getrecursionlimit()
            if not self.added or now != self.now:
                self.era, self.programs, self.added = self.era + 1, now, 0
            sys.setrecursionlimit(self.programs + self.added + frames)
            self.added += frames
            self.now = self.programs + self.added
            return self.era

    def take_back(self, frames: int, era: int) -> None:
        """Lower it by what was added in an era, if it lasts."""
        with self.lock:
            if era != self.era or sys.getrecursionlimit() != self.now:
                return
            self.added -= frames
            try:
                sys.setrecursionlimit(self.programs + self.added)
            except RecursionError:  # so many frames are there, still: whoever leaves them lowers it
                return
            self.now = self.programs + self.added


_limit = _Limit()


def has_room() -> bool:
    """Whether so much is left of what the program allows (``sys.setrecursionlimit``) that a call may still be followed."""
    counts = _thread.left
    if counts is None:
        return _has_room_by_frames()
    left, limit = counts[0], counts[1]
    if limit <= _MOST and not _limit.added:
        return left > _KEPT
    return limit - left < min(_limit.of_this_thread(), _MOST) - _KEPT


def _has_room_by_frames() -> bool:
    """The same by a look at the stack."""
    most = max(min(_limit.of_this_thread(), _MOST) - _KEPT, 1)
    try:
        sys._getframe(most // 2 if _C_COUNTS else most)
    except ValueError:  # there are not so many frames
        return True
    return _C_COUNTS and _depth(sys._getframe()) < most


def _depth(frame: FrameType | None) -> int:
    """What a frame, and those below it, take of the limit."""
    count = 0
    while frame is not None:
        count += _taken_by(frame.f_code)
        frame = frame.f_back
    return count


def _taken_by(code: CodeType) -> int:
    """What a frame takes of the limit: up to Python 3.11 the call of an object by its class's method takes as much again."""
    return 2 if _C_COUNTS and code.co_name in _CALLED else 1


class RoomForOurs:
    """A context manager within which frames of ours that are on the stack already don't count."""

    __slots__ = ("_era", "_frames", "_was_at")

    def __enter__(self) -> None:
        caller = sys._getframe(1)
        ours = _count_of_ours(caller)
        if ours > _MOST_OF_OURS:
            raise RecursionError("maximum recursion depth exceeded")  # before C's stack ends, and the process with it
        self._frames, self._was_at = max(ours - _thread.frames, 0), _thread.at
        self._era = _limit.add(self._frames)
        _thread.frames += self._frames
        _thread.at = id(caller), ours

    def __exit__(self, *_: object) -> None:
        _thread.at = self._was_at
        _thread.frames -= self._frames
        _limit.take_back(self._frames, self._era)


def _count_of_ours(frame: FrameType | None) -> int:
    """What frames of ours take, from one on down. Those below the last that was counted from are there as they were."""
    count, (last, below) = 0, _thread.at
    while frame is not None:
        if id(frame) == last:
            return count + below
        count += _taken_by(frame.f_code) if is_ours(frame.f_code) else 0
        frame = frame.f_back
    return count
