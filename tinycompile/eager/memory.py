"""Memory: how much there is in use by device, which tensors hold which storage, and where each was made.

CUDA's numbers are those of torch's caching allocator. A CPU's are counted here: the storages of all live tensors, ours and
torch's. Where a storage was made is known while ``trace_storages()`` is active.
"""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.holdings import register_holder
from tinycompile.base.logs import user_line
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import BACKENDS, Key, KeySet
from tinycompile.eager.storage import Storage
from tinycompile.eager.streams import Spec
from tinycompile.eager.tensor import Tensor
from tinycompile.eager.torch_calls import TorchsCall


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device. ``allocated``: in tensors; ``reserved``: asked of the system, cached blocks included; ``peak``: the
    most that was allocated at once. On a CPU reserved is allocated, and the peak is that of the traces so far."""

    device: Device
    allocated: int
    reserved: int
    peak: int

    def __str__(self) -> str:
        told = (f"{name} {_mib(getattr(self, name))}" for name in ("allocated", "reserved", "peak"))
        return f"{self.device}: {', '.join(told)}"


@dataclass(frozen=True)
class StorageInfo:
    """One storage. ``tensors``: every live tensor on it, in words; ``made``: by which op, at which line of the user's (empty
    where it wasn't traced)."""

    device: Device
    nbytes: int
    address: int
    tensors: tuple[str, ...]
    made: str = ""

    def __str__(self) -> str:
        made = f", made by {self.made}" if self.made else ""
        return f"{_mib(self.nbytes)} on {self.device} at {self.address:#x}{made}: {'; '.join(self.tensors)}"


def memory(device: Spec = None) -> MemoryUse:
    """How much of a device's memory is in use. ``device``: the current card, or the CPU where there is none."""
    found = _device(device)
    if found.type == "cuda":
        at = found.torch()
        numbers = torch.cuda.memory_allocated(at), torch.cuda.memory_reserved(at), torch.cuda.max_memory_allocated(at)
        return MemoryUse(found, *numbers)
    held = sum(info.nbytes for info in storages(found))
    return MemoryUse(found, held, held, max(held, STORAGES.peak.get(found.type, 0)))


def reset_peak(device: Device) -> None:
    """Count the peak of a device from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch())
    else:
        STORAGES.peak[device.type] = STORAGES.held.get(device.type, 0)


def storages(device: Spec = None) -> list[StorageInfo]:
    """Every storage that a live tensor of ours or of torch's holds, the largest first. ``device``: only there.

    Looks through all objects that Python's collector knows, so it takes some milliseconds and costs nothing otherwise. What a
    tensor of C++ alone holds (torch's autograd graph) is not seen. The torch handle of a tensor of ours is not counted beside
    it."""
    wanted = None if device is None else _device(device)
    found: dict[int, tuple[Storage, list[str]]] = {}
    live = list(_live_tensors())
    handles = {id(h) for t in live if isinstance(t, Tensor) for h in (t._handle, t._viewed)}  # parts of ours
    for tensor in live:
        if id(tensor) in handles:
            continue
        storage = _storage(tensor)
        if storage is not None:
            found.setdefault(storage.key, (storage, []))[1].append(_told(tensor))
    infos = []
    for key, (storage, tensors) in found.items():
        if wanted is None or _fits(storage.device, wanted):
            made = STORAGES.origins.get(key, "")
            infos.append(StorageInfo(storage.device, storage.nbytes, storage.data_ptr(), tuple(sorted(tensors)), made))
    return sorted(infos, key=lambda i: (-i.nbytes, i.address))


class StorageTrace:
    """What is known of storages by their id: an entry goes when its storage does. ``held`` and ``peak``: bytes by device type,
    of the storages that were noted."""

    def __init__(self) -> None:
        self.origins: dict[int, str] = {}
        self.held: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self._lock = threading.Lock()
        self._alive: dict[int, weakref.ref[Any]] = {}

    def watcher(self, name: str, keyset: KeySet, choice: dispatcher.Choice) -> dispatcher.Boxed:
        """Runs a backend's kernels and notes what they return."""
        run = choice.run
        if choice.key not in BACKENDS or choice.key == Key.META or choice.kind == "composite":
            return run

        def noted(name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
            result = run(name, keyset, args)
            self._note_made(name, args, result)
            return result

        return noted

    def torchs_call(self, call: TorchsCall, run: Callable[[], Any]) -> Any:
        """The same for calls that go past the dispatcher."""
        result = run()
        self._note_made(call.name, call.args, result)
        return result

    def _note_made(self, by: str, args: Any, result: Any) -> None:
        """The results whose memory is no operand's."""
        given = {s.key for t in dispatcher.tensors_in(args) if (s := _storage(t)) is not None}
        for tensor in dispatcher.results_in(result):
            storage = _storage(tensor)
            if storage is not None and storage.key not in given:
                self.note(tensor, by)

    def note(self, tensor: Any, by: str) -> None:
        """The tensor's storage is new, unless it is known already."""
        storage = _storage(tensor)
        if storage is None:
            return
        key, lives = storage.key, storage if storage.memory is not None else storage.untyped
        with self._lock:
            known = self._alive.get(key)
            if known is not None and known() is not None:
                return
            kind, size = storage.device.type, storage.nbytes
            self._alive[key] = weakref.ref(lives, self._forgetter(key, kind, size))
            line = user_line()
            self.origins[key] = f"{by} at {line}" if line else by
            self.held[kind] = self.held.get(kind, 0) + size
            self.peak[kind] = max(self.peak.get(kind, 0), self.held[kind])

    def _forgetter(self, key: int, kind: str, size: int) -> Callable[[Any], None]:
        def forget(reference: Any) -> None:
            self.held[kind] -= size
            if self._alive.get(key) is reference:
                del self._alive[key], self.origins[key]

        return forget


STORAGES = StorageTrace()


def _told_holdings() -> str:
    """The storages of our tensors, and the three largest."""
    ours = [info for info in storages() if any(t.startswith("tinycompile") for t in info.tensors)]
    if not ours:
        return ""
    largest = ", ".join(f"{_mib(i.nbytes)} on {i.device}{f' ({i.made})' if i.made else ''}" for i in ours[:3])
    return f"{len(ours)} storages of {_mib(sum(i.nbytes for i in ours))}, the largest {largest}"


register_holder("tensors", _told_holdings)


def _device(device: Spec) -> Device:
    if device is None:
        return Device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else Device("cpu")
    found = Device.of(device)
    return Device("cuda", torch.cuda.current_device()) if found == Device("cuda") else found


def _fits(where: Device, wanted: Device) -> bool:
    return where.type == wanted.type and (wanted.index < 0 or max(where.index, 0) == wanted.index)


def _live_tensors() -> Iterator[Any]:
    for found in gc.get_objects():
        kind = type(found)  # isinstance would ask proxies, which may answer anything
        if issubclass(kind, (Tensor, torch.Tensor)):
            yield found


def _storage(tensor: Any) -> Storage | None:
    """The storage below a tensor; None for meta, fake and sparse tensors, and for wrappers that torch's transforms make."""
    if tensor.device.type == "meta" or (isinstance(tensor, Tensor) and tensor.keys >> Key.TRACING & 1):
        return None
    try:
        return tensor.storage if isinstance(tensor, Tensor) else Storage.of(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def _told(tensor: Any) -> str:
    kind = "tinycompile.Tensor" if isinstance(tensor, Tensor) else f"torch.{type(tensor).__name__}"
    return f"{kind} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 or not count else f"{math.ceil(count)} B"
