"""What a tensor tells of its shape, strides, dtype, device and place in memory."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import Shape
from tinycompile.dispatch.keys import KeySet
from tinycompile.eager.storage import Storage


class MetadataMethods:
    """A part of ``Tensor``."""

    __slots__ = ()

    device: Device
    keys: int

    @property
    def meta(self) -> TensorMeta:
        """Shape, strides, dtype, device and offset, as one frozen value."""
        raise NotImplementedError

    @property
    def storage(self) -> Storage:
        """The bytes; one object for all tensors that share them."""
        raise NotImplementedError

    def raw(self) -> Any:
        """The torch tensor on the same memory."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """Sizes."""
        return torch.Size(self.meta.shape)  # type: ignore[arg-type]

    @property
    def strides(self) -> Shape:
        """Strides in elements."""
        return self.meta.strides

    @property
    def offset(self) -> Any:
        """Elements between the storage's start and the first element."""
        return self.meta.offset

    @property
    def dtype(self) -> torch.dtype:
        """torch's dtype object."""
        return self.meta.dtype

    @property
    def keyset(self) -> KeySet:
        """``keys`` as a set that prints."""
        return KeySet(self.keys)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.meta.shape)

    @property
    def layout(self) -> torch.layout:
        """Always strided."""
        return torch.strided

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether it is in the host's memory."""
        return self.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        """Whether it has no data."""
        return self.device.type == "meta"

    @property
    def itemsize(self) -> int:
        """Bytes in an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Any:
        """Bytes in all elements."""
        return self.meta.numel * self.dtype.itemsize

    def get_device(self) -> int:
        """The device's index; -1 on a CPU and on meta."""
        return -1 if self.is_cpu or self.is_meta else max(self.device.index, 0)

    def size(self, dim: int | None = None) -> Any:
        """All sizes, or one."""
        return self.shape if dim is None else self.meta.shape[_dim(dim, self.ndim)]

    def stride(self, dim: int | None = None) -> Any:
        """All strides, or one."""
        return self.meta.strides if dim is None else self.meta.strides[_dim(dim, self.ndim)]

    def dim(self) -> int:
        """The number of dims."""
        return len(self.meta.shape)

    def numel(self) -> Any:
        """The number of elements."""
        return self.meta.numel

    nelement = numel
    ndimension = dim

    def element_size(self) -> int:
        """Bytes in an element."""
        return self.dtype.itemsize

    def storage_offset(self) -> Any:
        """As ``offset``."""
        return self.meta.offset

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """Whether the strides are row-major."""
        if memory_format is torch.contiguous_format:
            return self.meta.is_contiguous()
        return self.raw().is_contiguous(memory_format=memory_format)

    def is_floating_point(self) -> bool:
        """Whether the dtype is real floating point."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.dtype.is_complex

    def data_ptr(self) -> int:
        """The address of the first element; 0 on meta."""
        address = self.storage.data_ptr()
        offset: Any = self.meta.offset
        return address + offset * self.dtype.itemsize if address else 0


def _dim(dim: Any, rank: int) -> int:
    if type(dim) is not int:  # torch says whether it counts as one: sizes that are the dims' own numbers
        dim = torch.empty(tuple(range(rank)), device="meta").size(dim)
    if not rank:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    return shapes.normalize_dim(dim, rank)
