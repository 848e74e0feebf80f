"""Devices that users add: ``register_device`` fills the PrivateUse1 slot with an allocator, a copy and kernels.

A tensor there has metadata and a :class:`Storage` like any other, but no torch handle: its bytes are whatever the allocator
returned. Views need no kernel. An op without one runs through its decomposition, or on the CPU between two copies, with a
warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.device import Device, rename_privateuse1
from tinycompile.base.logs import warn_once
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import contiguous_strides
from tinycompile.base.torch_private import give_device_module, storage_id
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager.backends import MAY_COPY, SEVERAL_VIEWS, is_same, is_view, make_view, meta_of, named_results, run_torch
from tinycompile.eager.device_queues import QUEUES, DeviceQueues, Queue, let_go, used_on
from tinycompile.eager.in_parts import in_parts
from tinycompile.eager.storage import ALLOCATORS, Storage
from tinycompile.eager.streams import current_stream
from tinycompile.eager.tape import note_view
from tinycompile.eager.tensor import Tensor, extent, from_torch, unwrap, view_of
from tinycompile.eager.write_checks import check_write, expanded, warn_of_resize
from tinycompile.ops.record import OPS, BoundCall, Decompose, Op, Pointwise

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


_registered: RegisteredDevice | None = None


def register_device(
    name: str,
    allocator: Callable[[int, int], Memory],
    copy: Callable[[Memory, Memory], None],
    kernels: Mapping[str, Callable[..., None]],
    codegen: Callable[..., Any] | None = None,
    streams: Callable[[int], Queue] | None = None,
) -> Device:
    """Add a device: ``tinycompile.zeros(3, device=name)``, ``x.to(name)`` and ``f"{name}:1"`` work from then on.

    ``allocator(nbytes, index)`` returns memory, any object; it is let go of when nobody holds the storage. ``copy(to, of)``
    copies all bytes between two memories of one size; the host's are flat uint8 torch tensors. ``kernels``: by the name of the
    op's record, each called as ``kernel(out, *args)``: ``out`` is a new tensor (a tuple of them where the op has several
    results) in the shape, strides and dtype that the record says, ``args`` are in schema order. ``codegen(kernel, plan)``
    compiles one fused kernel: see ``docs/add_a_backend.md``. ``streams(index)`` makes a queue of work with the methods of
    :class:`~tinycompile.eager.device_queues.Queue`, for ``tinycompile.cuda.Stream(name)`` and its like; kernels launch on
    ``tinycompile.cuda.current_stream(out.device).raw``, and ``copy`` is called when that has done what it was given. Returns
    the device.

    There is one slot, as in torch (whose ``privateuseone`` is renamed too). Raises RuntimeError when it is taken under another
    name, KeyError for a kernel of an op that has no record, TypeError for what can't be called, ValueError for what is no name.
    """
    global _registered
    unknown = sorted(set(kernels) - OPS.keys())
    if unknown:
        raise KeyError(f"no op record is called {', '.join(unknown)}")
    if not name.isidentifier():  # torch would take it, for good
        raise ValueError(f"the name of a device is letters, digits and underscores, not {name!r}")
    given = {"allocator": allocator, "copy": copy, **{f"the kernel of {op}": kernel for op, kernel in kernels.items()}}
    optional = {"codegen": codegen, "streams": streams}
    for what, fn in (given | {what: fn for what, fn in optional.items() if fn is not None}).items():
        if not callable(fn):
            raise TypeError(f"{what} is a function, not {fn!r}")
    if _registered is not None and _registered.name != name:
        raise RuntimeError(f"the slot for a device of one's own is taken by {_registered.name!r}")
    if name in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"{name!r} is a device already")
    torch.utils.rename_privateuse1_backend(name)
    give_device_module(name)
    rename_privateuse1(name)
    forget_device()
    _registered = RegisteredDevice(name, allocator, copy, dict(kernels), codegen, streams)
    ALLOCATORS[name] = _allocate
    if streams is not None:
        QUEUES[name] = DeviceQueues(streams)
    Tensor.elsewhere = Elsewhere()
    for op_name, kernel in kernels.items():
        dispatcher.register(op_name, Key.PRIVATEUSE1, _runner(OPS[op_name], kernel))
    dispatcher.fallback(Key.PRIVATEUSE1, _run)
    for key in (Key.CPU, Key.CUDA):
        dispatcher.register("to_device", key, _moved)
    return Device(name)


def forget_device() -> None:
    """Empty the slot. Tensors that are still there can't be used any more, and torch keeps the name."""
    global _registered
    if _registered is None:
        return
    for op_name in _registered.kernels:
        dispatcher.register(op_name, Key.PRIVATEUSE1, None)
    dispatcher.fallback(Key.PRIVATEUSE1, None)
    for key in (Key.CPU, Key.CUDA):
        dispatcher.register("to_device", key, None)
    del ALLOCATORS[_registered.name]
    QUEUES.pop(_registered.name, None)
    rename_privateuse1("privateuseone")
    Tensor.elsewhere, _registered = None, None


def registered() -> RegisteredDevice | None:
    """The device in the slot."""
    return _registered


def is_registered(device: Device | None) -> bool:
    """Whether it is the device in the slot."""
    return _registered is not None and device is not None and device.type == _registered.name


# --- copies ------------------------------------------------------------------------------------------------------------------


def _allocate(nbytes: int, index: int) -> Memory:
    assert _registered is not None
    let_go()
    return _registered.allocator(nbytes, index)


def _copy(to: Memory, of: Memory, device: Device) -> None:
    """All bytes, once the current stream has done what it was given."""
    assert _registered is not None
    current_stream(device).synchronize()
    _registered.copy(to, of)


def to_host(tensor: Tensor, copied: dict[int, torch.Tensor] | None = None) -> torch.Tensor:
    """A torch tensor on the CPU with the same values, shape and strides. ``copied``: storages that are there already, by key;
    tensors that share one do so on the CPU."""
    storage, meta = tensor.storage, tensor.meta
    flat = None if copied is None else copied.get(storage.key)
    if flat is None:
        flat = torch.empty(storage.nbytes, dtype=torch.uint8)
        _copy(torch.from_dlpack(flat), storage.memory, tensor.device)  # (what numpy has seen of a storage can't be resized)
        if copied is not None:
            copied[storage.key] = flat
    typed = torch.empty(0, dtype=meta.dtype).set_(flat.untyped_storage(), 0, (storage.nbytes // meta.dtype.itemsize,), (1,))
    placed: Any = meta.shape, meta.strides, meta.offset
    return typed.as_strided(*placed)


def from_host(value: torch.Tensor, device: Device) -> Tensor:
    """A tensor on the device with the values and strides of one on the CPU."""
    value = value.resolve_conj().resolve_neg()
    made = allocate(TensorMeta(tuple(value.shape), value.stride(), value.dtype, device, 0))
    if count := extent(made.meta):
        whole = value.as_strided((count,), (1,)).view(torch.uint8)  # dims of stride 0, too
        _copy(made.storage.memory, whole, made.device)
    return made


def allocate(meta: TensorMeta) -> Tensor:
    """An uninitialised tensor there."""
    device = Device(meta.device.type, max(meta.device.index, 0))
    placed = TensorMeta(meta.shape, meta.strides, meta.dtype, device, 0)
    return Tensor(Storage(extent(placed) * meta.dtype.itemsize, device), placed)


def fit(out: Tensor, meta: TensorMeta) -> None:
    """Resize an ``out=`` of another size, as torch with its warning: the storage grows where it is too small."""
    if out.shape == meta.shape:
        return
    warn_of_resize(out.shape, meta.shape)
    out._meta = TensorMeta(meta.shape, contiguous_strides(meta.shape), out.dtype, out.device, out.offset)
    old, nbytes = out.storage, extent(out.meta) * out.dtype.itemsize
    if nbytes > old.nbytes:
        host = torch.zeros(nbytes, dtype=torch.uint8)
        _copy(host[: old.nbytes], old.memory, out.device)
        old.grow(nbytes)
        _copy(old.memory, host, out.device)


def write(tensor: Tensor, value: torch.Tensor) -> None:
    """Set a tensor's elements, or those of a view. What else is in its storage stays."""
    host = to_host(tensor)
    host.copy_(value)
    _put_back(tensor, host)


def _put_back(tensor: Tensor, host: torch.Tensor) -> None:
    """All bytes of the host's storage into that of the tensor, which has as many."""
    _copy(tensor.storage.memory, torch.empty(0, dtype=torch.uint8).set_(host.untyped_storage()), tensor.device)
    tensor.storage.writes += 1


# --- ops ---------------------------------------------------------------------------------------------------------------------


def _written(tensor: Tensor, host: torch.Tensor, storage: torch.UntypedStorage) -> None:
    """What a function wrote to a copy on the host in ``storage``, and where it made that lie (``as_strided_``)."""
    now = host.untyped_storage()
    if storage_id(now) != storage_id(storage):
        raise NotImplementedError(f"{tensor.device} can't give a tensor other memory")
    if now.nbytes() > tensor.storage.nbytes:
        tensor.storage.grow(now.nbytes())
    tensor._meta = placed_as(host, tensor.device)
    _put_back(tensor, host)


def device_of(args: Sequence[Any], op: Op | None = None) -> Device:
    """Of the tensors among the arguments on the registered device, else what is given for the op's device argument."""
    for tensor in dispatcher.tensors_in(args):
        if dispatcher.keys_of(tensor) & _PRIVATE:
            return Device.of(tensor.device)
    assert op is not None and op.schema.device_arg is not None
    return Device.of(args[op.schema.device_arg])


def _placed(metas: Any, device: Device) -> Any:
    """Fresh tensors for what the record says of the results."""
    return allocate(metas) if isinstance(metas, TensorMeta) else tuple(allocate(m) for m in metas)


def _runner(op: Op, kernel: Callable[..., None]) -> Callable[..., Any]:
    """The kernel as the dispatcher calls it: the results are made here."""

    def run(*args: Any) -> Any:
        if _lacks_tensor(op, args):
            return _on_cpu(op, args)
        here = device_of(args, op)
        out = _placed(op.meta(*(meta_of(a) for a in args)), here)
        kernel(out, *(_scalars_here(a, here) for a in args))
        return out if isinstance(out, Tensor) else named_results(op, out)

    run.__qualname__ = f"{here_name(kernel)} on {_registered.name if _registered else ''}"
    return run


def _lacks_tensor(op: Op, args: Sequence[Any]) -> bool:
    """Whether it was given a number for a tensor, which only pointwise ops take: torch says so."""
    given = zip(op.schema.args, args, strict=False)
    return not isinstance(op.lowering, Pointwise) and any(
        a.type == "Tensor" and isinstance(v, (int, float, complex)) for a, v in given
    )


def here_name(kernel: Callable[..., Any]) -> str:
    """A kernel's name, for the dispatch table."""
    return getattr(kernel, "__qualname__", str(kernel))


def _scalars_here(value: Any, device: Device) -> Any:
    """CPU scalars, which torch lets go with tensors anywhere, moved to the device."""
    if isinstance(value, (Tensor, torch.Tensor)) and not dispatcher.keys_of(value) & _PRIVATE:
        return from_host(unwrap(value), device)
    return type(value)(_scalars_here(v, device) for v in value) if type(value) in (tuple, list) else value


def _run(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """An op without a kernel."""
    op = OPS[op_name]
    if is_same(op):
        return args[0]
    if is_view(op):
        return make_view(op, args[0], op.meta(args[0].meta, *args[1:]), args[1:])
    if op_name in MAY_COPY:
        return _view_or_copy(op, args)
    if op_name in ("clone", "restride", "to_device", "copy_"):
        return _on_cpu(op, args)
    if isinstance(op.lowering, Decompose) and not _lacks_tensor(op, args):
        result = in_parts(op, op.lowering.fn, args)
        if result is not NotImplemented:
            if op_name in SEVERAL_VIEWS:
                for piece in result:
                    note_view(piece, args[0], op_name, args[1:], several=True)
            return result
    if not op_name.endswith("_like") and any(dispatcher.keys_of(t) & _PRIVATE for t in dispatcher.tensors_in(args)):
        warn_once(f"{device_of(args)} has no kernel for {op_name}: it runs on the CPU, between copies")
    return _on_cpu(op, args)


def _view_or_copy(op: Op, args: tuple[Any, ...]) -> Any:
    """``reshape`` and its like: torch decides on a meta tensor."""
    x = args[0]
    bare = torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype, device="meta")
    result = op.eager(bare, *args[1:])
    if result is bare:
        return x
    if storage_id(result.untyped_storage()) != storage_id(bare.untyped_storage()):
        return _on_cpu(op, args)
    meta = TensorMeta(tuple(result.shape), result.stride(), x.dtype, x.device, x.offset + result.storage_offset())
    return make_view(op, x, meta, args[1:])


def _on_cpu(op: Op, args: tuple[Any, ...]) -> Any:
    """Copies there, torch's kernel, copies back; ``to_device`` stays where it leads to."""
    device, at = device_of(args, op), op.schema.device_arg
    target = Device.of(args[1]) if op.name == "to_device" else device
    copied: dict[int, torch.Tensor] = {}
    hosts = [_hosted(a, copied) for a in args]
    if at is not None and args[at] is not None:
        hosts[at] = torch.device("cpu") if is_registered(Device.of(args[at])) else unwrap(args[at])
    versions = [(a, h, h._version) for a, h in zip(args, hosts, strict=True) if isinstance(h, torch.Tensor)]
    result = op.eager(*hosts)
    for tensor, host, version in versions:
        if host._version != version:
            _put_back(tensor, host)
    return _returned(result, target, () if op.name == "to_device" else versions)


def _hosted(value: Any, copied: dict[int, torch.Tensor] | None = None) -> Any:
    """CPU tensors for those of the device, the CPU for the device itself; also in lists. ``copied``: as of :func:`to_host`."""
    copied = {} if copied is None else copied
    if isinstance(value, Tensor):
        return to_host(value, copied) if value.keys & _PRIVATE else value.raw()
    if isinstance(value, (Device, torch.device)):
        return torch.device("cpu") if is_registered(Device.of(value)) else unwrap(value)
    if type(value) is dict:
        return {k: _hosted(v, copied) for k, v in value.items()}
    return type(value)(_hosted(v, copied) for v in value) if type(value) in (tuple, list) else value


def _returned(value: Any, device: Device, given: Sequence[tuple[Any, Any, int]] = ()) -> Any:
    """What the CPU computed, on the device again. A tensor that was given is itself, a view of it a view there."""
    if isinstance(value, torch.Tensor):
        for tensor, host, _ in given:
            if value is host:
                return tensor
            if isinstance(tensor, Tensor) and tensor.keys & _PRIVATE and _share(value, host):
                return view_of(tensor, placed_as(value, tensor.device))
        return from_host(value.detach(), device) if is_registered(device) else from_torch(value)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_returned(v, device, given) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    strided = a.layout is b.layout is torch.strided
    return strided and storage_id(a.untyped_storage()) == storage_id(b.untyped_storage())


def placed_as(host: torch.Tensor, device: Device) -> TensorMeta:
    """Where a tensor on the host lies in its storage, for one on the device."""
    if host.is_conj() or host.is_neg():
        raise NotImplementedError(f"{device} has no views whose elements are conjugated or negated")
    return TensorMeta(tuple(host.shape), host.stride(), host.dtype, device, int(host.storage_offset()))


def _moved(x: Any, device: Any, dtype: Any = None, copy: bool = False, memory_format: Any = None) -> Any:
    """``to_device`` from the CPU or a card: to the registered device by its copy, else torch's."""
    target = Device.of(device)
    if not is_registered(target):
        return run_torch("to_device", KeySet(dispatcher.keys_of(x)), (x, device, dtype, copy, memory_format))
    host = unwrap(x).detach().to("cpu", dtype, memory_format=memory_format or torch.preserve_format)
    return from_host(host, Device(target.type, max(target.index, 0)))


class Elsewhere:
    """What ``Tensor`` asks of tensors without a torch handle."""

    host = staticmethod(to_host)
    hosted = staticmethod(_hosted)

    def used_on(self, tensor: Tensor, queue: Queue | None) -> None:
        """``record_stream``. Nothing to do where the device has no streams."""
        if queue is not None:
            used_on(tensor.storage, queue)

    def concerns(self, args: Any, kwargs: Mapping[str, Any], out: Any = None) -> bool:
        """Whether a tensor of the device is among them."""
        found = dispatcher.tensors_in((args, tuple(kwargs.values()), out))
        return any(isinstance(t, Tensor) and t.lacks_handle for t in found)

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A torch function that has no record: on the CPU, and what it wrote to is written back."""
        device = device_of((tuple(args), tuple(kwargs.values())))
        warn_once(f"{device} has no kernel for {getattr(fn, '__name__', fn)}: it runs on the CPU, between copies")
        hosts, named = _hosted((tuple(args), dict(kwargs)))
        pairs = zip(*map(dispatcher.tensors_in, ((*args, *kwargs.values()), (*hosts, *named.values()))), strict=True)
        given = [(t, h, h._version) for t, h in pairs]
        before = [h.untyped_storage() if isinstance(t, Tensor) and t.keys & _PRIVATE else None for t, h, _ in given]
        result = fn(*hosts, **named)
        name = getattr(fn, "__name__", "")
        written = hosts[0] if name.endswith("_") and not name.endswith("__") else None  # apply_ and map_ count no version
        for (tensor, host, version), storage in zip(given, before, strict=True):
            if storage is not None and (host._version != version or host is written):
                _written(tensor, host, storage)
        if _leads_away(fn, (*args[1:], *kwargs.values())):
            return from_torch(result) if isinstance(result, torch.Tensor) else result
        return _returned(result, device, given)

    def moved(self, run: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``run(fn, args, kwargs)`` on the CPU, to which gradients follow: a torch function that torch differentiates."""
        device = device_of((tuple(args), tuple(kwargs.values())))
        warn_once(f"{device} has no kernel for {getattr(fn, '__name__', fn)}: it runs on the CPU, between copies")
        given = _moved_to((tuple(args), dict(kwargs)), Device("cpu"))
        result = run(fn, *given)
        found = [t for t in dispatcher.tensors_in((result,)) if isinstance(t, Tensor)]
        there = {t.storage.key for t in found if not expanded(t)}  # nobody may write to those that are
        if any(t.storage.key in there for t in dispatcher.tensors_in((given[0], *given[1].values())) if isinstance(t, Tensor)):
            name = getattr(fn, "__name__", fn)
            raise NotImplementedError(f"{name} on {device} would be a view that gradients go through: call it on detach()")
        return _moved_to(result, device)

    def put(self, target: Tensor, result: Tensor) -> None:
        """``target.copy_(result)``, off the tape."""
        write(target, to_host(result))

    def write(self, bound: BoundCall, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``add_`` and ``out=``: the result, then a copy of it into the tensor. A view in place (``t_``) moves no element.
        Where there is no kernel, or elements share memory (whether they may be written to depends on the function), torch's own
        writes, on the CPU."""
        if bound.inplace and not is_view(bound.op) and (not _has_kernel(bound.op) or expanded(bound.args[0])):
            return self.call(fn, args, kwargs)
        result = dispatcher.call_bound(bound.op.name, bound.args)
        if bound.inplace and is_view(bound.op):
            bound.args[0]._meta = result.meta
            return bound.args[0]
        target = bound.args[0] if bound.inplace else bound.out
        several = isinstance(target, (tuple, list))
        read = [t for t in dispatcher.tensors_in(bound.args) if isinstance(t, Tensor)]
        for into, value in zip(target, result, strict=True) if several else [(target, result)]:
            if not is_registered(into.device):
                raise RuntimeError(f"Expected out tensor to have device {value.device}, but got {into.device} instead")
            check_write(into, value.meta, read, bound.inplace)
            fit(into, value.meta)
            write(into, to_host(value))
        return named_results(bound.op, target) if several else target


def _has_kernel(op: Op) -> bool:
    """Whether it, or what it decomposes into, may run on the device."""
    assert _registered is not None
    return op.name in _registered.kernels or isinstance(op.lowering, Decompose)


def _moved_to(value: Any, device: Device) -> Any:
    """Tensors of ours on the other side, on the tape as they are; a device that is named, too. Also in lists."""
    if isinstance(value, Tensor):
        return value if is_registered(device) is value.lacks_handle else dispatcher.call("to_device", value, device)
    if isinstance(value, (Device, torch.device)):
        return device if is_registered(Device.of(value)) else value
    if type(value) is dict:
        return {k: _moved_to(v, device) for k, v in value.items()}
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_moved_to(v, device) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _leads_away(fn: Callable[..., Any], rest: Sequence[Any]) -> bool:
    """``cpu()``, and ``to()`` another device, of tensors whose dtype no record knows."""
    if getattr(fn, "__name__", "") != "to":
        return getattr(fn, "__name__", "") == "cpu"
    places = [a for a in rest if isinstance(a, (str, torch.device, Device))]
    return any(not is_registered(Device.of(a)) for a in places)


def as_strided(base: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    """A view for compiled code."""
    return view_of(base, TensorMeta(tuple(shape), tuple(strides), base.dtype, base.device, offset))
