"""Log channels: ``TINYCOMPILE_LOG=graph,guards`` prints them to stderr."""

from __future__ import annotations

import sys

from tinycompile.base.config import CHANNELS, config


def enabled(channel: str) -> bool:
    """Whether somebody listens: ask before building a costly message."""
    if __debug__ and channel not in CHANNELS:
        raise ValueError(f"unknown log channel {channel!r}; there are {sorted(CHANNELS)}")
    return channel in config.log


def log(channel: str, message: str) -> None:
    """Print ``message``, each line under its channel's name, when the channel is on."""
    if enabled(channel):
        print("\n".join(f"[{channel}] {line}" for line in message.splitlines() or [""]), file=sys.stderr, flush=True)
