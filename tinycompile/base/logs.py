"""Log channels: ``TINYCOMPILE_LOG=graph,guards`` prints them to stderr."""

from __future__ import annotations

import sys
import warnings

from tinycompile.base.config import CHANNELS, config
from tinycompile.base.errors import FallbackWarning

_said: set[str] = set()


def enabled(channel: str) -> bool:
    """Whether somebody listens: ask before building a costly message."""
    if __debug__ and channel not in CHANNELS:
        raise ValueError(f"unknown log channel {channel!r}; there are {sorted(CHANNELS)}")
    return channel in config.log


def log(channel: str, message: str) -> None:
    """Print ``message``, each line under its channel's name, when the channel is on."""
    if enabled(channel):
        print("\n".join(f"[{channel}] {line}" for line in message.splitlines() or [""]), file=sys.stderr, flush=True)


def warn_once(message: str) -> None:
    """A FallbackWarning, once a process for each message."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, FallbackWarning, stacklevel=3)
