"""Evaluates a record on real tensors with numpy, by its formula alone: the reference that tests compare with torch's kernels.

A value is an array over the grid of output (or input) coordinates. Half types are held as float32 arrays whose values are
representable; casts go through torch, so that they round as torch rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.atoms import Sym
from tinycompile.base.expr import Dim
from tinycompile.base.meta import TensorMeta, meta_of_torch
from tinycompile.ops import meta_rules as rules
from tinycompile.ops.record import Decompose, Indexed, Op, Pointwise, Reduction, Scan, Scatter, View
from tinycompile.ops.scalar import SCALAR_OPS, Builder, Number, Operand, Value

_NUMPY = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float16: np.float32, torch.bfloat16: np.float32,
    torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip
Array = np.ndarray[Any, Any]


class ArrayValue(Value):
    """A value with its array."""

    __slots__ = ("array",)

    def __init__(self, builder: Builder, array: Any, dtype: torch.dtype) -> None:
        super().__init__(builder, "", dtype)
        self.array: Array = np.asarray(array, dtype=_NUMPY[dtype])


def to_array(x: torch.Tensor) -> Array:
    """A tensor's values; half types widened."""
    return (x.float() if x.dtype in rules.HALVES else x).detach().contiguous().numpy().reshape(tuple(x.shape))


def cast_array(array: Array, dtype: torch.dtype) -> Array:
    """Converts as torch's ``.to()`` does."""
    found = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    return (found.float() if dtype in rules.HALVES else found).numpy().reshape(np.shape(array))


def evaluate_dim(d: Dim, values: dict[str, Array]) -> Any:
    """An index expression over arrays of coordinates."""
    if isinstance(d, int):
        return d
    total: Any = 0
    for mono, coeff in d.terms:
        product: Any = coeff
        for atom in mono:
            if isinstance(atom, Sym):
                product = product * values[atom.name]
                continue
            a, b = evaluate_dim(atom.lhs, values), evaluate_dim(atom.rhs, values)
            fn = {"//": np.floor_divide, "%": np.mod, "min": np.minimum, "max": np.maximum}[atom.fn]
            product = product * fn(a, b)
        total = total + product
    return total


class NumpyBuilder(Builder):
    """Formulas as whole-array numpy over a grid of ``shape``."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.values: dict[str, Array] = {}
        self.coords: tuple[Dim, ...] = tuple(0 if size == 1 else ex.sym(f"i{d}", 0, size) for d, size in enumerate(self.shape))
        for d in range(len(self.shape)):
            self.values[f"i{d}"] = np.arange(self.shape[d]).reshape([-1 if k == d else 1 for k in range(len(self.shape))])

    def emit(self, op: str, args: Sequence[Value], dtype: torch.dtype) -> Value:
        arrays = [a.array for a in args]  # type: ignore[attr-defined]
        domain = SCALAR_OPS[op].domain
        data = args[1:] if op == "where" else args
        kind = "b" if data[0].dtype == torch.bool else "f" if data[0].dtype.is_floating_point else "i"
        if kind not in domain:
            raise TypeError(f"{op} does not take {data[0].dtype}")
        if data[0].dtype in rules.HALVES and op != "cast":
            raise TypeError(f"{op} on {data[0].dtype}: half types take part in no arithmetic")
        if op == "cast":
            return ArrayValue(self, cast_array(arrays[0], dtype), dtype)
        with np.errstate(all="ignore"):
            return ArrayValue(self, SCALAR_OPS[op].numpy(*arrays), dtype)

    def const(self, value: Number | Dim, dtype: torch.dtype) -> Value:
        assert dtype not in rules.HALVES, "a constant is never of a half type"
        plain = value if isinstance(value, (bool, int, float)) else evaluate_dim(value, self.values)
        if isinstance(plain, int) and not isinstance(plain, bool) and not dtype.is_floating_point and dtype != torch.bool:
            return ArrayValue(self, np.array(plain).astype(_NUMPY[dtype]), dtype)
        return ArrayValue(self, plain, dtype)

    def index(self, value: Dim, dtype: torch.dtype = torch.int64) -> Value:
        return ArrayValue(self, evaluate_dim(value, self.values), dtype)

    def as_index(self, value: Value, size: Dim) -> Dim:
        array: Array = value.array  # type: ignore[attr-defined]
        if array.size and not (int(array.min()) >= 0 and int(array.max()) < int(size)):
            raise IndexError("index out of range in self")
        name = f"v{len(self.values)}"
        self.values[name] = array.astype(np.int64)
        return ex.sym(name, 0, size)

    def load(self, operand: Operand, coords: Sequence[Dim], mask: Sequence[Dim] = (), other: Number = 0) -> Value:
        array: Array = operand.handle
        inside: Any = True
        for m in mask:
            inside = np.logical_and(inside, evaluate_dim(m, self.values) >= 0)
        places = []
        for c, size in zip(coords, array.shape, strict=True):
            place = np.asarray(evaluate_dim(c, self.values))
            if mask:
                place = np.where(inside, place, 0)
            if place.size and 0 not in array.shape and not (place.min() >= 0 and place.max() < size) and 0 not in self.shape:
                raise IndexError(f"coordinate {c} leaves [0, {size})")
            places.append(place)
        if 0 in array.shape:  # nothing to read: every point is masked, or there are none
            return ArrayValue(self, np.broadcast_to(np.asarray(other, array.dtype), self.shape), operand.meta.dtype)
        found = array[tuple(np.broadcast_arrays(*places))] if places else array
        return ArrayValue(self, np.where(inside, found, np.asarray(other, array.dtype)) if mask else found, operand.meta.dtype)


# ------------------------------------------------------------------------------------------------------- whole records


def meta_of(value: Any) -> Any:
    """Arguments with TensorMeta for each tensor."""
    if isinstance(value, torch.Tensor):
        return meta_of_torch(value)
    return type(value)(meta_of(v) for v in value) if isinstance(value, (tuple, list)) else value


def evaluate(op: Op, args: Sequence[Any]) -> Any:
    """The results (tensors) of a record on torch tensors, by its lowering; ``args`` in schema order. Not for Extern."""
    lowering = op.lowering
    metas = op.meta(*(meta_of(a) for a in args))
    if isinstance(lowering, Decompose):
        return lowering.fn(*args)
    if isinstance(lowering, Pointwise):
        return _pointwise(op, lowering, args, metas)
    if isinstance(lowering, Reduction):
        return _reduction(op, lowering, args, metas)
    if isinstance(lowering, Scan):
        return _scan(lowering, args, metas)
    if isinstance(lowering, (View, Indexed)):
        return _placed(lowering, args, metas)
    if isinstance(lowering, Scatter):
        return _scattered(lowering, args, metas)
    raise TypeError(f"{op.name} runs as torch's own kernel")


def _tensor(value: Value, meta: Any) -> torch.Tensor:
    array: Array = np.broadcast_to(value.array, meta.shape)  # type: ignore[attr-defined]
    return torch.from_numpy(np.array(array)).to(meta.dtype)


def _pointwise(op: Op, lowering: Pointwise, args: Sequence[Any], meta: Any) -> torch.Tensor:
    b = NumpyBuilder(meta.shape)
    tensors = [i for i, a in enumerate(op.schema.args) if a.base == "Tensor"]
    given = [meta_of(args[i]) for i in tensors if args[i] is not None]
    by_result = lowering.promote in ("default", "int_to_float")  # also where an attribute took part in promotion
    dtypes = iter([rules.opmath(meta.dtype)] * len(given) if by_result else rules.input_dtypes(lowering.promote, given))
    common = rules.result_type(given) if lowering.promote == "bool_out" else None
    rounded = common if common in rules.HALVES else None  # a predicate compares values of the common dtype
    inputs: list[Value | None] = []
    for i in tensors:
        if args[i] is None:
            inputs.append(None)
        elif isinstance(args[i], torch.Tensor):
            value = b.cast(ArrayValue(b, to_array(args[i]), args[i].dtype), rounded or args[i].dtype)
            inputs.append(b.cast(value, next(dtypes)))
        else:
            dtype = next(dtypes)
            number = b.const(args[i], dtype)
            inputs.append(number if rounded is None else b.cast(b.cast(number, rounded), dtype))
    attrs = {a.name: args[i] for i, a in enumerate(op.schema.args) if i not in tensors}
    result = lowering.formula(b, *inputs, **attrs)
    return _tensor(b.cast(result, meta.dtype), meta)


def _reduction(op: Op, lowering: Reduction, args: Sequence[Any], metas: Any) -> Any:
    x: torch.Tensor = args[0]
    attrs = {a.name: args[i] for i, a in enumerate(op.schema.args) if i}
    dims = shapes.normalize_dims(attrs.get("dim"), x.dim())
    b = NumpyBuilder(x.shape)
    value = b.cast(ArrayValue(b, to_array(x), x.dtype), rules.opmath(x.dtype))
    if lowering.prologue is not None:
        value = lowering.prologue(b, value, **attrs)
    with np.errstate(all="ignore"):
        reduced = _reduce(lowering.kind, value.array, dims)  # type: ignore[attr-defined]
    dtype = torch.int64 if lowering.kind.startswith("arg") else value.dtype
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64)) if x.dim() else 1
    values: Any = tuple(ArrayValue(b, r, dtype) for r in reduced)
    if lowering.epilogue is not None:
        values = lowering.epilogue(b, *values, b.const(count, dtype), **attrs)
    several = values if isinstance(values, tuple) else (values,)
    outputs = metas if isinstance(metas, tuple) else (metas,)
    found = tuple(_shaped(b.cast(v, m.dtype), m) for v, m in zip(several, outputs, strict=True))
    return found if isinstance(metas, tuple) else found[0]


def _shaped(value: Value, meta: TensorMeta) -> torch.Tensor:
    return torch.from_numpy(np.array(value.array).reshape(meta.shape)).to(meta.dtype)  # type: ignore[attr-defined]


def _reduce(kind: str, x: Array, dims: tuple[int, ...]) -> tuple[Array, ...]:
    """Reduced over ``dims``; sums in the dtype of ``x`` (pairwise, as numpy does along the last axis)."""
    rest = [d for d in range(x.ndim) if d not in dims]
    flat = np.ascontiguousarray(x.transpose([*rest, *dims])).reshape(
        [x.shape[d] for d in rest] + [-1 if x.size else int(np.prod([x.shape[d] for d in dims], dtype=np.int64))]
    )
    if kind in ("sum", "prod"):
        return (getattr(np, kind)(flat, axis=-1, dtype=flat.dtype),)
    if kind in ("any", "all"):
        return (getattr(np, kind)(flat, axis=-1),)
    if kind in ("max", "min"):
        return (getattr(np, kind)(flat, axis=-1),)
    if kind in ("argmax", "argmin"):
        return (getattr(np, kind)(flat, axis=-1),)
    if kind == "welford":
        mean = flat.mean(axis=-1, keepdims=True)
        return mean[..., 0], np.square(flat - mean).sum(axis=-1)
    if kind == "online_softmax":
        if not flat.shape[-1]:
            return np.full(flat.shape[:-1], -np.inf, flat.dtype), np.zeros(flat.shape[:-1], flat.dtype)
        top = flat.max(axis=-1, keepdims=True)
        return top[..., 0], np.where(top == -np.inf, 0, np.exp(flat - top)).sum(axis=-1, dtype=flat.dtype)
    raise ValueError(f"unknown reduction {kind}")


def _scan(lowering: Scan, args: Sequence[Any], meta: Any) -> torch.Tensor:
    x: torch.Tensor = args[0]
    dtype = rules.opmath(meta.dtype)
    array = cast_array(to_array(x), dtype)
    if x.dim():
        fn: Any = {"sum": np.cumsum, "prod": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate}[
            lowering.kind
        ]
        array = fn(array, axis=shapes.normalize_dim(args[1], x.dim()))
    return torch.from_numpy(np.array(array, dtype=_NUMPY[dtype])).to(meta.dtype)


def _placed(lowering: View | Indexed, args: Sequence[Any], meta: Any) -> torch.Tensor:
    b = NumpyBuilder(meta.shape)
    if isinstance(lowering, View):
        x = args[0]
        operand = Operand(meta_of(x), to_array(x))
        coords = lowering.index(b.coords, operand.meta, meta, *args[1:])
        return _tensor(b.load(operand, coords), meta)
    return _tensor(b.cast(lowering.formula(b, b.coords, meta, *(_operand(a) for a in args)), meta.dtype), meta)


def _scattered(lowering: Scatter, args: Sequence[Any], meta: Any) -> torch.Tensor:
    """Sums of floats in float64, of integers in int64; points one after another."""
    operands = [_operand(a) for a in args]
    shape = [int(n) for n in lowering.points(meta, *operands)]
    b = NumpyBuilder(shape)
    place, value = lowering.formula(b, b.coords, meta, *operands)
    adds = lowering.adds(*operands)
    kind: Any = (np.float64 if meta.dtype.is_floating_point else np.int64) if adds else _NUMPY[meta.dtype]
    size = [int(n) for n in meta.shape]
    held = np.zeros(size, kind) if lowering.from_zeros else to_array(args[0]).astype(kind)
    at: Any = tuple(np.broadcast_to(evaluate_dim(c, b.values), shape).ravel() for c in place) or np.zeros(shape, int).ravel()
    values = np.broadcast_to(value.array, shape).ravel().astype(kind)  # type: ignore[attr-defined]
    flat = held.reshape(size or [1])
    if adds:
        np.add.at(flat, at, values)
    else:
        flat[at] = values
    return torch.empty_strided(size, meta.strides, dtype=meta.dtype, device="cpu").copy_(torch.from_numpy(flat).reshape(size))


def _operand(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return Operand(meta_of(arg), to_array(arg))
    if isinstance(arg, (tuple, list)) and any(isinstance(a, torch.Tensor) for a in arg):
        return [_operand(a) for a in arg]
    return arg
