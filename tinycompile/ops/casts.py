"""Changes of dtype, copies, and ops that hand their input on."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Extern, Pointwise, View
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, call, one, t
from tinycompile.ops.scalar import Builder, Value

ANY = (*FLOATS, *INTS, "bool")
_DTYPES = tuple(getattr(torch, name) for name in ANY)


def _to_meta(x: TensorMeta, dtype: torch.dtype, copy: bool = False, memory_format: Any = None) -> TensorMeta:
    if dtype == x.dtype and not copy and (memory_format in (None, torch.preserve_format) or rules.stays_in(x, memory_format)):
        return x
    return TensorMeta(x.shape, rules.format_strides(x, memory_format), dtype, x.device)


def _to(b: Builder, x: Value, dtype: torch.dtype, copy: bool = False, memory_format: Any = None) -> Value:
    return b.cast(x, dtype)


def _eager_to(x: torch.Tensor, dtype: torch.dtype, copy: bool = False, memory_format: Any = None) -> torch.Tensor:
    return x.to(dtype, copy=copy, memory_format=memory_format or torch.preserve_format)


declare(
    "to(Tensor self, ScalarType dtype, bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
    _to_meta,
    Pointwise(_to, "none"),
    _eager_to,
    (),
    lambda: [
        *(call(t(4, 5, dtype=d), to) for d in ANY for to in _DTYPES),
        *(call(t(4, 6, layout=lay), torch.float16) for lay in LAYOUTS),
        call(t(9, fill="special"), torch.float16),
        call(t(9, fill="special"), torch.bool),
        call(t(), torch.int32),
        call(t(0, 3), torch.float64),
        call(t(2, 3, 4, 5, layout="channels_last"), torch.float64),
        call(t(3), torch.float32, True),
    ],
    doc="Only the dtype (and memory format) changes; the same dtype without ``copy`` gives the input. Devices: to_device.",
)


def _to_device_meta(x: TensorMeta, device: Any, dtype: Any = None, copy: bool = False, memory_format: Any = None) -> TensorMeta:
    target = rules.Device.of(device)
    chosen = x.dtype if dtype is None else dtype
    if target == x.device and chosen == x.dtype and not copy:
        return x
    return TensorMeta(x.shape, rules.format_strides(x, memory_format), chosen, target)


def _eager_to_device(
    x: torch.Tensor, device: Any, dtype: Any = None, copy: bool = False, memory_format: Any = None
) -> torch.Tensor:
    target = rules.Device.of(device).torch()
    return x.to(target, dtype, copy=copy, memory_format=memory_format or torch.preserve_format)


declare(
    "to_device(Tensor self, Device device, ScalarType? dtype=None, bool copy=False, MemoryFormat? "
    "memory_format=None) -> Tensor",
    _to_device_meta,
    Extern(),
    _eager_to_device,
    (),
    lambda: [call(t(3, 4), torch.device("cpu"), torch.float64, True)],
)


# ----------------------------------------------------------------------------------------------------------------- copies


def _clone_meta(x: TensorMeta, memory_format: Any = None) -> TensorMeta:
    return TensorMeta(x.shape, rules.format_strides(x, memory_format), x.dtype, x.device)


def _identity(b: Builder, x: Value, **attrs: Any) -> Value:
    return x


def _eager_clone(x: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
    return torch.clone(x, memory_format=memory_format or torch.preserve_format)


def _contiguous_meta(x: TensorMeta, memory_format: Any = torch.contiguous_format) -> TensorMeta:
    if memory_format == torch.preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
    if memory_format == torch.contiguous_format:
        return x if rules.is_row_major(x) else rules.fresh(x.shape, x.dtype, x.device)
    strides = rules.format_strides(x, memory_format)
    return x if rules.is_channels_last(x) else TensorMeta(x.shape, strides, x.dtype, x.device)


def _restride_meta(x: TensorMeta, stride: tuple[Dim, ...]) -> TensorMeta:
    return TensorMeta(x.shape, tuple(stride), x.dtype, x.device)


def _eager_restride(x: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    return x.new_empty_strided(x.shape, stride).copy_(x)


declare(
    "clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
    _clone_meta,
    Pointwise(_identity, "none"),
    _eager_clone,
    spelled("clone"),
    lambda: [
        *one(ANY)(),
        call(t(2, 3, 4, 5), memory_format=torch.channels_last),
        call(t(4, 6, layout="transposed"), memory_format=torch.contiguous_format),
    ],
)
declare(
    "contiguous(Tensor self, *, MemoryFormat memory_format=contiguous_format) -> Tensor",
    _contiguous_meta,
    Pointwise(_identity, "none"),
    lambda x, memory_format=torch.contiguous_format: x.contiguous(memory_format=memory_format),
    spelled("contiguous", "m"),
    lambda: [
        *(call(t(4, 6, layout=lay)) for lay in LAYOUTS),
        call(t(3)),
        call(t(2, 3, 4, 5), memory_format=torch.channels_last),
    ],
    doc="A copy; the input itself (the same meta) where its memory is in order already.",
)
declare(
    "restride(Tensor self, SymInt[] stride) -> Tensor",
    _restride_meta,
    Pointwise(_identity, "none"),
    _eager_restride,
    (),
    lambda: [call(t(3, 4), (1, 3)), call(t(2, 3, layout="transposed"), (3, 1))],
    doc="A copy with the given strides: where a decomposition would lay memory out in another way than torch.",
)


# ------------------------------------------------------------------------------------------------------------ hand it on


def _same(x: TensorMeta) -> TensorMeta:
    return x


def _here(coords: tuple[Dim, ...], meta_in: TensorMeta, meta_out: TensorMeta) -> tuple[Dim, ...]:
    return coords


declare(
    "identity(Tensor(a) self) -> Tensor(a)",
    _same,
    View(_here),
    lambda x: x,
    (),
    lambda: [call(t(3, 4)), call(t(4, 6, layout="transposed"))],
    doc="The very same tensor: what a call that does nothing (dropout in eval, .to() of the same dtype) returns.",
)
declare("detach(Tensor(a) self) -> Tensor(a)", _same, View(_here), torch.detach, spelled("detach"), lambda: [call(t(3, 4))])
declare("alias(Tensor(a) self) -> Tensor(a)", _same, View(_here), torch.ops.aten.alias, (), lambda: [call(t(3, 4))])
