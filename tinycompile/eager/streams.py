"""Streams and events: queues of work on a CUDA device, and marks in them.

They are torch's own underneath (``raw``), so torch's code, compiled kernels and CUDA graphs launch on the same current stream.
A registered device may bring queues of its own. For a CPU there is one queue, which is always empty: everything here exists,
and does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tinycompile.base import torch_private
from tinycompile.base.device import Device
from tinycompile.eager.device_queues import QUEUES, DeviceQueues

Spec = Device | torch.device | str | int | None


def _placed(device: Spec) -> Device:
    """The device that is meant, with its index. Without one: the current card, where there is one, else the CPU."""
    if device is None:
        return Device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else Device("cpu")
    found = Device.of(device)
    if found.type == "cuda":
        return found if found.index >= 0 else Device("cuda", torch.cuda.current_device())
    return Device(found.type, max(found.index, 0)) if found.type in QUEUES else Device(found.type)


def _queues(device: Device) -> DeviceQueues | None:
    """Of a registered device that has streams."""
    return QUEUES.get(device.type)


class Stream:
    """A queue of work. What is launched inside ``with stream:`` runs in order with itself, and beside other streams.

    ``raw`` is torch's stream, or a registered device's; None where there are none."""

    __slots__ = ("_outer", "device", "raw")

    def __init__(self, device: Spec = None, priority: int = 0) -> None:
        """A new one. ``priority``: negative runs before, on a card."""
        self.device = _placed(device)
        queues = _queues(self.device)
        self.raw: Any = None
        if self.device.type == "cuda":
            self.raw = torch.cuda.Stream(self.device.index, priority=priority)
        elif queues is not None:
            self.raw = queues.another(self.device.index)
        self._outer: list[Any] = []

    @property
    def priority(self) -> int:
        """As it was asked for; 0 where there is none."""
        return int(getattr(self.raw, "priority", 0))

    @classmethod
    def of(cls, raw: Any, device: Device | None = None) -> Stream:
        """Around a stream of torch's, or of a registered ``device``'s."""
        made = cls.__new__(cls)
        made.raw, made.device, made._outer = raw, Device.of(raw.device) if device is None else device, []
        return made

    def wait_stream(self, other: Stream | torch.cuda.Stream) -> None:
        """What is launched here from now on runs after all that ``other`` has been given so far."""
        theirs = getattr(other, "raw", other)
        if self.raw is None or theirs is None:
            return
        if Device.of(other.device).type == self.device.type:
            self.raw.wait_event(theirs.record_event())
        else:  # devices of two kinds can't wait for each other: the host does
            theirs.synchronize()

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
        queues = _queues(self.device)
        if queues is not None:
            queues.enter(self.device.index, self.raw)
        elif self.raw is not None:
            entered = torch.cuda.stream(self.raw)
            entered.__enter__()
            self._outer.append(entered)
        return self

    def __exit__(self, *exc: Any) -> None:
        queues = _queues(self.device)
        if queues is not None:
            queues.leave(self.device.index)
        elif self.raw is not None:
            self._outer.pop().__exit__(*exc)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.raw) == (other.device, other.raw)

    def __hash__(self) -> int:
        return hash((self.device, self.raw))

    def __repr__(self) -> str:
        handle = getattr(self.raw, "cuda_stream", None)
        return f"Stream(device={self.device}{'' if handle is None else f', handle={handle:#x}'})"


class Event:
    """A mark in a stream. ``raw`` is torch's event, or after ``record`` on a stream of a registered device its mark; None
    without either."""

    __slots__ = ("_at", "_blocking", "_interprocess", "_where", "enable_timing", "raw")

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        """``enable_timing``: for :meth:`elapsed_time`. ``blocking``: :meth:`synchronize` sleeps and does not spin.
        ``interprocess``: torch's event (``raw``) can be handed to another process."""
        self.enable_timing, self._blocking, self._interprocess, self._at = enable_timing, blocking, interprocess, 0.0
        self._where: Device | None = None  # the registered device in whose queue it is
        self.raw: Any = self._of_torch()

    def _of_torch(self) -> Any:
        if not torch.cuda.is_available():
            return None
        return torch.cuda.Event(self.enable_timing, self._blocking, self._interprocess)

    def record(self, stream: Stream | torch.cuda.Stream | None = None) -> None:
        """Here is where ``stream`` (the current one) has got to with what it was given so far."""
        on: Any = getattr(stream, "raw", stream)
        if isinstance(stream, Stream) and _queues(stream.device) is not None:
            self.raw, self._where = on.record_event(), stream.device
        else:
            if self._where is not None:
                self.raw, self._where = self._of_torch(), None
            if self.raw is not None and (stream is None or on is not None):
                self.raw.record(*(() if on is None else (on,)))
        self._at = time.perf_counter()

    def wait(self, stream: Stream | torch.cuda.Stream | None = None) -> None:
        """What ``stream`` (the current one) is given from now on runs after this."""
        if stream is None and self._where is not None:
            stream = current_stream(self._where)
        on: Any = getattr(stream, "raw", stream)
        there = None if stream is None else Device.of(stream.device)
        if self.raw is None or (stream is not None and on is None):
            return
        if there is not None and (there.type if _queues(there) is not None else None) != (self._where and self._where.type):
            self.synchronize()  # devices of two kinds can't wait for each other: the host does
        elif self._where is not None:
            on.wait_event(self.raw)
        else:
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
    found = _placed(device)
    queues = _queues(found)
    if queues is not None:
        return Stream.of(queues.current(found.index), found)
    return Stream.of(torch.cuda.current_stream(found.index)) if found.type == "cuda" else _without_queue(found)


def default_stream(device: Spec = None) -> Stream:
    """The stream on which everything runs unless said otherwise."""
    found = _placed(device)
    queues = _queues(found)
    if queues is not None:
        return Stream.of(queues.default(found.index), found)
    return Stream.of(torch.cuda.default_stream(found.index)) if found.type == "cuda" else _without_queue(found)


def stream(chosen: Stream | torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """Launch on ``chosen`` inside a ``with`` block; None changes nothing."""
    if isinstance(chosen, Stream) and _queues(chosen.device) is not None:
        return chosen
    raw: Any = getattr(chosen, "raw", chosen)
    return _NOTHING if raw is None else torch.cuda.stream(raw)


def synchronize(device: Spec = None) -> None:
    """Let the host wait until a device has done everything. A CPU has."""
    found = _placed(device)
    queues = _queues(found)
    if queues is not None:
        queues.synchronize(found.index)
    elif found.type == "cuda":
        torch.cuda.synchronize(found.index)


def _without_queue(device: Device) -> Stream:
    return _CPU if device == _CPU.device else Stream(device)


_CPU = Stream("cpu")
_NOTHING = nullcontext()


# --- the backward pass -------------------------------------------------------------------------------------------------------


def where_launched(device: Device) -> Any:
    """The handle of the stream on which this thread launches on ``device`` (0 is the default one), or a registered device's
    queue."""
    if device.type == "cuda":
        return torch_private.raw_stream(max(device.index, 0))
    queues = QUEUES.get(device.type)
    return 0 if queues is None else queues.current(max(device.index, 0))


class OnStream:
    """Runs a step of the backward on its forward's stream: it waits for what the current stream was given, and the current
    stream for it; the memory of what crosses over is not given away before both are done with it."""

    __slots__ = ("before", "there")

    def __init__(self, device: Device, handle: Any) -> None:
        self.before, self.there = current_stream(device), _stream_at(_placed(device), handle)

    def run(self, step: Any, gradients: Sequence[Any]) -> Sequence[Any]:
        """``step()`` there. ``gradients``: what it reads."""
        self.there.wait_stream(self.before)
        _used_on(gradients, self.there)
        with self.there:
            results: Sequence[Any] = step()
        self.before.wait_stream(self.there)
        _used_on(results, self.before)
        return results


def _stream_at(device: Device, handle: Any) -> Stream:
    """The stream that :func:`where_launched` told."""
    if not handle:
        return default_stream(device)
    return Stream.of(torch.cuda.ExternalStream(handle, device.index) if device.type == "cuda" else handle, device)


def _used_on(tensors: Sequence[Any], on: Stream) -> None:
    for tensor in tensors:
        if tensor is not None and tensor.device.type == on.device.type:
            tensor.record_stream(on)
