"""``ops``: every record as a function that goes through the dispatcher, in which decompositions are written.

``ops.add(x, y)`` is ``dispatcher.call("add", x, y)``: it works on our tensors, on fakes under tracing and on torch's tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.dispatch import dispatcher
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.meta_rules import opmath


class Ops:
    """One attribute an op, made on first use. Arguments are the schema's, positional or by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = partial(dispatcher.call, name)
        setattr(self, name, function)
        return function


ops = Ops()


def cast(x: Any, dtype: torch.dtype) -> Any:
    """``ops.to`` where the dtype differs, else ``x`` itself."""
    return x if x.dtype == dtype else ops.to(x, dtype)


def widen(x: Any) -> Any:
    """``x`` in its opmath dtype: float32 for half types."""
    return cast(x, opmath(x.dtype))


def row_major(x: Any) -> Any:
    """``x``, copied where its strides are not those of a fresh tensor: for ops whose result torch always makes contiguous."""
    meta = meta_of(x)
    return x if meta.strides == rules.dense_strides(meta.shape) else ops.clone(x, memory_format=torch.contiguous_format)


def meta_of(x: Any) -> TensorMeta:
    """The TensorMeta of a tensor of any kind."""
    if isinstance(x, TensorMeta):
        return x
    if isinstance(x, torch.Tensor):
        return meta_of_torch(x)
    found: TensorMeta = x.meta
    return found


def laid_out_as(y: Any, like: Any) -> Any:
    """``y`` with the strides that ``empty_like(like)`` has, for ops that write into a copy of an argument."""
    strides = rules.preserved_strides(meta_of(like))
    return y if meta_of(y).strides == strides else ops.restride(y, strides)


def in_format_of(y: Any, like: Any) -> Any:
    """``y`` in the memory format that ATen suggests for ``like``: channels-last, or row-major."""
    if rules.suggests_channels_last(meta_of(like)):
        return ops.clone(y, memory_format=torch.channels_last if len(y.shape) == 4 else torch.channels_last_3d)
    return row_major(y)


def positions(size: Any, rank: int, dim: int, device: Any) -> Any:
    """0 .. size - 1 along ``dim``, of size 1 along the other dims."""
    dim %= rank
    line = ops.arange(0, size, 1, dtype=torch.int64, device=device)
    return ops.reshape(line, tuple(size if d == dim else 1 for d in range(rank)))
