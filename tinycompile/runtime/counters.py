"""Counters that kernels meet at: memory that every launch finds and leaves at zero, so that no launch of its own clears it.

One buffer a stream serves all kernels, for launches of one stream run one after another.
"""

from __future__ import annotations

import torch

from tinycompile.base import torch_private

LEAST = 4096  # int32 elements


class Counters:
    """The counters of a device; called with the number that a launch needs."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.held: dict[int, torch.Tensor] = {}

    def __call__(self, count: int) -> torch.Tensor:
        """int32, at least ``count`` elements, for the next launch on the current stream. While a CUDA graph is recorded they
        are the graph's own, cleared by each replay, for replays of several graphs may overlap."""
        if torch.cuda.is_current_stream_capturing():
            return self.fresh(count)
        stream = torch_private.raw_stream(self.index)
        held = self.held.get(stream)
        if held is None or held.numel() < count:
            held = self.held[stream] = self.fresh(max(count, LEAST))
        return held

    def fresh(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=torch.device("cuda", self.index))
