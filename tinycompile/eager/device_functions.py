"""What ``Tensor`` asks of tensors of a registered device: functions without a kernel there, and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.logs import warn_once
from tinycompile.dispatch import dispatcher
from tinycompile.dispatch.keys import Key
from tinycompile.eager.backends import is_view, named_results
from tinycompile.eager.device_memory import (
    check_indices,
    copied,
    device_of,
    fit,
    hosted,
    is_named,
    is_registered,
    returned,
    slot,
    take_over,
    to_host,
    write,
)
from tinycompile.eager.device_queues import Queue, used_on
from tinycompile.eager.hosted_calls import watch
from tinycompile.eager.overlapping import shares_elements
from tinycompile.eager.recording import record
from tinycompile.eager.tensor import Tensor, apart, from_torch
from tinycompile.eager.write_checks import check_write, expanded
from tinycompile.ops.in_place import name_of, names_a_write
from tinycompile.ops.record import OPS, BoundCall, Decompose, Op

_PRIVATE = Key.PRIVATEUSE1.bit


class Elsewhere:
    """What ``Tensor`` asks of tensors without a torch handle."""

    host = staticmethod(to_host)
    hosted = staticmethod(hosted)
    copied = staticmethod(copied)
    apart = staticmethod(apart)

    def used_on(self, tensor: Tensor, queue: Queue | None) -> None:
        """``record_stream``. Nothing to do where the device has no streams."""
        if queue is not None:
            used_on(tensor.storage, queue)

    def concerns(self, args: Any, kwargs: Mapping[str, Any], out: Any = None) -> bool:
        """Whether a tensor of the device is among them, or its name."""
        found = dispatcher.tensors_in((args, tuple(kwargs.values()), out))
        return any(isinstance(t, Tensor) and t.lacks_handle for t in found) or any(map(is_named, (*args, *kwargs.values())))

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A torch function that has no record: on the CPU, and what it wrote to is written back."""
        place = kwargs.get("device")
        device = device_of((*args, *kwargs.values())) if place is None else Device.of(place)
        hosts, named = hosted((tuple(args), dict(kwargs)))
        every = zip(*map(dispatcher.tensors_in, ((*args, *kwargs.values()), (*hosts, *named.values()))), strict=True)
        given = [(t, h, h._version) for t, h in every]
        before = [h.untyped_storage() if isinstance(t, Tensor) and t.keys & _PRIVATE else None for t, h, _ in given]
        _check_devices(fn, args, kwargs)
        if fn is torch.get_device:
            return args[0].get_device()
        name = getattr(fn, "__name__", str(fn))
        if any(before):
            warn_once(f"{device} has no kernel for {name}: it runs on the CPU, between copies")
        result = fn(*hosts, **named)
        written = hosts[0] if names_a_write(name) else None  # apply_ and map_ count no version
        pairs = zip(given, before, strict=True)
        for (tensor, host, version), storage in {id(pair[0][1]): pair for pair in pairs}.values():
            if storage is not None and (host._version != version or host is written):
                take_over(tensor, host, storage, given)
        if not is_registered(device) or _leads_away(fn, (*args[1:], *kwargs.values())):
            return from_torch(result) if isinstance(result, torch.Tensor) else result
        return returned(result, device, given if any(before) else ())

    def moved(self, run: Callable[..., Any], fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``run(fn, args, kwargs)`` on the CPU, to which gradients follow: a torch function that torch differentiates."""
        device = device_of((*args, *kwargs.values()))
        warn_once(f"{device} has no kernel for {getattr(fn, '__name__', fn)}: it runs on the CPU, between copies")
        _check_devices(fn, args, kwargs)
        given = _moved_to((tuple(args), dict(kwargs)), Device("cpu"))
        every = (*args, *kwargs.values()), (*given[0], *given[1].values())
        pairs = [(t, c) for t, c in zip(*map(dispatcher.tensors_in, every), strict=True) if c is not t]
        name = getattr(fn, "__name__", str(fn))
        made = run(fn, *given)
        results = _mapped(made, lambda t: _moved_back(t, pairs, device, name))
        watch(made, results, pairs)
        return results

    def put(self, target: Tensor, result: Tensor) -> None:
        """``target.copy_(result)``, off the tape."""
        write(target, to_host(result))

    def write(self, bound: BoundCall, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``add_`` and ``out=``: the result, then a copy of it into the tensor. A view in place (``t_``) moves no element.
        Torch's own writes, on the CPU, where there is no kernel, where ``out`` has another dtype (some functions cast), and
        where elements share memory (whether they may be written to depends on the function)."""
        assert slot.taken is not None
        target = bound.args[0] if bound.inplace else bound.out
        _check_targets(fn, bound, target)
        if bound.inplace and not is_view(bound.op) and (not _has_kernel(bound.op) or shares_elements(bound.args[0].meta)):
            return self.call(fn, args, kwargs)
        if bound.out is not None and not dispatcher.tensors_in(bound.args):
            made = _made_for(bound, kwargs)
            if made is None:
                return self.call(fn, args, kwargs)
            bound = made
        several = isinstance(target, (tuple, list))
        if bound.out is not None and not (bound.op.name in slot.taken.kernels if several else _has_kernel(bound.op)):
            return self.call(fn, args, kwargs)
        result = dispatcher.call_bound(bound.op.name, bound.args)
        if bound.inplace and is_view(bound.op):
            target._meta = result.meta
            return target
        pairs = list(zip(target, result, strict=True)) if several else [(target, result)]
        if bound.out is not None and any(into.dtype != value.dtype for into, value in pairs):
            return self.call(fn, args, kwargs)
        read = [t for t in dispatcher.tensors_in(bound.args) if isinstance(t, Tensor)]
        for into, value in pairs:
            check_write(into, value.meta, read, bound.inplace)
            fit(into, value.meta)
            write(into, to_host(value))
        return named_results(bound.op, target) if several else target


# Functions that ask a second tensor for its dtype or sizes, or copy it.
_OF_ANY_DEVICE = frozenset((
    "to", "type_as", "copy_", "fill_", "view_as", "reshape_as", "expand_as", "resize_as_", "is_same_size", "is_set_to",
    "result_type",
))  # fmt: skip


def _check_devices(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse tensors on several devices, as torch does."""
    name = getattr(fn, "__name__", "")
    if name in ("__getitem__", "__setitem__"):
        check_indices(args[0], args[1])
    elif name not in _OF_ANY_DEVICE:
        given = dispatcher.tensors_in((*args, *[v for k, v in kwargs.items() if k != "out"]))
        dispatcher.check_devices(given)
        targets = dispatcher.tensors_in((args[0] if names_a_write(name) and args else None, kwargs.get("out")))
        if targets:
            dispatcher.check_targets(targets, given)


def _check_targets(fn: Callable[..., Any], bound: BoundCall, target: Any) -> None:
    """The same of a call with a record that writes."""
    read = dispatcher.tensors_in(bound.args)
    may_differ = dispatcher.devices_may_differ(bound.op.name) or name_of(fn) in _OF_ANY_DEVICE
    if not (bound.inplace and may_differ):
        dispatcher.check_targets(dispatcher.tensors_in((target,)), read[:1] if may_differ else read)


def _made_for(bound: BoundCall, kwargs: Mapping[str, Any]) -> BoundCall | None:
    """A factory's call that makes what its ``out=`` is to hold; None where torch's own writes: the device has no kernel, or a
    dtype is given, which torch compares with that of ``out``."""
    assert slot.taken is not None
    device = kwargs.get("device")
    if device is not None and Device.of(device).type != bound.out.device.type:
        raise RuntimeError(
            f"device type {Device.of(device).type} does not match device type of out parameter ({bound.out.device.type})"
        )
    if bound.op.name not in slot.taken.kernels or kwargs.get("dtype") is not None:
        return None
    args, at = list(bound.args), bound.op.schema.positions
    for name in ("dtype", "device"):
        args[at[name]] = getattr(bound.out, name)
    return replace(bound, args=tuple(args))


def _has_kernel(op: Op) -> bool:
    """Whether it, or what it decomposes into, may run on the device."""
    assert slot.taken is not None
    return op.name in slot.taken.kernels or isinstance(op.lowering, Decompose)


def _moved_back(made: Tensor, given: Sequence[tuple[Tensor, Tensor]], device: Device, name: str) -> Tensor:
    """A result on the device. What is an argument's copy on the CPU is that argument, and a view of the copy one of it.
    ``given``: the arguments there, each with its copy."""
    info = made._view
    for there, copy in given:
        if made is copy:
            return there
        if info is not None and info.base is copy:
            if info.origin:
                raise NotImplementedError(f"{name} on {device} would be a view that gradients go through: call it on detach()")
            view = there
            for op_name, rest in info.chain:
                view = dispatcher.call_bound(op_name, (view, *rest))
            return view
        if made.storage is copy.storage and not expanded(made):  # (to what is, nobody may write)
            raise NotImplementedError(
                f"{name} on {device} would share memory, which gradients don't follow: call it on detach()"
            )
    moved: Tensor = _moved_to(made, device)
    return moved


def _moved_to(value: Any, device: Device) -> Any:
    """Tensors of ours on the other side, on the tape as they are, one that is there twice as one; a device that is named, too.
    Also in lists."""
    seen: dict[int, Any] = {}

    def moved(v: Any) -> Any:
        if not isinstance(v, Tensor):
            return device if is_registered(Device.of(v)) else v
        if id(v) not in seen:
            seen[id(v)] = v if is_registered(device) is v.lacks_handle else _copied_to(v, device)
        return seen[id(v)]

    return _mapped(value, moved)


def _copied_to(tensor: Tensor, device: Device) -> Tensor:
    """On the host it lies as it does on the device, gaps and what is beside it included: a function may ask."""
    if is_registered(device):
        back: Tensor = dispatcher.call("to_device", tensor, device)
        return back
    made: Tensor = record(OPS["to_device"], (tensor, device, None, False, None), from_torch(to_host(tensor)))
    return made


def _mapped(value: Any, fn: Callable[[Any], Any]) -> Any:
    """``fn`` of each tensor of ours, and each device, in nested values."""
    if isinstance(value, (Tensor, Device, torch.device)):
        return fn(value)
    if type(value) is dict:
        return {k: _mapped(v, fn) for k, v in value.items()}
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [_mapped(v, fn) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _leads_away(fn: Callable[..., Any], rest: Sequence[Any]) -> bool:
    """``cpu()``, and ``to()`` another device, of tensors whose dtype no record knows."""
    if getattr(fn, "__name__", "") != "to":
        return getattr(fn, "__name__", "") == "cpu"
    places = [a for a in rest if isinstance(a, (str, torch.device, Device))]
    return any(not is_registered(Device.of(a)) for a in places)
