"""Factories: tensors from numbers. They have no tensor input (or only its metadata), so the default device decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.device import Device, default_device
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.calls import ops
from tinycompile.ops.declare import declare, spelled
from tinycompile.ops.record import Decompose, Extern, Indexed
from tinycompile.ops.samples import FLOATS, INTS, LAYOUTS, call, t
from tinycompile.ops.scalar import Builder, Operand, Value

Coords = tuple[Dim, ...]


def device_of(device: Any) -> Device:
    """The device of a new tensor: the default one for None, the current index for a bare "cuda", the first for other names."""
    chosen = default_device() if device is None else Device.of(device)
    if chosen.type in ("cpu", "meta"):
        return Device(chosen.type)
    if chosen.index >= 0:
        return chosen
    return Device(chosen.type, torch.cuda.current_device() if chosen.type == "cuda" else 0)


def torch_device(device: Any) -> torch.device | None:
    """Our device as torch's; what torch takes as it is."""
    return device.torch() if isinstance(device, Device) else device


def fresh(size: Sequence[Dim], dtype: torch.dtype, device: Any) -> TensorMeta:
    """A new contiguous tensor on ``device`` (None: the default one). Raises torch's error for a negative size."""
    for s in size:
        if isinstance(s, int) and s < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {s}: {list(size)}")
    return rules.fresh(tuple(size), dtype, device_of(device))


def constant(b: Builder, value: Any, dtype: torch.dtype) -> Value:
    """A number as a value of ``dtype``, rounded to it for half types."""
    if dtype in rules.HALVES:
        return b.cast(b.const(value, torch.float32), dtype)
    if isinstance(value, float) and not dtype.is_floating_point:
        value = bool(value) if dtype == torch.bool else int(value)
    return b.const(value, dtype)


# ------------------------------------------------------------------------------------------------------------------ full


def _full_meta(size: Sequence[Dim], fill_value: Any, dtype: Any = None, device: Any = None) -> TensorMeta:
    return fresh(size, dtype or rules.number_dtype(fill_value), device)


def _full(b: Builder, coords: Coords, meta_out: TensorMeta, size: Any, fill_value: Any, *rest: Any) -> Value:
    return constant(b, fill_value, meta_out.dtype)


def _eager_full(size: Any, fill_value: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.full(size, fill_value, dtype=dtype, device=torch_device(device))


def _like_meta(x: TensorMeta, dtype: Any = None, device: Any = None, memory_format: Any = None) -> TensorMeta:
    target = x.device if device is None else device_of(device)
    return TensorMeta(x.shape, rules.format_strides(x, memory_format), dtype or x.dtype, target)


def _full_like_meta(
    x: TensorMeta, fill_value: Any, dtype: Any = None, device: Any = None, memory_format: Any = None
) -> TensorMeta:
    return _like_meta(x, dtype, device, memory_format)


def _full_like(b: Builder, coords: Coords, meta_out: TensorMeta, x: Operand, fill_value: Any, *rest: Any) -> Value:
    return constant(b, fill_value, meta_out.dtype)


def _eager_full_like(x: Any, fill_value: Any, dtype: Any = None, device: Any = None, memory_format: Any = None) -> torch.Tensor:
    chosen = memory_format or torch.preserve_format
    return torch.full_like(x, fill_value, dtype=dtype, device=torch_device(device), memory_format=chosen)


def _new_full_meta(
    x: TensorMeta, size: Sequence[Dim], fill_value: Any, dtype: Any = None, device: Any = None, stride: Any = None
) -> TensorMeta:
    made = fresh(size, dtype or x.dtype, x.device if device is None else device)
    return made if stride is None else TensorMeta(made.shape, tuple(stride), made.dtype, made.device)


def _new_full(x: Any, size: Any, fill_value: Any, dtype: Any = None, device: Any = None, stride: Any = None) -> Any:
    made = ops.full(size, fill_value, dtype=dtype or x.dtype, device=x.device if device is None else device)
    return made if stride is None else ops.restride(made, tuple(stride))


def _eager_new_full(
    x: Any, size: Any, fill_value: Any, dtype: Any = None, device: Any = None, stride: Any = None
) -> torch.Tensor:
    made = x.new_full(size, fill_value, dtype=dtype, device=torch_device(device))
    return made if stride is None else made.new_empty_strided(size, stride).fill_(fill_value)


def _scalar_tensor_meta(s: Any, dtype: Any = None, device: Any = None) -> TensorMeta:
    return fresh((), dtype or torch.get_default_dtype(), device)


def _scalar_tensor(b: Builder, coords: Coords, meta_out: TensorMeta, s: Any, *rest: Any) -> Value:
    return constant(b, s, meta_out.dtype)


_OPTIONS = "*, ScalarType? dtype=None, Device? device=None"
declare(
    f"full(SymInt[] size, Scalar fill_value, {_OPTIONS}) -> Tensor",
    _full_meta,
    Indexed(_full),
    _eager_full,
    spelled("full", "t"),
    lambda: [
        call((3, 4), 2.5),
        call((3,), 2),
        call((), True),
        call((0, 2), 1.0),
        *(call((3,), 1, dtype=getattr(torch, d)) for d in (*FLOATS, *INTS)),
        call((2,), 0.1, dtype=torch.float16),
        call((2,), float("nan")),
        call((-1,), 0.0),
    ],
)
declare(
    f"full_like(Tensor self, Scalar fill_value, {_OPTIONS}, MemoryFormat? memory_format=None) -> Tensor",
    _full_like_meta,
    Indexed(_full_like),
    _eager_full_like,
    spelled("full_like", "t"),
    lambda: [
        call(t(3, 4), 2.5),
        call(t(3, 4, dtype="int32"), 2),
        *(call(t(4, 6, layout=lay), 1) for lay in LAYOUTS),
        call(t(3), 1, dtype=torch.int64),
        call(t(2, 3, 4, 5, layout="channels_last"), 0),
    ],
)
declare(
    f"new_full(Tensor self, SymInt[] size, Scalar fill_value, {_OPTIONS}, SymInt[]? stride=None) -> Tensor",
    _new_full_meta,
    Decompose(_new_full),
    _eager_new_full,
    (),
    lambda: [
        call(t(3, 4), (2, 3), 1.5),
        call(t(3, dtype="int32"), (), 2),
        call(t(2, 3), (4,), 1, dtype=torch.int64),
        call(t(2, 3), (2, 3), 0.0, stride=(1, 2)),
    ],
    doc="``x.new_zeros(3)`` and its like under vmap: each example of ``self`` has a result of its own.",
)
declare(
    f"scalar_tensor(Scalar s, {_OPTIONS}) -> Tensor",
    _scalar_tensor_meta,
    Indexed(_scalar_tensor),
    lambda s, dtype=None, device=None: torch.scalar_tensor(s, dtype=dtype, device=torch_device(device)),
    spelled("scalar_tensor", "t"),
    lambda: [call(2.5), call(3, dtype=torch.int64), call(0.1, dtype=torch.bfloat16)],
)


# ----------------------------------------------------------------------------------------------------------------- empty


def _empty_meta(size: Sequence[Dim], dtype: Any = None, device: Any = None) -> TensorMeta:
    return fresh(size, dtype or torch.get_default_dtype(), device)


def _eager_empty(size: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=torch_device(device))


def _eager_empty_like(x: Any, dtype: Any = None, device: Any = None, memory_format: Any = None) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype, device=torch_device(device), memory_format=memory_format or torch.preserve_format)


declare(
    f"empty(SymInt[] size, {_OPTIONS}) -> Tensor",
    _empty_meta,
    Extern(),
    _eager_empty,
    (),
    lambda: [call((3, 4)), call((0,), dtype=torch.int32)],
)
declare(
    f"empty_like(Tensor self, {_OPTIONS}, MemoryFormat? memory_format=None) -> Tensor",
    _like_meta,
    Extern(),
    _eager_empty_like,
    spelled("empty_like", "t"),
    lambda: [call(t(3, 4)), call(t(4, 6, layout="transposed")), call(t(4, 6, layout="expanded"))],
)


# ---------------------------------------------------------------------------------------------------------------- ranges


def _arange_meta(start: Any, end: Any, step: Any = 1, dtype: Any = None, device: Any = None) -> TensorMeta:
    if dtype is None:
        whole = all(isinstance(v, (int, Expr)) for v in (start, end, step))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    return fresh((_arange_length(start, end, step, dtype),), dtype, device)


def _arange_length(start: Any, end: Any, step: Any, dtype: torch.dtype) -> Dim:
    if not isinstance(step, Expr) and step == 0:
        raise RuntimeError("step must be nonzero")
    if all(isinstance(v, int) for v in (start, end, step)) or any(isinstance(v, Expr) for v in (start, end, step)):
        up = shapes.at_least(step, 1)
        if not (shapes.at_least(end, start) if up else shapes.at_least(start, end)):
            raise RuntimeError("upper bound and lower bound inconsistent with step sign")
        return ex.ceildiv(end - start, step) if up else ex.ceildiv(start - end, -step)
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if dtype == torch.int64:
        if not int(step):
            raise RuntimeError("step must be nonzero")
        return -((int(start) - int(end)) // int(step))
    return math.ceil((end - start) / step)  # in doubles for narrower integers too, as ATen does


def _arange(b: Builder, coords: Coords, meta_out: TensorMeta, start: Any, end: Any, step: Any = 1, *rest: Any) -> Value:
    """start + i * step: in integers where both are, else in float64, as ATen's CPU kernel does."""
    whole = all(isinstance(v, (int, Expr)) for v in (start, step))
    if whole or not meta_out.dtype.is_floating_point:
        return b.cast(b.index(coords[0] * (step if whole else int(step)) + (start if whole else int(start))), meta_out.dtype)
    at = b.cast(b.index(coords[0]), torch.float64)
    return b.cast(at * float(step) + float(start), meta_out.dtype)


def _linspace_meta(start: Any, end: Any, steps: Dim, dtype: Any = None, device: Any = None) -> TensorMeta:
    if not shapes.at_least(steps, 0):
        raise RuntimeError("number of steps must be non-negative")
    return fresh((steps,), dtype or torch.get_default_dtype(), device)


def _linspace(b: Builder, coords: Coords, meta_out: TensorMeta, start: Any, end: Any, *rest: Any) -> Value:
    """From both ends towards the middle, so that both are exact; integers between the ends as integers."""
    (steps,) = meta_out.shape  # which is settled, as the argument is not
    if rules.is_one(steps):
        return constant(b, start, meta_out.dtype)
    if not meta_out.dtype.is_floating_point:
        start, end = int(start), int(end)
    compute = torch.float64 if meta_out.dtype == torch.float64 or not meta_out.dtype.is_floating_point else torch.float32
    at = b.index(coords[0])
    last = b.cast(b.index(steps - 1), compute)
    step = (b.const(float(end), compute) - float(start)) / last
    from_start = b.cast(at, compute) * step + float(start)
    from_end = float(end) - (last - b.cast(at, compute)) * step
    return b.cast(b.where(at < b.index(ex.floordiv(steps, 2)), from_start, from_end), meta_out.dtype)


def _eye_meta(n: Dim, m: Dim | None = None, dtype: Any = None, device: Any = None) -> TensorMeta:
    return fresh((n, n if m is None else m), dtype or torch.get_default_dtype(), device)


def _eye(b: Builder, coords: Coords, meta_out: TensorMeta, *rest: Any) -> Value:
    return b.cast(b.index(coords[0]).eq(b.index(coords[1])), meta_out.dtype)


def _eager_eye(n: int, m: int | None = None, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.eye(n, n if m is None else m, dtype=dtype, device=torch_device(device))


declare(
    f"arange(Scalar start, Scalar end, Scalar step=1, {_OPTIONS}) -> Tensor",
    _arange_meta,
    Indexed(_arange),
    lambda start, end, step=1, dtype=None, device=None: torch.arange(
        start, end, step, dtype=dtype, device=torch_device(device)
    ),
    (),
    lambda: [
        call(0, 5),
        call(2, 9, 3),
        call(5, 0, -2),
        call(0.0, 1.0, 0.1),
        call(1, 2.5, 0.5),
        call(0, 5, dtype=torch.float16),
        call(0, 0),
        call(0, 7, 2, dtype=torch.int32),
        call(0, 5, -1),
        call(0, 5, 0),
        call(1.0, 5.000001, 2.0, dtype=torch.int64),
        call(1.0, 5.000001, 2.0, dtype=torch.uint8),
        call(2.1, -2.9, -1.4, dtype=torch.int8),
        call(0.5, 0.2, 1, dtype=torch.int64),
        call(0, 5, 0.5, dtype=torch.int32),
    ],
)
declare(
    f"linspace(Scalar start, Scalar end, SymInt steps, {_OPTIONS}) -> Tensor",
    _linspace_meta,
    Indexed(_linspace),
    lambda start, end, steps, dtype=None, device=None: torch.linspace(
        start, end, steps, dtype=dtype, device=torch_device(device)
    ),
    spelled("linspace", "t"),
    lambda: [
        call(0.0, 1.0, 11),
        call(-3, 5, 1),
        call(-3, 5, 0),
        call(0, 10, 5, dtype=torch.float64),
        call(2.0, -2.0, 7),
        call(0, 1, -1),
        call(4.3, -3.7, 50, dtype=torch.int64),
        call(4.3, 0, 50, dtype=torch.uint8),
    ],
    ulp=2.0,
)
declare(
    f"eye(SymInt n, SymInt? m=None, {_OPTIONS}) -> Tensor",
    _eye_meta,
    Indexed(_eye),
    _eager_eye,
    spelled("eye", "t"),
    lambda: [call(3), call(3, 5), call(4, 2, dtype=torch.int64), call(2, dtype=torch.bool), call(0)],
)
