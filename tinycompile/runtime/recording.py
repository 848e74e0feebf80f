"""What a thread knows while it records a CUDA graph for us."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

ROOM = 16384  # int32 elements that are cleared at once


class _Recording(threading.local):
    """``on``: whether this thread's launches are being recorded by us. ``zeros``: memory that each replay clears; the first
    ``used`` of its elements are given away."""

    on = False
    zeros: torch.Tensor | None = None
    used = 0

    def counters(self, count: int, device: torch.device) -> torch.Tensor:
        """``count`` int32 elements that are 0 when a replay comes to the launch they are asked for. They are parts of few
        tensors: to clear each alone would be a launch for each."""
        if self.zeros is None or self.used + count > self.zeros.numel() or self.zeros.device != device:
            self.zeros, self.used = torch.zeros(max(count, ROOM), dtype=torch.int32, device=device), 0
            self.kept.append(self.zeros)
        begin, self.used = self.used, self.used + count
        return self.zeros[begin : self.used]

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []  # until the recording ends, nothing else may lie there


recording = _Recording()


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """This thread records a graph."""
    recording.on = True
    try:
        yield
    finally:
        recording.on, recording.zeros, recording.used = False, None, 0
        recording.kept.clear()
