"""Memory of a registered device: what is in its slot, and copies between it and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.base.torch_private import storage_id
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key
from tinycompile.eager.as_strided import note_place
from tinycompile.eager.device_queues import Queue
from tinycompile.eager.storage import Storage
from tinycompile.eager.streams import current_stream
from tinycompile.eager.tensor import Tensor, extent, from_torch, unwrap, view_of, writes_of
from tinycompile.eager.write_checks import warn_of_resize
from tinycompile.ops.record import Op

Memory = Any
_PRIVATE = Key.PRIVATEUSE1.bit


@dataclass(frozen=True)
class RegisteredDevice:
    """What :func:`register_device` was given."""

    name: str
    allocator: Callable[[int, int], Memory]
    copy: Callable[[Memory, Memory], None]
    kernels: Mapping[str, Callable[..., None]]
    codegen: Callable[..., Any] | None = None
    streams: Callable[[int], Queue] | None = None


class _Slot:
    taken: RegisteredDevice | None = None


slot = _Slot()


def registered() -> RegisteredDevice | None:
    """The device in the slot."""
    return slot.taken


def is_registered(device: Device | None) -> bool:
    """Whether it is the device in the slot."""
    return slot.taken is not None and device is not None and device.type == slot.taken.name


# --- copies ------------------------------------------------------------------------------------------------------------------


def _copy(to: Memory, of: Memory, device: Device) -> None:
    """All bytes, once the current stream has done what it was given."""
    assert slot.taken is not None
    current_stream(device).synchronize()
    slot.taken.copy(to, of)


def to_host(tensor: Tensor, copied: dict[int, torch.Tensor] | None = None) -> torch.Tensor:
    """A torch tensor on the CPU with the same values, shape and strides. ``copied``: storages that are there already, by key;
    tensors that share one do so on the CPU."""
    storage, meta = tensor.storage, tensor.meta
    flat = None if copied is None else copied.get(storage.key)
    if flat is None:
        flat = torch.empty(storage.nbytes, dtype=torch.uint8, device="cpu")
        _copy(torch.from_dlpack(flat), storage.memory, tensor.device)  # (what numpy has seen of a storage can't be resized)
        if copied is not None:
            copied[storage.key] = flat
    typed = torch.empty(0, dtype=meta.dtype, device="cpu").set_(
        flat.untyped_storage(), 0, (storage.nbytes // meta.dtype.itemsize,), (1,)
    )
    placed: Any = meta.shape, meta.strides, meta.offset
    return typed.as_strided(*placed)


def from_host(value: torch.Tensor, device: Device) -> Tensor:
    """A tensor on the device with the values and strides of one on the CPU."""
    if value.layout is not torch.strided:
        raise NotImplementedError(f"{device} has no tensors of layout {value.layout}")
    value = value.resolve_conj().resolve_neg()
    made = allocate(TensorMeta(tuple(value.shape), value.stride(), value.dtype, device, 0))
    if count := extent(made.meta):
        whole = value.as_strided((count,), (1,)).view(torch.uint8)  # dims of stride 0, too
        _copy(made.storage.memory, whole, made.device)
    return made


def as_copied(host: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """What torch makes of it on another device: without gaps or dims of stride 0, in memory of its own."""
    wanted = torch.preserve_format if memory_format is None else memory_format
    strides = torch.empty_like(host, memory_format=wanted, device="meta").stride()
    own = host.untyped_storage().nbytes() == host.numel() * host.itemsize
    return host if own and host.stride() == strides else host.clone(memory_format=wanted)


def allocate(meta: TensorMeta) -> Tensor:
    """An uninitialised tensor there."""
    device = Device(meta.device.type, max(meta.device.index, 0))
    placed = TensorMeta(meta.shape, meta.strides, meta.dtype, device, 0)
    return Tensor(Storage(extent(placed) * meta.dtype.itemsize, device), placed)


def copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """``copy.deepcopy``: it lies in a copy of its whole storage as it lies in that. ``memo``: what is copied already, by id."""
    old = tensor.storage
    storage = memo.get(id(old))
    if storage is None:
        storage = memo[id(old)] = Storage(old.nbytes, old.device)
        _copy(storage.memory, old.memory, old.device)
    return Tensor(storage, tensor.meta)


def fit(out: Tensor, meta: TensorMeta) -> None:
    """Resize an ``out=`` of another size, as torch with its warning: the storage grows where it is too small."""
    if out.shape == meta.shape:
        return
    warn_of_resize(out.shape, meta.shape)
    out._meta = TensorMeta(meta.shape, meta.strides, out.dtype, out.device, out.offset)
    old, nbytes = out.storage, extent(out.meta) * out.dtype.itemsize
    if nbytes > old.nbytes:
        host = torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
        _copy(host[: old.nbytes], old.memory, out.device)
        old.grow(nbytes)
        _copy(old.memory, host, out.device)


def write(tensor: Tensor, value: torch.Tensor) -> None:
    """Set a tensor's elements, or those of a view. What else is in its storage stays."""
    host = to_host(tensor)
    host.copy_(value)
    put_back(tensor, host)


def put_back(tensor: Tensor, host: torch.Tensor) -> None:
    """All bytes of the host's storage into that of the tensor, which has as many."""
    _copy(tensor.storage.memory, torch.empty(0, dtype=torch.uint8, device="cpu").set_(host.untyped_storage()), tensor.device)
    tensor.storage.changes += 1
    writes_of(tensor).count += 1


def take_over(
    tensor: Tensor, host: torch.Tensor, storage: torch.UntypedStorage, given: Sequence[tuple[Any, torch.Tensor, int]]
) -> None:
    """What a function wrote to a copy on the host in ``storage``, and where it made that lie: ``as_strided_``, or ``set_`` on
    the memory of another tensor that was ``given``."""
    now = host.untyped_storage()
    if storage_id(now) != storage_id(storage):
        other = next((t for t, h, _ in given if h is not host and _share(h, host) and getattr(t, "lacks_handle", False)), None)
        if other is None:
            raise NotImplementedError(f"{tensor.device} can't give a tensor other memory")
        tensor._writes = writes_of(tensor)
        tensor._writes.count += 1
        tensor._meta, tensor._storage = placed_as(host, tensor.device), other.storage
        return
    if now.nbytes() > tensor.storage.nbytes:
        tensor.storage.grow(now.nbytes())
    tensor._meta = placed_as(host, tensor.device)
    put_back(tensor, host)


def placed_as(host: torch.Tensor, device: Device) -> TensorMeta:
    """Where a tensor on the host lies in its storage, for one on the device."""
    if host.is_conj() or host.is_neg():
        raise NotImplementedError(f"{device} has no views whose elements are conjugated or negated")
    return TensorMeta(tuple(host.shape), host.stride(), host.dtype, device, int(host.storage_offset()))


# --- arguments and results of functions on the host --------------------------------------------------------------------------


def device_of(args: Sequence[Any], op: Op | None = None) -> Device:
    """What is given for the op's device argument, else that of the tensors on the registered device among the arguments."""
    at = None if op is None or op.name == "to_device" else op.schema.device_arg
    if at is not None and args[at] is not None:
        return Device.of(args[at])
    for tensor in dispatcher.tensors_in(args):
        if dispatcher.keys_of(tensor) & _PRIVATE:
            return Device.of(tensor.device)
    return Device.of(next(filter(is_named, args)))


def check_indices(of: Any, index: Any) -> None:
    """Indices lie on the CPU or where the tensor is. Raises RuntimeError as torch does."""
    allowed = Device("cpu"), Device.of(of.device)
    if any(Device.of(t.device) not in allowed for t in dispatcher.tensors_in((index,))):
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({allowed[1]})")


def is_named(value: Any) -> bool:
    """Whether it names the device in the slot."""
    if isinstance(value, str):
        return slot.taken is not None and value.partition(":")[0] == slot.taken.name
    return isinstance(value, (Device, torch.device)) and is_registered(Device.of(value))


def hosted(value: Any, copied: dict[int, torch.Tensor] | None = None) -> Any:
    """CPU tensors for those of the device, the CPU for the device itself; also in lists. ``copied``: as of :func:`to_host`, and
    tensors that are there already, by their ids."""
    copied = {} if copied is None else copied
    if isinstance(value, Tensor):
        if not value.keys & _PRIVATE:
            return value.raw()
        if id(value) not in copied:
            copied[id(value)] = to_host(value, copied)
        return copied[id(value)]
    if is_named(value):
        return torch.device("cpu")
    if isinstance(value, (Device, torch.device)):
        return unwrap(value)
    if type(value) is dict:
        return {k: hosted(v, copied) for k, v in value.items()}
    return type(value)(hosted(v, copied) for v in value) if type(value) in (tuple, list) else value


def returned(value: Any, device: Device, given: Sequence[tuple[Any, Any, int]] = ()) -> Any:
    """What the CPU computed, on the device again. A tensor that was given is itself, a view of it a view there."""
    if isinstance(value, torch.Tensor):
        for tensor, host, _ in given:
            if value is host:
                return tensor
            if isinstance(tensor, Tensor) and tensor.keys & _PRIVATE and _share(value, host):
                view = view_of(tensor, placed_as(value, tensor.device))
                if value._is_view():
                    note_place(view, tensor)
                return view
        return from_host(value.detach(), device) if is_registered(device) else from_torch(value)
    if isinstance(value, Tensor) and is_registered(device) and not value.keys & _PRIVATE:  # what a vmap around drew
        return dispatcher.call("to_device", value, device)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [returned(v, device, given) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    strided = a.layout is b.layout is torch.strided
    return strided and storage_id(a.untyped_storage()) == storage_id(b.untyped_storage())
