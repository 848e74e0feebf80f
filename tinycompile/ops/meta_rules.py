"""Shape, stride and dtype rules that the records share.

The stride rule of elementwise ops is that of ATen's TensorIterator (aten/src/ATen/TensorIterator.cpp:
``compute_fast_setup_type``, ``reorder_dimensions``, ``allocate_or_resize_outputs``), restated on metadata. Promotion is
``torch.result_type``: tensors with dims outrank 0-d tensors, which outrank Python numbers, category by category.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import Shape

FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
HALVES = frozenset((torch.float16, torch.bfloat16))
INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
SUPPORTED = FLOATS | INTEGERS | {torch.bool}

CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # dims from the fastest to the slowest

_NAMES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
    torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64", torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def type_name(dtype: torch.dtype) -> str:
    """ATen's name of a dtype, as error messages spell it."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch.").capitalize())


_C_NAMES = {
    torch.bool: "bool", torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int",
    torch.int64: "int64_t", torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
}  # fmt: skip


def c_type(dtype: torch.dtype) -> str:
    """The C++ type of a dtype, as some error messages spell it."""
    return _C_NAMES.get(dtype, str(dtype))


# ---------------------------------------------------------------------------------------------------------------- dtypes


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a kernel computes: float32 for half types, else the dtype itself."""
    return torch.float32 if dtype in HALVES else dtype


@functools.cache
def promote_types(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """``torch.promote_types``, remembered."""
    return a if a == b else torch.promote_types(a, b)


def number_dtype(value: Any) -> torch.dtype:
    """The dtype that a Python number brings into promotion; a symbolic size counts as an int."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, Expr)):
        return torch.int64
    if isinstance(value, float):
        return torch.get_default_dtype()
    raise TypeError(f"unsupported operand of type '{type(value).__name__}' where a Tensor or a number is needed")


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_floating_point:
        return higher
    return promote_types(higher, lower) if higher == torch.bool or lower.is_floating_point else higher


def result_type(operands: Iterable[Any]) -> torch.dtype:
    """The common dtype of TensorMetas and Python numbers (None is skipped), as ``torch.result_type`` gives it."""
    wide: torch.dtype | None = None  # of tensors with dims
    zero: torch.dtype | None = None  # of 0-d tensors
    number: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, TensorMeta):
            dtype = operand.dtype
            if operand.shape:
                wide = dtype if wide is None or wide is dtype else promote_types(wide, dtype)
            else:
                zero = dtype if zero is None or zero is dtype else promote_types(zero, dtype)
        elif operand is not None:
            dtype = number_dtype(operand)
            number = dtype if number is None else promote_types(number, dtype)
    if wide is not None and zero is None and number is None:
        return wide
    found = _combine(_combine(wide, zero), number)
    assert found is not None
    return found


def float_type(dtype: torch.dtype) -> torch.dtype:
    """Floats stay; integers and bools become the default float dtype."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def input_dtypes(promote: str, operands: Sequence[Any]) -> list[torch.dtype]:
    """The dtype in which each input of a Pointwise op reaches its formula (half types widened).

    ``operands`` are the op's Tensor arguments in schema order: TensorMetas or Python numbers."""
    if promote == "none":  # a number is a double to torch, until it meets a dtype
        wide = any(isinstance(o, TensorMeta) and o.dtype == torch.float64 for o in operands)
        dtypes = [opmath(o.dtype) if isinstance(o, TensorMeta) else number_dtype(o) for o in operands]
        return [torch.float64 if wide and isinstance(o, float) else d for o, d in zip(operands, dtypes, strict=True)]
    common = result_type(operands)
    compute = opmath(float_type(common) if promote == "int_to_float" else common)
    return [compute] * len(operands)


def check_fits(value: Any, dtype: torch.dtype) -> None:
    """Raise torch's error for an integer that an integer dtype can't hold (uint8 takes negative ones: they wrap)."""
    if isinstance(value, int) and not isinstance(value, bool) and dtype in INTEGERS:
        info = torch.iinfo(dtype)
        if not (-info.max if dtype == torch.uint8 else info.min) <= value <= info.max:
            raise RuntimeError(f"value cannot be converted to type {c_type(dtype)} without overflow")


# --------------------------------------------------------------------------------------------------------------- strides


@functools.lru_cache(maxsize=4096)
def dense_strides(shape: Shape) -> Shape:
    """Row-major strides, remembered by shape."""
    return shapes.contiguous_strides(shape)


def channels_last_strides(shape: Shape) -> Shape:
    """Strides of torch.channels_last (rank 4) or channels_last_3d (rank 5)."""
    return strides_in_order(shape, CHANNELS_LAST[len(shape)])


def strides_in_order(shape: Sequence[Dim], order: Sequence[int]) -> Shape:
    """Dense strides with the dims of ``order`` from the fastest to the slowest (sizes of 0 make the slower strides 0)."""
    strides: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return tuple(strides)


def is_dense_in_order(shape: Sequence[Dim], strides: Sequence[Dim], order: Sequence[int]) -> bool:
    """Whether memory is dense with the dims of ``order`` from fastest to slowest; dims of size 1 don't count."""
    step: Dim = 1
    for d in order:
        if is_one(shape[d]):
            continue
        if not shapes.same(strides[d], step):
            return False
        step = step * shape[d]
    return True


def is_channels_last(meta: TensorMeta) -> bool:
    """torch's ``is_contiguous(memory_format=torch.channels_last)``, or ``channels_last_3d`` for rank 5."""
    return meta.rank in CHANNELS_LAST and is_dense_in_order(meta.shape, meta.strides, CHANNELS_LAST[meta.rank])


def suggests_channels_last(x: TensorMeta) -> bool:
    """torch's ``suggest_memory_format(x) == channels_last`` (3d for rank 5): strides that grow in channels-last order."""
    if x.rank not in CHANNELS_LAST or is_zero(x.strides[1]):
        return False
    least: Dim = 0
    for d in CHANNELS_LAST[x.rank]:
        if is_zero(x.shape[d]) or not shapes.at_least(x.strides[d], least):
            return False
        if d == 0 and shapes.same(least, x.strides[1]):
            return False
        least = x.strides[d] if is_one(x.shape[d]) else x.strides[d] * x.shape[d]
    return True


def stays_in(x: TensorMeta, memory_format: torch.memory_format) -> bool:
    """Whether ``x.to(memory_format=...)`` is x: where torch suggests that format for it, however its strides be."""
    if memory_format == torch.contiguous_format:
        return not suggests_channels_last(x)
    return x.rank == (4 if memory_format == torch.channels_last else 5) and suggests_channels_last(x)


def is_row_major(meta: TensorMeta) -> bool:
    """``meta.is_contiguous()``, quick for the common case."""
    return meta.strides == dense_strides(meta.shape) or meta.is_contiguous()


def is_non_overlapping_and_dense(meta: TensorMeta) -> bool:
    """torch's flag: some order of the dims is dense."""
    if is_row_major(meta) or is_channels_last(meta):
        return True
    big = [d for d in range(meta.rank) if not is_one(meta.shape[d])]
    return is_dense_in_order(meta.shape, meta.strides, sorted(big, key=functools.cmp_to_key(_by_stride(meta.strides))))


def may_overlap_itself(meta: TensorMeta) -> bool:
    """Whether several elements may be one in memory: a stride is no longer than what the smaller ones reach."""
    if is_non_overlapping_and_dense(meta):
        return False
    far: Dim = 0
    big = [d for d in range(meta.rank) if not is_one(meta.shape[d])]
    for d in sorted(big, key=functools.cmp_to_key(_by_stride(meta.strides))):
        if not shapes.at_least(meta.strides[d], far + 1):
            return not any(n == 0 for n in meta.shape)
        far += meta.strides[d] * (meta.shape[d] - 1)
    return False


def _by_stride(strides: Shape) -> Callable[[int, int], int]:
    return lambda a, b: _compared(strides[a], strides[b])


def _compared(a: Dim, b: Dim) -> int:
    """1, 0 or -1: larger, equal, smaller. Symbols may be equal by value: that is decided, and guarded."""
    return 0 if shapes.same(a, b) else 1 if shapes.at_least(a, b) else -1


def is_one(d: Dim) -> bool:
    """A size that is 1 (symbolic sizes never are)."""
    return isinstance(d, int) and d == 1


def replaced(items: Sequence[Dim], dim: int, value: Dim) -> Shape:
    """A shape or coordinates with one entry replaced."""
    return (*items[:dim], value, *items[dim + 1 :])


def is_zero(d: Dim) -> bool:
    """A size or stride that is 0."""
    return isinstance(d, int) and d == 0


def iterator_strides(shape: Shape, operands: Sequence[TensorMeta], with_numbers: bool) -> Shape:
    """The strides that TensorIterator gives a fresh output of ``shape``.

    ``with_numbers``: Python numbers took part, as 0-d tensors."""
    for t in operands:
        if t.strides != dense_strides(t.shape):
            break
    else:
        if not any(map(is_zero, shape)):  # dims of 0 make ties that order the dims anew
            return dense_strides(shape)
    if all(t.shape == shape for t in operands) and not (with_numbers and shape):
        if all(is_row_major(t) for t in operands):
            return dense_strides(shape)
        if len(shape) == 4 and all(is_channels_last(t) for t in operands):
            return channels_last_strides(shape)
        last = operands[-1].strides
        if all(shapes.same_shape(t.strides, last) for t in operands) and is_non_overlapping_and_dense(operands[-1]):
            return last
    order = _iteration_order(shape, [_strides_within(t, shape) for t in operands])
    if order == list(range(len(shape) - 1, -1, -1)):
        return dense_strides(shape)
    return strides_in_order(shape, order)


def _strides_within(t: TensorMeta, shape: Shape) -> Shape:
    """An operand's strides along the dims of ``shape``: 0 where it is expanded, and along dims that it lacks."""
    own = zip(t.shape, t.strides, shape[len(shape) - t.rank :], strict=True)
    return (0,) * (len(shape) - t.rank) + tuple(0 if is_one(n) and not is_one(to) else stride for n, stride, to in own)


def _iteration_order(shape: Shape, strides: Sequence[Shape]) -> list[int]:
    """Dims from fastest to slowest: ATen's insertion sort with ambiguous comparisons."""
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            comparison = _compare_dims(shape, strides, order[j], order[at])
            if comparison > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif comparison < 0:
                break
    return order


def _compare_dims(shape: Shape, strides: Sequence[Shape], inner: int, outer: int) -> int:
    """1: swap; -1: keep; 0: no operand says."""
    for of in strides:
        a, b = of[inner], of[outer]
        if is_zero(a) or is_zero(b):
            continue
        longer = _compared(a, b) or max(_compared(shape[inner], shape[outer]), 0)
        if longer:
            return longer
    return 0


def preserved_strides(meta: TensorMeta) -> Shape:
    """Strides of ``empty_like(x)`` with torch.preserve_format (what clone and the ``*_like`` factories use)."""
    if meta.strides == dense_strides(meta.shape):
        return meta.strides
    if is_non_overlapping_and_dense(meta):
        return meta.strides
    return strides_as_iterated(meta)


def empty_like(meta: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    """A fresh tensor made by ``empty_like``: some kernels make their result so before they start, and others a copy of it."""
    return TensorMeta(meta.shape, preserved_strides(meta), dtype or meta.dtype, meta.device)


def strides_as_iterated(meta: TensorMeta) -> Shape:
    """Dense strides in the order of the input's own (ATen's ``infer_dense_strides``: sizes of 0 and 1 keep the order)."""
    return iterator_strides(meta.shape, (meta,), True)


def format_strides(meta: TensorMeta, memory_format: torch.memory_format | None) -> Shape:
    """Strides of a fresh tensor like ``meta`` in a memory format."""
    if memory_format is None or memory_format == torch.preserve_format:
        return preserved_strides(meta)
    if memory_format == torch.contiguous_format:
        return dense_strides(meta.shape)
    rank = 4 if memory_format == torch.channels_last else 5
    if meta.rank != rank:
        name = "channels_last" if rank == 4 else "channels_last_3d"
        raise RuntimeError(f"required rank {rank} tensor to use {name} format")
    return channels_last_strides(meta.shape)


# ----------------------------------------------------------------------------------------------------------- elementwise


def tensors_of(operands: Iterable[Any]) -> list[TensorMeta]:
    """The TensorMetas among the operands."""
    return [o for o in operands if isinstance(o, TensorMeta)]


def common_device(tensors: Sequence[TensorMeta]) -> Device:
    """The device of the result: 0-d CPU tensors may mix with any. Raises torch's error for two devices."""
    device = tensors[0].device
    for t in tensors:
        if t.device == device:
            continue
        if not t.shape and t.device.type == "cpu":
            continue
        first = next((o for o in tensors if o.shape or o.device.type != "cpu"), t)
        if first.device != t.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {first.device} and {t.device}!"
            )
        device = t.device
    return device


def elementwise(operands: Sequence[Any], dtype: torch.dtype, common: torch.dtype | None = None) -> TensorMeta:
    """The fresh result of an elementwise kernel over TensorMetas and Python numbers.

    ``common``: the dtype to which operands are cast first. On a CPU that copies them, which settles the copies' strides."""
    tensors: list[TensorMeta] = []
    mixed = False  # with numbers
    for o in operands:
        if isinstance(o, TensorMeta):
            tensors.append(o)
        elif o is not None:
            mixed = True
    if not tensors:
        raise TypeError("an elementwise op needs at least one tensor")
    shape, device = tensors[0].shape, tensors[0].device
    for t in tensors:
        if t.shape != shape:
            shape = shapes.broadcast_shapes(*(t.shape for t in tensors))
            break
    for t in tensors:
        if t.device is not device and t.device != device:
            device = common_device(tensors)
            break
    if common is not None and device.type == "cpu":
        tensors = [t if t.dtype is common else empty_like(t, common) for t in tensors]
    return TensorMeta(shape, iterator_strides(shape, tensors, mixed), dtype, device)


def pointwise_default(*operands: Any) -> TensorMeta:
    """Promote; the result has the common dtype."""
    dtype = result_type(operands)
    return elementwise(operands, dtype, dtype)


def pointwise_float(*operands: Any) -> TensorMeta:
    """Promote; integers become the default float dtype."""
    dtype = float_type(result_type(operands))
    return elementwise(operands, dtype, dtype)


def pointwise_bool(*operands: Any) -> TensorMeta:
    """The result is bool; the operands must still promote."""
    return elementwise(operands, torch.bool, result_type(operands))


def like(meta: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    """The fresh result of a unary elementwise kernel."""
    if meta.strides == dense_strides(meta.shape):
        return TensorMeta(meta.shape, meta.strides, dtype or meta.dtype, meta.device)
    return TensorMeta(meta.shape, iterator_strides(meta.shape, (meta,), False), dtype or meta.dtype, meta.device)


def fresh(shape: Shape, dtype: torch.dtype, device: Device) -> TensorMeta:
    """A fresh row-major tensor."""
    return TensorMeta(shape, dense_strides(shape), dtype, device)
