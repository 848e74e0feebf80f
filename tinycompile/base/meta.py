"""What is known of a tensor without its data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.base.shapes import Shape


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Sizes and strides (elements), dtype, device and storage offset (elements). Frozen, hashable."""

    shape: Shape
    strides: Shape
    dtype: torch.dtype
    device: Device
    offset: Dim = 0

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
