"""Tensors made of numbers that change from call to call: ``torch.tensor([t, t + 1, 0])``, ``x.new_tensor(t)``.

The rebuilt code has torch make such a tensor of the numbers' expressions, before the graph, which takes it as an input. Guards
see to it that torch takes the numbers: they are of the types of this call, and the dtype holds them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.capture import scalars, torch_calls
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Computed
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.scalar import ScalarValue, operand
from tinycompile.capture.values.sequence import SequenceValue, TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.ops import ranges

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def called(tr: Tracer, args: Sequence[Value], kwargs: Kwargs, like: TensorValue | None = None) -> Value | None:
    """``torch.tensor(*args, **kwargs)``, with the dtype and the device of ``like``; None for what does not change, and where it
    is compiled for the numbers of this call."""
    if len(args) != 1 or kwargs.keys() - {"dtype", "device"} or not _changes(tr, args[0]):
        return None
    given = {k: v.constant(tr) for k, v in kwargs.items() if not tr.identical(v, NONE)}
    dtype = given.get("dtype", None if like is None else like.meta.dtype)
    device = given.get("device", torch.get_default_device() if like is None else like.meta.device.torch())
    if dtype is None:
        floats = any(v.python_type(tr) is float for v in _members(tr, args[0]))
        dtype = torch.get_default_dtype() if floats else torch.int64
    return made(tr, args[0], dtype, torch.device(device))


def ints(tr: Tracer, data: Value, device: torch.device) -> Value | None:
    """The tensor that a sequence of ints is as an index; None where none changes."""
    plain = isinstance(data, SequenceValue) and all(v.python_type(tr) is int for v in _members(tr, data))
    return made(tr, data, torch.int64, device) if plain and _changes(tr, data) else None


def made(tr: Tracer, data: Value, dtype: torch.dtype, device: torch.device) -> Value | None:
    """A new tensor of plain numbers, of which some change; None where it is compiled for the numbers of this call."""
    if not all(_held(tr, v, dtype) for v in _members(tr, data)):
        return None
    if isinstance(data, SymInt) or (isinstance(data, ScalarValue) and scalars.can_fill(dtype, data)):  # kernels know it
        return torch_calls.call_torch(tr, torch.full, [TupleValue([]), data], {"dtype": Const(dtype), "device": Const(device)})
    make = functools.partial(torch.tensor, dtype=dtype, device=device)
    value = natively(make, _numbers(tr, data))
    source = Computed(f"{tr.guards.hold(make, 'tensor_').name}({_text(tr, data)})")
    names = frozenset().union(*(found[2] for found in map(functools.partial(operand, tr), _members(tr, data)) if found))
    meta = TensorMeta(tuple(value.shape), value.stride(), dtype, Device.of(value.device))
    given = tr.add_computed(source, value, meta, names)
    return torch_calls.run_op(tr, "clone", (given.fake, None), [given])  # the program may write to it, and keep it


def are_numbers(tr: Tracer, data: Value) -> bool:
    """Whether data is plain numbers, alone or in sequences."""
    return all(operand(tr, v) is not None for v in _members(tr, data))


def _changes(tr: Tracer, data: Value) -> bool:
    """Whether it is numbers in rows of one length, and some change."""
    changing = any(isinstance(v, (ScalarValue, SymInt)) for v in _members(tr, data))
    return changing and are_numbers(tr, data) and _shape(tr, data) is not None


def _members(tr: Tracer, data: Value) -> Iterator[Value]:
    if isinstance(data, SequenceValue):
        for v in data.values(tr):
            yield from _members(tr, v)
    else:
        yield data


def _shape(tr: Tracer, data: Value) -> tuple[int, ...] | None:
    """None where rows are of several lengths: torch says what is wrong with them."""
    if not isinstance(data, SequenceValue):
        return ()
    rows = [_shape(tr, v) for v in data.values(tr)]
    if not rows:
        return (0,)
    return None if rows[0] is None or any(row != rows[0] for row in rows) else (len(rows), *rows[0])


def _held(tr: Tracer, value: Value, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a number as torch takes it, which is guarded for one that changes."""
    if isinstance(value, ScalarValue):
        return scalars.is_torchs(tr, value) and scalars.is_held(tr, value, dtype)
    number = value.dim if isinstance(value, SymInt) else value.constant(tr)
    return ranges.holds(dtype, number) and (type(number) is not int or number in ranges.INT64)


def _numbers(tr: Tracer, data: Value) -> Any:
    """Those of this call, in lists."""
    if isinstance(data, SequenceValue):
        return [_numbers(tr, v) for v in data.values(tr)]
    found = operand(tr, data)
    assert found is not None
    return found[1]


def _text(tr: Tracer, data: Value) -> str:
    if isinstance(data, SequenceValue):
        return f"[{', '.join(_text(tr, v) for v in data.values(tr))}]"
    found = operand(tr, data)
    assert found is not None
    return found[0]
