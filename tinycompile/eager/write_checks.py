"""What torch refuses when a computed result is written to a tensor, for memory that torch doesn't see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import reach
from tinycompile.eager.tensor import Tensor


def check_write(target: Tensor, result: TensorMeta, read: Sequence[Tensor], inplace: bool) -> None:
    """Raise torch's RuntimeError where ``result``, computed from ``read``, can't be written to ``target``."""
    if expanded(target):
        refuse_expanded()
    if any(_overlap_in_part(target, other) for other in read):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    if inplace and tuple(result.shape) != tuple(target.shape):
        raise RuntimeError(f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}")
    if not torch.can_cast(result.dtype, target.dtype):
        torch.empty(0, dtype=target.dtype).add_(torch.empty(0, dtype=result.dtype))  # raises, in torch's words


def expanded(t: Tensor) -> bool:
    """Whether several of its elements are one in memory, along a dim of stride 0."""
    sizes: Any = t.meta.shape
    return any(not stride and size > 1 for size, stride in zip(sizes, t.meta.strides, strict=True))


def refuse_expanded() -> NoReturn:
    """torch's error for a write to such a tensor."""
    raise RuntimeError(
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
        "clone() the tensor before performing the operation."
    )


def warn_of_resize(shape: Sequence[Any], wanted: Sequence[Any]) -> None:
    """torch's warning for an ``out`` of another size, which it asks for by a size of 0."""
    torch.neg(torch.empty(tuple(wanted)), out=torch.empty(tuple(shape)))


def _overlap_in_part(a: Tensor, b: Tensor) -> bool:
    """As torch counts it: for dense tensors alone, by where they begin and end. Equal views are fine."""
    if a is b or a.storage is not b.storage or not a.numel() or not b.numel() or not (_is_dense(a) and _is_dense(b)):
        return False
    (begin, end), (start, stop) = _bytes(a), _bytes(b)
    if (begin, end) == (start, stop):
        return a.stride() != b.stride()
    return begin < stop and start < end


def _is_dense(t: Tensor) -> bool:
    return bool(reach(t.meta.shape, t.meta.strides) == t.numel()) and not expanded(t)


def _bytes(t: Tensor) -> tuple[int, int]:
    begin = t.storage_offset() * t.itemsize
    return begin, begin + t.nbytes
