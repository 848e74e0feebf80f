"""``tinycompile.cuda``: streams, events and memory of CUDA devices. Without one, all of it exists and does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinycompile.eager.memory import MemoryUse, memory
from tinycompile.eager.streams import Event, Spec, Stream, current_stream, default_stream, stream, synchronize

__all__ = [
    "Event", "MemoryUse", "Stream", "current_device", "current_stream", "default_stream", "device_count", "empty_cache",
    "is_available", "max_memory_allocated", "memory", "memory_allocated", "memory_reserved", "reset_peak_memory_stats",
    "stream", "synchronize",
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


def _number(read: Callable[..., int], device: Spec) -> int:
    return int(read(None if device is None else _torchs(device))) if torch.cuda.is_available() else 0


def _torchs(device: Any) -> Any:
    return device.torch() if hasattr(device, "torch") else device


def memory_allocated(device: Spec = None) -> int:
    """Bytes in tensors on a card; 0 without one."""
    return _number(torch.cuda.memory_allocated, device)


def memory_reserved(device: Spec = None) -> int:
    """Bytes that the allocator holds on a card; 0 without one."""
    return _number(torch.cuda.memory_reserved, device)


def max_memory_allocated(device: Spec = None) -> int:
    """The most bytes in tensors at once since the start or the last reset; 0 without a card."""
    return _number(torch.cuda.max_memory_allocated, device)


def reset_peak_memory_stats(device: Spec = None) -> None:
    """Count the peak from here."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats(None if device is None else _torchs(device))


def empty_cache() -> None:
    """Give cached blocks that nobody uses back to the system."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
