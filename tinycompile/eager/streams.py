"""Streams and events: queues of work on a CUDA device, and marks in them.

They are torch's own underneath (``raw``), so torch's code, compiled kernels and CUDA graphs launch on the same current stream.
For a CPU there is one queue, which is always empty: everything here exists, and does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.device import Device

Spec = Device | torch.device | str | int | None


def _cuda_index(device: Spec) -> int | None:
    """The card that is meant; None for a CPU. Without a device: the current card, where there is one."""
    if device is None:
        return torch.cuda.current_device() if torch.cuda.is_available() else None
    found = Device.of(device)
    if found.type != "cuda":
        return None
    return found.index if found.index >= 0 else torch.cuda.current_device()


class Stream:
    """A queue of work. What is launched inside ``with stream:`` runs in order with itself, and beside other streams.

    ``raw`` is torch's stream, None for a CPU."""

    __slots__ = ("_outer", "device", "raw")

    def __init__(self, device: Spec = None, priority: int = 0) -> None:
        """A new one. ``priority``: negative runs before."""
        index = _cuda_index(device)
        self.raw: Any = None if index is None else torch.cuda.Stream(index, priority=priority)
        self.device = Device("cpu") if index is None else Device("cuda", index)
        self._outer: list[Any] = []

    @classmethod
    def of(cls, raw: torch.cuda.Stream) -> Stream:
        """Around a stream of torch's."""
        made = cls.__new__(cls)
        made.raw, made.device, made._outer = raw, Device.of(raw.device), []
        return made

    def wait_stream(self, other: Stream | torch.cuda.Stream) -> None:
        """What is launched here from now on runs after all that ``other`` has been given so far."""
        theirs = getattr(other, "raw", other)
        if self.raw is not None and theirs is not None:
            self.raw.wait_stream(theirs)

    def wait_event(self, event: Event) -> None:
        """What is launched here from now on runs after the event."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark the work given so far; a new event unless one is given."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Let the host wait until all is done."""
        if self.raw is not None:
            self.raw.synchronize()

    def query(self) -> bool:
        """Whether all is done."""
        return True if self.raw is None else bool(self.raw.query())

    def __enter__(self) -> Stream:
        if self.raw is not None:
            entered = torch.cuda.stream(self.raw)
            entered.__enter__()
            self._outer.append(entered)
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.raw is not None:
            self._outer.pop().__exit__(*exc)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.raw) == (other.device, other.raw)

    def __hash__(self) -> int:
        return hash((self.device, self.raw))

    def __repr__(self) -> str:
        return f"Stream(device={self.device}{'' if self.raw is None else f', handle={self.raw.cuda_stream:#x}'})"


class Event:
    """A mark in a stream. ``raw`` is torch's event, None without CUDA."""

    __slots__ = ("_at", "enable_timing", "raw")

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        """``enable_timing``: for :meth:`elapsed_time`. ``blocking``: :meth:`synchronize` sleeps and does not spin."""
        self.raw: Any = None
        if torch.cuda.is_available():
            self.raw = torch.cuda.Event(enable_timing=enable_timing, blocking=blocking)
        self.enable_timing, self._at = enable_timing, 0.0

    def record(self, stream: Stream | torch.cuda.Stream | None = None) -> None:
        """Here is where ``stream`` (the current one) has got to with what it was given so far."""
        on = getattr(stream, "raw", stream)
        if self.raw is not None and (stream is None or on is not None):
            self.raw.record(*(() if on is None else (on,)))
        self._at = time.perf_counter()

    def wait(self, stream: Stream | torch.cuda.Stream | None = None) -> None:
        """What ``stream`` (the current one) is given from now on runs after this."""
        on = getattr(stream, "raw", stream)
        if self.raw is not None and (stream is None or on is not None):
            self.raw.wait(*(() if on is None else (on,)))

    def synchronize(self) -> None:
        """Let the host wait for it."""
        if self.raw is not None:
            self.raw.synchronize()

    def query(self) -> bool:
        """Whether it has been reached."""
        return True if self.raw is None else bool(self.raw.query())

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this to ``end``: on the device's clock, on the host's for a CPU. Raises RuntimeError for events
        without timing, or that were not recorded."""
        if self.raw is not None:
            return float(self.raw.elapsed_time(end.raw))
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._at and end._at):
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._at - self._at) * 1e3


def current_stream(device: Spec = None) -> Stream:
    """The stream on which this thread launches."""
    index = _cuda_index(device)
    return Stream.of(torch.cuda.current_stream(index)) if index is not None else _CPU


def default_stream(device: Spec = None) -> Stream:
    """The stream on which everything runs unless said otherwise."""
    index = _cuda_index(device)
    return Stream.of(torch.cuda.default_stream(index)) if index is not None else _CPU


def stream(chosen: Stream | torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """Launch on ``chosen`` inside a ``with`` block; None changes nothing."""
    raw: Any = getattr(chosen, "raw", chosen)
    return _NOTHING if raw is None else torch.cuda.stream(raw)


def synchronize(device: Spec = None) -> None:
    """Let the host wait until a device has done everything. A CPU has."""
    index = _cuda_index(device)
    if index is not None:
        torch.cuda.synchronize(index)


_CPU = Stream("cpu")
_NOTHING = nullcontext()


# --- the backward pass -------------------------------------------------------------------------------------------------------


def where_launched(device: Device) -> int:
    """The handle of the stream on which this thread launches on ``device``; 0 is the default one."""
    return torch_private.raw_stream(max(device.index, 0)) if device.type == "cuda" else 0


class OnStream:
    """Runs a step of the backward on its forward's stream: it waits for what the current stream was given, and the current
    stream for it; the memory of what crosses over is not given away before both are done with it."""

    __slots__ = ("before", "index", "there")

    def __init__(self, device: Device, handle: int) -> None:
        self.index = max(device.index, 0)
        self.before = torch.cuda.current_stream(self.index)
        self.there = torch.cuda.ExternalStream(handle, self.index) if handle else torch.cuda.default_stream(self.index)

    def run(self, step: Any, gradients: Sequence[Any]) -> Sequence[Any]:
        """``step()`` there. ``gradients``: what it reads."""
        self.there.wait_stream(self.before)
        _used_on(gradients, self.there)
        with torch.cuda.stream(self.there):
            results: Sequence[Any] = step()
        self.before.wait_stream(self.there)
        _used_on(results, self.before)
        return results


def _used_on(tensors: Sequence[Any], on: torch.cuda.Stream) -> None:
    for tensor in tensors:
        if tensor is not None and tensor.device.type == "cuda":
            tensor.raw().record_stream(on)
