"""``tinycompile.cuda``: streams, events and memory of devices, under ``torch.cuda``'s names. All of it exists everywhere."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.eager.memory import MemoryUse, memory, reset_peak
from tinycompile.eager.streams import Event, Spec, Stream, current_stream, default_stream, stream, synchronize
from tinycompile.eager.tensor import Tensor, from_torch

__all__ = [
    "Event", "MemoryUse", "Stream", "current_device", "current_stream", "default_stream", "device_count", "empty_cache",
    "is_available", "max_memory_allocated", "memory", "memory_allocated", "memory_reserved", "record_stream",
    "reset_peak_memory_stats", "stream", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def device_count() -> int:
    """How many."""
    return torch.cuda.device_count()


def current_device() -> int:
    """The index of the current one. Raises what torch raises where there is none."""
    return torch.cuda.current_device()


def record_stream(tensor: Any, stream: Stream | torch.cuda.Stream) -> None:
    """``tensor.record_stream(stream)`` for tensors of either kind: torch's own take no stream of ours."""
    ours = tensor if isinstance(tensor, Tensor) else from_torch(tensor)
    ours.record_stream(stream)


def _use(device: Spec) -> MemoryUse | None:
    """What is in use there; None where no device is named and there is no card."""
    return None if device is None and not torch.cuda.is_available() else memory(device)


def memory_allocated(device: Spec = None) -> int:
    """Bytes in tensors on a device, as :func:`memory` tells; without one, on the current card: 0 where there is none."""
    use = _use(device)
    return 0 if use is None else use.allocated


def memory_reserved(device: Spec = None) -> int:
    """Bytes that the allocator holds on a device, as ``memory_allocated``."""
    use = _use(device)
    return 0 if use is None else use.reserved


def max_memory_allocated(device: Spec = None) -> int:
    """The most bytes in tensors at once since the start or the last reset, as ``memory_allocated``."""
    use = _use(device)
    return 0 if use is None else use.peak


def reset_peak_memory_stats(device: Spec = None) -> None:
    """Count the peak from here."""
    use = _use(device)
    if use is not None:
        reset_peak(use.device)


def empty_cache() -> None:
    """Give cached blocks that nobody uses back to the system."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
