"""Devices that users add: ``register_device`` fills the PrivateUse1 slot with an allocator, a copy and kernels.

A tensor there has metadata and a :class:`Storage` like any other, but no torch handle: its bytes are whatever the allocator
returned. Views need no kernel. An op without one runs through its decomposition, or on the CPU between two copies, with a
warning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tinycompile.base.device import Device, rename_privateuse1
from tinycompile.base.logs import warn_once
from tinycompile.base.meta import TensorMeta
from tinycompile.base.torch_private import give_device_module, storage_id
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.eager.backends import MAY_COPY, SEVERAL_VIEWS, is_same, is_view, make_view, meta_of, named_results, run_torch
from tinycompile.eager.device_functions import Elsewhere
from tinycompile.eager.device_memory import (
    Memory,
    RegisteredDevice,
    allocate,
    as_copied,
    check_indices,
    device_of,
    from_host,
    hosted,
    is_registered,
    put_back,
    returned,
    slot,
)
from tinycompile.eager.device_queues import QUEUES, DeviceQueues, Queue, let_go
from tinycompile.eager.in_parts import in_parts
from tinycompile.eager.methods import SHOWN
from tinycompile.eager.storage import ALLOCATORS
from tinycompile.eager.tape import note_view
from tinycompile.eager.tensor import Tensor, unwrap, view_of
from tinycompile.ops.meta_rules import result_type
from tinycompile.ops.record import OPS, Decompose, Op, Pointwise

_PRIVATE = Key.PRIVATEUSE1.bit


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
    results) in the shape, strides and dtype that the record says, ``args`` are in schema order (a number for which the schema
    says Tensor comes as a tensor of 0 dims). ``codegen(kernel, plan)``
    compiles one fused kernel: see ``docs/add_a_backend.md``. ``streams(index)`` makes a queue of work with the methods of
    :class:`~tinycompile.eager.device_queues.Queue`, for ``tinycompile.cuda.Stream(name)`` and its like; kernels launch on
    ``tinycompile.cuda.current_stream(out.device).raw``, and ``copy`` is called when that has done what it was given. Returns
    the device.

    There is one slot, as in torch (whose ``privateuseone`` is renamed too). Raises RuntimeError when it is taken under another
    name, KeyError for a kernel of an op that has no record, TypeError for what can't be called, ValueError for what is no name.
    """
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
    if slot.taken is not None and slot.taken.name != name:
        raise RuntimeError(f"the slot for a device of one's own is taken by {slot.taken.name!r}")
    if name in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"{name!r} is a device already")
    forget_device()  # registered again, it keeps its name
    torch.utils.rename_privateuse1_backend(name)
    give_device_module(name)
    rename_privateuse1(name)
    slot.taken = RegisteredDevice(name, allocator, copy, dict(kernels), codegen, streams)
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
    if slot.taken is None:
        return
    for op_name in slot.taken.kernels:
        dispatcher.register(op_name, Key.PRIVATEUSE1, None)
    dispatcher.fallback(Key.PRIVATEUSE1, None)
    for key in (Key.CPU, Key.CUDA):
        dispatcher.register("to_device", key, None)
    del ALLOCATORS[slot.taken.name]
    QUEUES.pop(slot.taken.name, None)
    rename_privateuse1("privateuseone")
    _number.cache_clear()
    Tensor.elsewhere, slot.taken = None, None


# --- ops ---------------------------------------------------------------------------------------------------------------------


def _allocate(nbytes: int, index: int) -> Memory:
    assert slot.taken is not None
    let_go()
    return slot.taken.allocator(nbytes, index)


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
        call_kernel(kernel, out, _operands(op, args, here))
        return out if isinstance(out, Tensor) else named_results(op, out)

    run.__qualname__ = f"{here_name(kernel)} on {slot.taken.name if slot.taken else ''}"
    return run


def call_kernel(kernel: Callable[..., None], out: Any, args: Sequence[Any]) -> None:
    """Whatever a kernel raises is the user's to see: see ``methods.SHOWN``."""
    kernel(out, *args)


SHOWN.add(call_kernel.__code__)


def _operands(op: Op, args: Sequence[Any], device: Device) -> list[Any]:
    """What a kernel gets: tensors on the device wherever the schema says so. A number becomes one of 0 dims, in the dtype to
    which the operands are promoted."""
    given = [_scalars_here(a, device) for a in args]
    if numbers := _numbers_for_tensors(op, args):
        dtype = result_type([meta_of(a) for s, a in zip(op.schema.args, args, strict=False) if s.type == "Tensor"])
        for i in numbers:
            given[i] = _number(args[i], repr(args[i]), dtype, device)
    return given


@functools.lru_cache(maxsize=64)
def _number(value: Any, told: str, dtype: torch.dtype, device: Device) -> Tensor:
    """A tensor of 0 dims. ``told``: tells numbers apart that are equal (0.0 and -0.0)."""
    return from_host(torch.tensor(value, dtype=dtype, device="cpu"), device)


def _numbers_for_tensors(op: Op, args: Sequence[Any]) -> list[int]:
    """The positions of numbers for which the schema says Tensor."""
    pairs = enumerate(zip(op.schema.args, args, strict=False))
    return [i for i, (a, v) in pairs if a.type == "Tensor" and isinstance(v, (int, float, complex))]


def _lacks_tensor(op: Op, args: Sequence[Any]) -> bool:
    """Whether it was given a number for a tensor, which only pointwise ops take: torch says so."""
    return not isinstance(op.lowering, Pointwise) and bool(_numbers_for_tensors(op, args))


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
            return named_results(op, result) if type(result) is tuple else result
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
    if op.name in ("index", "index_put"):
        check_indices(args[0], args[1])
    device, at = device_of(args, op), op.schema.device_arg
    target = Device.of(args[1]) if op.name == "to_device" else device
    copied: dict[int, torch.Tensor] = {}
    hosts = [hosted(a, copied) for a in args]
    if at is not None and args[at] is not None:
        hosts[at] = torch.device("cpu") if is_registered(Device.of(args[at])) else unwrap(args[at])
    versions = [(a, h, h._version) for a, h in zip(args, hosts, strict=True) if isinstance(h, torch.Tensor)]
    result = op.eager(*hosts)
    if op.name == "to_device":
        result = as_copied(result, args[op.schema.positions["memory_format"]])
    for tensor, host, version in {id(h): (a, h, v) for a, h, v in versions}.values():
        if host._version != version:
            put_back(tensor, host)
    return returned(result, target, () if op.name == "to_device" else versions)


def _moved(x: Any, device: Any, dtype: Any = None, copy: bool = False, memory_format: Any = None) -> Any:
    """``to_device`` from the CPU or a card: to the registered device by its copy, else torch's."""
    target = Device.of(device)
    if not is_registered(target):
        return run_torch("to_device", KeySet(dispatcher.keys_of(x)), (x, device, dtype, copy, memory_format))
    host = unwrap(x).detach().to("cpu", dtype)
    return from_host(as_copied(host, memory_format), Device(target.type, max(target.index, 0)))


def as_strided(base: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    """A view for compiled code."""
    return view_of(base, TensorMeta(tuple(shape), tuple(strides), base.dtype, base.device, offset))
