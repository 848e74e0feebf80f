"""Counters that kernels meet at: memory that is zero when a launch begins, without a launch of its own that clears it.

There are two sets a stream, used in turns: each launch clears as many of the other set as it uses itself. Both serve all
kernels of a wrapper, for launches of one stream run one after another.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from tinycompile.base import torch_private
from tinycompile.runtime.recording import recording

LEAST = 1024  # int32 elements


@dataclass
class Sets:
    """``ready`` is zero throughout; ``other`` is zero but for its first ``used`` elements."""

    ready: torch.Tensor
    other: torch.Tensor
    used: int = 0


class Counters:
    """The counters of a device; called with the number that a launch needs, under ``lock``, which is held until that launch is
    on its stream."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.held: dict[int, Sets] = {}
        self.lock = threading.Lock()

    def __call__(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For the next launch on the current stream: int32 zeros, at least ``count`` of them, and what that launch must clear.
        While a CUDA graph is recorded they are the graph's own, cleared by each replay, for replays of several graphs may
        overlap."""
        if torch.cuda.is_current_stream_capturing():
            if not recording.on:
                return self.fresh(count), self.fresh(count)
            given = recording.counters(count, torch.device("cuda", self.index))
            return given, recording.counters(count, given.device)
        stream = torch_private.raw_stream(self.index)
        sets = self.held.get(stream)
        if sets is None or sets.ready.numel() < count:
            size = max(count, LEAST)
            sets = self.held[stream] = Sets(self.fresh(size), self.fresh(size))
        if sets.used > count:  # an earlier launch used more than this one clears
            sets.other.zero_()
        given, spare = sets.ready, sets.other
        sets.ready, sets.other, sets.used = spare, given, count
        return given, spare

    def fresh(self, count: int) -> torch.Tensor:
        """Zeros of this device."""
        return torch.zeros(count, dtype=torch.int32, device=torch.device("cuda", self.index))
