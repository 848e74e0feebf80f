"""Log channels: ``TINYCOMPILE_LOG=graph,guards`` prints them to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from types import FrameType

import torch

from tinycompile.base.config import CHANNELS, config
from tinycompile.base.errors import FallbackWarning
from tinycompile.base.internal_frames import is_internal

_said: set[str] = set()
_NOT_THE_USERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    contextlib.__file__,  # what runs a context manager of ours
    "<tinycompile",
)


def enabled(channel: str) -> bool:
    """Whether somebody listens: ask before building a costly message."""
    if __debug__ and channel not in CHANNELS:
        raise ValueError(f"unknown log channel {channel!r}; there are {sorted(CHANNELS)}")
    return channel in config.log


def log(channel: str, message: str) -> None:
    """Print ``message``, each line under its channel's name, when the channel is on."""
    if enabled(channel):
        print("\n".join(f"[{channel}] {line}" for line in message.splitlines() or [""]), file=sys.stderr, flush=True)


def warn(message: str, category: type[Warning] = FallbackWarning) -> None:
    """A warning that points at the user's call: past our own frames, the code that we generated, and torch's."""
    warnings.warn(message, category, stacklevel=_users_frame()[1])


def user_line() -> str:
    """Where the user's program is now, as ``file:line``: past our own frames, generated code, and torch's. Empty in a thread
    that runs none of it."""
    frame = _users_frame()[0]
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _users_frame() -> tuple[FrameType | None, int]:
    """The innermost frame of the user's, and its level above the caller's, as ``warnings`` counts."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
        level += frame is None or not is_internal(frame.f_code)
    return frame, level


def warn_once(message: str, of: str = "", category: type[Warning] = FallbackWarning) -> None:
    """A warning once a process for each message, or for each ``of`` where messages of a kind differ in details."""
    if (of or message) not in _said:
        _said.add(of or message)
        warn(message, category)


def forget() -> None:
    """Say again what :func:`warn_once` has said."""
    _said.clear()
