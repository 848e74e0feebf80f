"""Tensors from nothing, from Python values, and from other libraries.

Arguments are torch's. What has an op record is dispatched, so it is traced under ``tracing``; the rest is torch's function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tinycompile.base.device import Device, default_device
from tinycompile.base.torch_private import only_default_device
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.storage import ALLOCATORS
from tinycompile.eager.tensor import Tensor, from_torch, unwrap, wrap
from tinycompile.ops.calls import ops


def make(fn: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor:
    """Through the record that torch's factory has, else as it is; under tracing the result is a FakeTensor."""
    kind = FakeTensor if Key.TRACING in local_keys.included() else Tensor
    given = {k: _option(v) for k, v in options.items() if k != "requires_grad"}
    if given.get("device") is None and not dispatcher.tensors_in(args) and (place := _elsewhere(_meant(None))) is not None:
        given["device"] = place
    if not torch.cuda.is_available():
        given.pop("pin_memory", None)  # pinned memory is for copies to a card
    return _leaf(wrap(kind.__torch_function__(fn, (), args, given)), bool(options.get("requires_grad")))


def _sized(fn: Callable[..., Any], size: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor:
    """:func:`make` of a factory that torch asks a size for: no size is none at all, where ``()`` is that of a scalar."""
    if not size and "size" not in options:
        raise TypeError(f'{fn.__name__}() missing 1 required positional arguments: "size"')
    return make(fn, size, options)


def _leaf(made: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad and not (made.dtype.is_floating_point or made.dtype.is_complex):
        torch.empty(0, dtype=made.dtype, device="cpu", requires_grad=True)  # raises
    return made.requires_grad_() if requires_grad else made


def _meant(device: Device | str | None) -> Device | str | None:
    """The device that is named, or that is torch's default; None where neither is."""
    return default_device() if device is None and only_default_device() else device


def _elsewhere(device: Device | str | None) -> Device | None:
    """The device if it is a registered one, where torch can make nothing itself."""
    if not ALLOCATORS or device is None:
        return None
    meant = Device.of(device)
    return meant if meant.type in ALLOCATORS else None


def _moved(made: Tensor, device: Device) -> Tensor:
    moved: Tensor = ops.to_device(made, device)
    return moved


def _hosted(data: Any) -> Any:
    """Nested data with torch's tensors for ours, which are copied from a registered device."""
    return unwrap(data) if Tensor.elsewhere is None else Tensor.elsewhere.hosted(data)


def _option(value: Any) -> Any:
    return value.torch() if isinstance(value, Device) else value


def tensor(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Device | str | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new tensor with a copy of ``data``: a number, nested sequences, or an array. ``pin_memory``: in page-locked memory,
    where there is a card to copy to."""
    place = _meant(device)
    there = _elsewhere(data.device if place is None and isinstance(data, Tensor) else place)
    if there is not None:
        return _leaf(_moved(from_torch(torch.tensor(_hosted(data), dtype=dtype, device="cpu")), there), requires_grad)
    pinned = pin_memory and torch.cuda.is_available()
    options = {"dtype": dtype, "device": _option(place), "pin_memory": pinned}
    return _leaf(Tensor._taken(torch.tensor, _hosted(data), options), requires_grad)


def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Device | str | None = None) -> Tensor:
    """``data`` itself where it can be shared (tensors, arrays), else a copy."""
    place = _meant(device)
    if isinstance(data, Tensor):
        moved: Tensor = data.to(device=data.device if place is None else place, dtype=dtype)  # type: ignore[attr-defined]
        return moved
    if (there := _elsewhere(place)) is not None:
        return _moved(from_torch(torch.as_tensor(_hosted(data), dtype=dtype, device="cpu")), there)
    return Tensor._taken(torch.as_tensor, _hosted(data), {"dtype": dtype, "device": _option(place)})


def from_numpy(array: Any) -> Tensor:
    """A tensor on the array's memory. ``Tensor.numpy()`` is the way back."""
    return Tensor._taken(torch.from_numpy, array, {})


def from_dlpack(source: Any) -> Tensor:
    """A tensor on the memory of any object with ``__dlpack__``, or of a capsule."""
    return from_torch(torch.from_dlpack(source))


def zeros(*size: Any, **options: Any) -> Tensor:
    """Zeros of ``size``; ``dtype``, ``device`` and ``requires_grad`` by keyword, as for every factory here."""
    return _sized(torch.zeros, size, options)


def ones(*size: Any, **options: Any) -> Tensor:
    """Ones of ``size``."""
    return _sized(torch.ones, size, options)


def full(size: Any, fill_value: Any, **options: Any) -> Tensor:
    """``size`` filled with one number."""
    return make(torch.full, (size, fill_value), options)


def empty(*size: Any, **options: Any) -> Tensor:
    """Uninitialised memory of ``size``."""
    return _sized(torch.empty, size, options)


def empty_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    """Uninitialised memory with given strides."""
    return make(torch.empty_strided, (size, stride), options)


def arange(*limits: Any, **options: Any) -> Tensor:
    """``start`` (0) to ``end``, exclusive, by ``step`` (1)."""
    return make(torch.arange, limits, options)


def linspace(start: Any, end: Any, steps: int, **options: Any) -> Tensor:
    """``steps`` evenly spaced values, both ends included."""
    return make(torch.linspace, (start, end, steps), options)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Tensor:
    """``base`` to the powers of :func:`linspace`."""
    return make(torch.logspace, (start, end, steps, base), options)


def eye(*size: int, **options: Any) -> Tensor:
    """The identity matrix, ``n`` by ``m`` (``n``)."""
    return make(torch.eye, size, options)


def rand(*size: Any, **options: Any) -> Tensor:
    """Uniform on [0, 1), from torch's generator."""
    return _sized(torch.rand, size, options)


def randn(*size: Any, **options: Any) -> Tensor:
    """Standard normal, from torch's generator."""
    return _sized(torch.randn, size, options)


def randint(*args: Any, **options: Any) -> Tensor:
    """Integers in ``[low, high)``: ``randint(high, size)`` or ``randint(low, high, size)``."""
    return make(torch.randint, args, options)


def randperm(n: int, **options: Any) -> Tensor:
    """A random permutation of ``0 .. n - 1``."""
    return make(torch.randperm, (n,), options)


def zeros_like(like: Any, **options: Any) -> Tensor:
    """Zeros with the shape, dtype, device and strides of ``like``."""
    return make(torch.zeros_like, (like,), options)


def ones_like(like: Any, **options: Any) -> Tensor:
    """Ones as ``like``."""
    return make(torch.ones_like, (like,), options)


def full_like(like: Any, fill_value: Any, **options: Any) -> Tensor:
    """One number as ``like``."""
    return make(torch.full_like, (like, fill_value), options)


def empty_like(like: Any, **options: Any) -> Tensor:
    """Uninitialised memory as ``like``."""
    return make(torch.empty_like, (like,), options)


def rand_like(like: Any, **options: Any) -> Tensor:
    """Uniform on [0, 1) as ``like``."""
    return make(torch.rand_like, (like,), options)


def randn_like(like: Any, **options: Any) -> Tensor:
    """Standard normal as ``like``."""
    return make(torch.randn_like, (like,), options)


def randint_like(like: Any, *limits: int, **options: Any) -> Tensor:
    """Integers in ``[low, high)`` as ``like``."""
    return make(torch.randint_like, (like, *limits), options)
