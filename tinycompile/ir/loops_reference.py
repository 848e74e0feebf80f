"""Runs Loops with numpy, statement by statement over whole arrays: slow, plain, and the meaning of the IR.

Every value is an array with one dim per axis of the nest, of extent 1 where it does not live at that axis, so numpy's
broadcasting *is* the rule "a value is used at any superset of its axes". Half values are held as float32 of the same value.
Sums accumulate in float64: the reference is never less exact than a backend. Indices out of range raise IndexError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Sym
from tinycompile.base.device import Device
from tinycompile.base.dtypes import NARROW
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.interpreter import torch_function
from tinycompile.ir.loops import (
    Buffer,
    Const,
    ExternCall,
    Index,
    Load,
    Loops,
    Nest,
    Reduce,
    Scalar,
    Scan,
    Statement,
    Store,
    TensorView,
)
from tinycompile.ops.record import OPS
from tinycompile.ops.scalar import SCALAR_OPS

Array = np.ndarray[Any, np.dtype[Any]]
Memory = dict[str, torch.Tensor]

_APPLY: dict[str, Callable[[Any, Any], Any]] = {"//": np.floor_divide, "%": np.mod, "min": np.minimum, "max": np.maximum}


def run_loops(loops: Loops, inputs: Sequence[Any]) -> list[Any]:
    """Run on CPU tensors (and numbers for size inputs), one per name in ``loops.inputs``; returns the outputs."""
    given = dict(zip(loops.inputs, inputs, strict=True))
    sizes = {b.symbol: given[b.input] if b.dim is None else given[b.input].shape[b.dim] for b in loops.sizes}
    buffers = {b.name: b for b in loops.buffers}
    memory: Memory = {b.name: given[b.name] for b in loops.buffers if b.role == "input"}
    for step in loops.steps:
        if isinstance(step, Nest):
            run_nest(step, buffers, memory, sizes)
        else:
            _run_extern(step, buffers, memory, sizes)
    return [_output(o, buffers, memory, sizes) for o in loops.outputs]


def run_nest(nest: Nest, buffers: Mapping[str, Buffer], memory: Memory, sizes: Mapping[str, int]) -> None:
    """Run one nest on ``memory``; buffers that it stores to and that don't exist yet are made."""
    run = _NestRun(nest, buffers, memory, sizes)
    with np.errstate(all="ignore"):
        for statement in nest.body:
            run.statement(statement)


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype that holds values of ``dtype`` here."""
    return np.dtype(np.float32) if dtype in NARROW else np.dtype(str(dtype).removeprefix("torch."))


def cast(x: Array, to: torch.dtype) -> Array:
    """Convert as torch's ``.to()`` does."""
    converted = torch.from_numpy(np.ascontiguousarray(x)).to(to)
    return np.asarray((converted.float() if to in NARROW else converted).numpy()).reshape(np.shape(x))


class _NestRun:
    """The values of one nest."""

    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer], memory: Memory, sizes: Mapping[str, int]) -> None:
        self.buffers, self.memory, self.sizes = buffers, memory, sizes
        self.rank = len(nest.axes)
        self.position = {a.name: i for i, a in enumerate(nest.axes)}
        self.extents = {a.name: ex.evaluate(a.extent, sizes) for a in nest.axes}
        self.values: dict[str, Array] = {name: self.spread(np.asarray(size)) for name, size in sizes.items()}
        self.values |= {a.name: self.along(np.arange(self.extents[a.name]), a.name) for a in nest.axes}

    def spread(self, x: Array) -> Array:
        return x.reshape((1,) * self.rank)

    def along(self, x: Array, axis: str) -> Array:
        shape = [1] * self.rank
        shape[self.position[axis]] = len(x)
        return x.reshape(shape)

    def evaluate(self, d: Dim) -> Array:
        """An index expression at every point of its axes."""
        if isinstance(d, int):
            return self.spread(np.asarray(d, dtype=np.int64))
        total: Any = 0
        for mono, coeff in d.terms:
            product: Any = coeff
            for atom in mono:
                if isinstance(atom, Sym):
                    product = product * self.values[atom.name].astype(np.int64)
                else:
                    product = product * _APPLY[atom.fn](self.evaluate(atom.lhs), self.evaluate(atom.rhs))
            total = total + product
        return total if isinstance(total, np.ndarray) else self.spread(np.asarray(total))

    def statement(self, s: Statement) -> None:
        if isinstance(s, Load):
            self.values[s.name] = self.load(s)
        elif isinstance(s, Const):
            value = ex.evaluate(s.value, self.sizes) if isinstance(s.value, Expr) else s.value
            self.values[s.name] = self.spread(np.asarray(value).astype(numpy_dtype(s.dtype)))
        elif isinstance(s, Index):
            self.values[s.name] = self.evaluate(s.expr).astype(numpy_dtype(s.dtype))
        elif isinstance(s, Scalar):
            args = [self.values[a] for a in s.args]
            result = cast(args[0], s.dtype) if s.op == "cast" else SCALAR_OPS[s.op].numpy(*args)
            self.values[s.name] = np.asarray(result).astype(numpy_dtype(s.dtype), copy=False)
        elif isinstance(s, Reduce):
            results = _REDUCE[s.kind](self.over(self.values[s.args[0]], s.axes))
            for name, dtype, r in zip(s.names, s.dtypes, results, strict=True):
                self.values[name] = self.unfold(r, s.axes).astype(numpy_dtype(dtype), copy=False)
        elif isinstance(s, Scan):
            self.values[s.names[0]] = self.scan(s)
        else:
            self.store(s)

    def place(self, buffer: str, index: Sequence[Dim], keep: Array | None) -> tuple[Array, ...]:
        """Coordinates as arrays; checked to be in range where ``keep`` holds, and 0 elsewhere."""
        shape = tuple(self.memory[buffer].shape)
        coords = [self.evaluate(d) for d in index]
        if keep is not None:
            coords = [np.where(keep, c, 0) for c in coords]
        for c, size in zip(coords, shape, strict=True):
            if c.size and not (c.min() >= 0 and c.max() < size):
                raise IndexError(f"index out of range: {buffer} of shape {shape} is read or written at {c.min()}..{c.max()}")
        return tuple(coords)

    def load(self, s: Load) -> Array:
        source = _as_numpy(self.memory[s.buffer])
        if not s.mask:
            return np.asarray(source[self.place(s.buffer, s.index, None)]).reshape(self.shape_of(s.index))
        keep = np.logical_and.reduce(np.broadcast_arrays(*(self.evaluate(m) >= 0 for m in s.mask)))
        other = np.asarray(s.other).astype(source.dtype)
        if not keep.any():
            return np.full(np.broadcast_shapes(keep.shape, self.shape_of(s.index)), other)
        return np.where(keep, source[self.place(s.buffer, s.index, keep)], other)

    def shape_of(self, index: Sequence[Dim]) -> tuple[int, ...]:
        return np.broadcast_shapes((1,) * self.rank, *(self.evaluate(d).shape for d in index))

    def over(self, x: Array, axes: tuple[str, ...]) -> Array:
        """``x`` with the named axes expanded, moved last and flattened into one, in the given order."""
        shape = list(x.shape)
        for a in axes:
            shape[self.position[a]] = self.extents[a]
        full = np.broadcast_to(x, shape)
        rest = [i for i in range(self.rank) if i not in {self.position[a] for a in axes}]
        moved = full.transpose(*rest, *(self.position[a] for a in axes))
        return moved.reshape(*(shape[i] for i in rest), int(np.prod([self.extents[a] for a in axes])))

    def unfold(self, reduced: Array, axes: tuple[str, ...]) -> Array:
        return np.expand_dims(np.asarray(reduced), sorted(self.position[a] for a in axes))

    def scan(self, s: Scan) -> Array:
        x, at = self.values[s.args[0]], self.position[s.axis]
        shape = list(x.shape)
        shape[at] = self.extents[s.axis]
        ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[s.kind]
        return ufunc.accumulate(_wide(np.broadcast_to(x, shape)), axis=at).astype(x.dtype)

    def store(self, s: Store) -> None:
        if s.buffer not in self.memory:
            self.memory[s.buffer] = _empty(self.buffers[s.buffer].meta, self.sizes)
            if s.mode != "plain":
                self.memory[s.buffer].zero_()
        target = self.memory[s.buffer]
        value, coords = self.values[s.value], self.place(s.buffer, s.index, None)
        shape = np.broadcast_shapes(value.shape, *(c.shape for c in coords))
        if 0 in shape:
            return
        where = tuple(torch.from_numpy(np.broadcast_to(c, shape).copy()) for c in coords)
        data = torch.from_numpy(np.broadcast_to(value, shape).copy()).to(target.dtype)
        if not where:  # a 0-d buffer
            where, target = (torch.zeros(shape, dtype=torch.int64),), target.view(1)
        target.index_put_(where, data, accumulate=s.mode == "atomic_add")


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _welford(x: Array) -> tuple[Array, Array]:
    """Two passes; rows with infinities go by the recurrence itself, which makes NaN of what follows one."""
    wide = _wide(x)
    mean = wide.mean(axis=-1)
    mean = mean + (wide - mean[..., None]).mean(axis=-1)  # equal elements are their own mean
    m2 = np.square(wide - mean[..., None]).sum(axis=-1)
    odd = ~np.isfinite(wide).all(axis=-1)
    if odd.any():
        mean, m2 = np.asarray(mean), np.asarray(m2)
        mean[odd], m2[odd] = _recurrence(wide[odd])
    return mean, m2


def _recurrence(rows: Array) -> tuple[Array, Array]:
    mean, m2 = np.zeros(len(rows)), np.zeros(len(rows))
    for i, x in enumerate(rows.T, start=1):
        delta = x - mean
        mean = mean + delta / i
        m2 = m2 + delta * (x - mean)
    return mean, m2


def _online_softmax(x: Array) -> tuple[Array, Array]:
    wide = _wide(x)
    top = wide.max(axis=-1, initial=-np.inf)
    total = np.exp(wide - top[..., None]).sum(axis=-1)
    return top, np.where(top == -np.inf, 0.0, total)


_REDUCE: dict[str, Callable[[Array], tuple[Array, ...]]] = {
    "sum": lambda x: (np.sum(_wide(x), axis=-1),),
    "prod": lambda x: (np.prod(_wide(x), axis=-1),),
    "max": lambda x: (np.max(x, axis=-1, initial=_lowest(x.dtype)),),
    "min": lambda x: (np.min(x, axis=-1, initial=_highest(x.dtype)),),
    "any": lambda x: (np.any(x, axis=-1),),
    "all": lambda x: (np.all(x, axis=-1),),
    "argmax": lambda x: (np.argmax(x, axis=-1),),
    "argmin": lambda x: (np.argmin(x, axis=-1),),
    "welford": _welford,
    "online_softmax": _online_softmax,
}


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _as_numpy(t: torch.Tensor) -> Array:
    return np.asarray((t.detach().float() if t.dtype in NARROW else t.detach()).numpy())


def _empty(meta: TensorMeta, sizes: Mapping[str, int]) -> torch.Tensor:
    shape, strides = ([ex.evaluate(d, sizes) for d in dims] for dims in (meta.shape, meta.strides))
    return torch.empty_strided(shape, strides, dtype=meta.dtype, device=meta.device.torch())


def _view(view: TensorView, buffers: Mapping[str, Buffer], memory: Memory, sizes: Mapping[str, int]) -> torch.Tensor:
    """The buffer itself when it is the whole of it, else a strided view; offsets are relative to the buffer's own."""
    base, meta = memory[view.buffer], buffers[view.buffer].meta
    if view.meta == meta:
        return base
    shape, strides = ([ex.evaluate(d, sizes) for d in dims] for dims in (view.meta.shape, view.meta.strides))
    shift = ex.evaluate(view.meta.offset - meta.offset, sizes)
    return base.as_strided(shape, strides, base.storage_offset() + shift)


def _output(value: Any, buffers: Mapping[str, Buffer], memory: Memory, sizes: Mapping[str, int]) -> Any:
    """A returned value: a view of a whole buffer is an object of its own."""
    found = _resolve(value, buffers, memory, sizes)
    if not isinstance(value, TensorView) or not value.alias or found is not memory[value.buffer]:
        return found
    return found.detach() if value.alias == "detach" else torch.ops.aten.alias(found)  # view_as forgets strides of size 1


def _resolve(value: Any, buffers: Mapping[str, Buffer], memory: Memory, sizes: Mapping[str, int]) -> Any:
    """An argument of a call, or an output, as a run-time value."""
    if isinstance(value, TensorView):
        return _view(value, buffers, memory, sizes)
    if isinstance(value, tuple):
        return tuple(_resolve(v, buffers, memory, sizes) for v in value)
    if isinstance(value, Expr):
        return ex.evaluate(value, sizes)
    return value.torch() if isinstance(value, Device) else value


def _run_extern(call: ExternCall, buffers: Mapping[str, Buffer], memory: Memory, sizes: Mapping[str, int]) -> None:
    fn = OPS[call.target].eager if call.kind == "call" else torch_function(call.target)
    args = [_resolve(a, buffers, memory, sizes) for a in call.args]
    result = fn(*args, **{k: _resolve(v, buffers, memory, sizes) for k, v in call.kwargs})
    for name, value in zip(call.outputs, _leaves(result), strict=True):
        if name is not None:
            memory[name] = _with_strides(value, buffers[name].meta, sizes)


def _with_strides(value: torch.Tensor, meta: TensorMeta, sizes: Mapping[str, int]) -> torch.Tensor:
    """What the metadata promised: a library kernel may choose other strides than were foreseen."""
    wanted = _empty(meta, sizes)
    significant = [i for i, n in enumerate(value.shape) if n != 1]
    if value.numel() == 0 or all(value.stride(i) == wanted.stride(i) for i in significant):
        return value
    return wanted.copy_(value)


def _leaves(result: Any) -> list[Any]:
    return [leaf for r in result for leaf in _leaves(r)] if isinstance(result, (tuple, list)) else [result]
