"""What is known of a tensor without its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.shapes import Shape


@dataclass(frozen=True, slots=True, init=False)
class TensorMeta:
    """Sizes and strides (elements), dtype, device and storage offset (elements). Frozen, hashable."""

    shape: Shape
    strides: Shape
    dtype: torch.dtype
    device: Device
    offset: Dim = 0

    def __init__(self, shape: Shape, strides: Shape, dtype: torch.dtype, device: Device, offset: Dim = 0) -> None:
        _set_shape(self, shape)  # the slots themselves: one is made for every result of every op
        _set_strides(self, strides)
        _set_dtype(self, dtype)
        _set_device(self, device)
        _set_offset(self, offset)

    @classmethod
    def contiguous(cls, shape: Shape, dtype: torch.dtype, device: Device) -> TensorMeta:
        """A fresh row-major tensor."""
        return cls(tuple(shape), shapes.contiguous_strides(shape), dtype, device)

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """The number of elements."""
        return shapes.numel(self.shape)

    def is_contiguous(self) -> bool:
        """Row-major, as torch's ``is_contiguous()``."""
        return shapes.is_contiguous(self.shape, self.strides)

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        text = f"{name}[{', '.join(map(str, self.shape))}]"
        if self.strides != shapes.contiguous_strides(self.shape):
            text += f" strides[{', '.join(map(str, self.strides))}]"
        if self.offset != 0:
            text += f" offset {self.offset}"
        return f"{text} {self.device}"


_set_shape, _set_strides, _set_dtype, _set_device, _set_offset = (
    TensorMeta.__dict__[name].__set__ for name in ("shape", "strides", "dtype", "device", "offset")
)


def meta_of_torch(tensor: Any, device: Device | None = None) -> TensorMeta:
    """Metadata of a torch tensor; ``device``: where it is, by who knows that already.

    Tensors that are alike share one object: a program has many tensors of few kinds, and to look one up is cheaper. Raises
    NotImplementedError for a tensor that is not strided: torch says of some of these that their strides are 0."""
    if tensor.layout is not torch.strided:
        raise NotImplementedError(f"a tensor of layout {tensor.layout} has no strides")
    if device is None:
        device = Device.of(tensor.device)
    offset = int(tensor.storage_offset())
    key = tensor.shape, tensor.stride(), tensor.dtype, device.type, device.index, offset
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _AT_MOST:
            _KNOWN.clear()
        known = _KNOWN[key] = TensorMeta(tuple(key[0]), key[1], key[2], device, offset)
    return known


def meta_of_sparse(tensor: Any, device: Device | None = None) -> TensorMeta:
    """Sizes and dtype of a torch tensor that is not strided, as of a dense one with the same elements: what gradients are
    checked against. No kernel may take it at its word."""
    shape = tuple(tensor.shape)
    return TensorMeta(shape, shapes.contiguous_strides(shape), tensor.dtype, device or Device.of(tensor.device), 0)


_KNOWN: dict[tuple[Any, ...], TensorMeta] = {}
_AT_MOST = 8192
