"""``t[key]`` and ``t[key] = value``. Basic keys are views; index tensors go to torch's index and index_put."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tinycompile.base import shapes
from tinycompile.capture import array_tensors, number_tensors, torch_calls, writes
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.sequence import ListValue, SliceValue, TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.capture.views import UnknownPlace, shows_a_part, writes_to
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.indexing import basic_view, is_basic, split_index
from tinycompile.ops.ranges import INT64

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_FULL = slice(None)
_ASSIGNED = (np.integer, float, complex)  # of numpy's numbers
_NO_INDICES = (str, bytes, float, complex)


def get(tr: Tracer, t: TensorValue, key: Value) -> Value:
    """``t[key]``."""
    parts = _parts(tr, t, key)
    at = tuple(parts) if isinstance(key, TupleValue) else parts[0]
    with torch_calls.asking_torch(tr, operator.getitem, [t.fake, at], {}):
        if is_basic(at):
            return _view(tr, t, at)
        view, indices, operands = _basic_first(tr, t, parts, [t, key])
        return _advanced(tr, view, indices, operands)


def _view(tr: Tracer, t: TensorValue, at: Any) -> Value:
    tr.about_to_record()
    return torch_calls.wrap_result(tr, basic_view(t.fake, at), [t], t)


def _parts(tr: Tracer, t: TensorValue, key: Value) -> list[Any]:
    items = key.values(tr) if isinstance(key, TupleValue) else [key]
    parts: list[Any] = []
    for v in items:
        parts += _array_parts(tr, t, v, parts) if isinstance(v, ArrayValue) else [_part(tr, t, v)]
    if sum(part is ... for part in parts) > 1:
        raise GraphBreak("unsupported-argument", "an index with several ...")
    return parts


def _array_parts(tr: Tracer, t: TensorValue, array: ArrayValue, before: Sequence[Any]) -> list[Any]:
    """A numpy array as an index: for one of booleans, whose contents are known, where it is True in each of its dims; a
    signed integer of no dims is one of Python's."""
    kind, there = array.layout.dtype, [Const(t.meta.device.torch()), Const(torch.int64)]
    if kind.kind == "i" and not array.layout.ndim:
        return [array.contents(tr).item()]
    if kind.kind == "b":
        dims = t.meta.shape[len(before) : len(before) + array.layout.ndim]
        if not dims or any(p is None or p is Ellipsis for p in before) or tuple(dims) != array.layout.shape:
            raise GraphBreak("unsupported-argument", f"{array.describe()} as a mask here")
        found = np.nonzero(array.contents(tr))
        return [array_tensors.constant(tr, at).call_method(tr, "to", there, {}).argument(tr) for at in found]
    if not np.issubdtype(kind, np.signedinteger):
        raise GraphBreak("unsupported-argument", f"{array.describe()} as an index")
    return [array_tensors.copied(tr, array).call_method(tr, "to", there, {}).argument(tr)]


def _part(tr: Tracer, t: TensorValue, key: Value) -> Any:
    if isinstance(key, SliceValue):
        return slice(*(_bound(tr, p) for p in key.parts))
    numbers = _numbers(tr, key)
    if numbers is not None:
        there = {"device": t.meta.device.torch()} | ({} if numbers else {"dtype": torch.int64})
        return torch_calls.extern(tr, "torch.tensor", torch.tensor, [numbers], there, []).argument(tr)
    changing = number_tensors.ints(tr, key, t.meta.device.torch())
    if changing is not None:
        return changing.argument(tr)
    if isinstance(key, Const) and type(key.value) is bool:
        raise GraphBreak("unsupported-argument", "True or False as an index")
    if isinstance(key, (SymInt, TensorValue)) or (isinstance(key, Const) and not isinstance(key.value, _NO_INDICES)):
        return key.argument(tr)
    raise GraphBreak("unsupported-argument", f"{key.describe()} as an index")


def _numbers(tr: Tracer, key: Value) -> tuple[Any, ...] | None:
    """Those of a sequence of numbers, which are a tensor as an index; None for anything else."""
    if isinstance(key, Const) and isinstance(key.value, range):
        return tuple(key.value)
    if not isinstance(key, (ListValue, TupleValue)):
        return None
    members = key.values(tr)
    numbers = all(isinstance(v, Const) and not isinstance(v.value, range) for v in members)
    return tuple(v.constant(tr) for v in members) if numbers else None


def _bound(tr: Tracer, part: Value) -> Any:
    if isinstance(part, TensorValue):
        raise GraphBreak("data-dependent", "a tensor as a slice bound")
    bound = part.argument(tr)
    if type(bound) is int and bound not in INT64:
        raise GraphBreak("unsupported-argument", f"{bound} as a slice bound, which torch cuts off or refuses")
    return int(bound) if type(bound) is bool else bound


def _rank_taken(part: Any) -> int:
    """How many dims of the tensor a part uses up."""
    if part is None or part is ...:
        return 0
    return part.meta.rank if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    return isinstance(part, FakeTensor) and part.meta.dtype in (torch.bool, torch.uint8)


def _basic_first(
    tr: Tracer, t: TensorValue, parts: Sequence[Any], operands: Sequence[Value], masks: bool = False
) -> tuple[TensorValue, tuple[Any, ...], Sequence[Value]]:
    """Apply all but the index tensors (torch does that first). Returns the view, and one index or None a dim."""
    if not masks and any(_is_mask(p) for p in parts):
        raise GraphBreak("data-dependent", "the number of True entries of a mask is the result's size")
    basic, indices = split_index(t.meta.rank, parts, list(map(_rank_taken, parts)))
    plain = all(isinstance(b, slice) and b == _FULL for b in basic)
    view = t if plain else _view(tr, t, basic)
    assert isinstance(view, TensorValue)
    return view, indices, operands


def _advanced(tr: Tracer, t: TensorValue, indices: tuple[Any, ...], operands: Sequence[Value]) -> Value:
    if all(i is None or (i.dtype in (torch.int32, torch.int64) and i.device == t.fake.device) for i in indices):
        made = torch_calls.run_op(tr, "index", (t.fake, indices), [t, *operands])
        lone = not any(i is not None and len(i.shape) for i in indices)
        return _view_of_unknown_place(tr, made, t, indices, operands) if lone else made
    path, fn = "torch.ops.aten.index.Tensor", torch.ops.aten.index.Tensor
    return torch_calls.extern(tr, path, fn, [t.fake, indices], {}, [t, *operands])


def _view_of_unknown_place(
    tr: Tracer, made: Value, t: TensorValue, indices: Sequence[Any], operands: Sequence[Value]
) -> TensorValue:
    """What lone numbers in tensors name is a view to torch. Capture reads the values, and lets nobody write to the memory."""
    assert isinstance(made, TensorValue)
    value = TensorValue(made.fake, made.cls, made.requires_grad, t.memory)
    given = {id(v.fake): v for v in torch_calls.tensors_in(tr, operands)}
    parts = tuple(None if i is None else given[id(i)] for i in indices)
    tr.unknown_places[id(value)] = UnknownPlace(value, t, parts, writes_to(parts))
    tr.births.setdefault(id(value), (value, tr.frames[0].count))
    return value


# --- assignment ---------------------------------------------------------------------------------------------


def put(tr: Tracer, t: TensorValue, key: Value, value: Value) -> None:
    """``t[key] = value``."""
    parts = _parts(tr, t, key)
    if any(isinstance(p, FakeTensor) and p.meta.dtype == torch.uint8 for p in parts):
        raise GraphBreak("unsupported-argument", "bytes as a mask, which torch warns of or refuses")
    if isinstance(value, Const) and isinstance(value.value, np.generic) and not isinstance(value.value, _ASSIGNED):
        raise GraphBreak("unsupported-argument", f"{value.describe()}, which torch refuses, as what is assigned")
    operands = [t, key, value]
    with torch_calls.asking_torch(tr, operator.setitem, [t.fake, tuple(parts), value.argument(tr)], {}):
        if len(parts) == 1 and _is_mask(parts[0]) and not (isinstance(value, TensorValue) and value.meta.rank):
            tr.write(t, lambda: _masked(tr, t, parts[0], value), operands)
        elif is_basic(tuple(parts)):
            _put_into(tr, t, parts, value)
        else:
            _put_at(tr, t, parts, value, operands)


def _tensor_of(tr: Tracer, value: Value, like: TensorValue) -> TensorValue:
    """A tensor, or a number as one of the right dtype and device."""
    if isinstance(value, TensorValue):
        return value
    if isinstance(value, Const) and type(value.value) is int and value.value not in INT64:
        raise GraphBreak("unsupported-argument", f"{value.value}, which torch does not take, as what is assigned")
    made = torch_calls.call_torch(
        tr, torch.full, [TupleValue([]), value], {"dtype": Const(like.meta.dtype), "device": Const(like.meta.device.torch())}
    )
    assert isinstance(made, TensorValue)
    return made


def _masked(tr: Tracer, t: TensorValue, mask: FakeTensor, value: Value) -> Value:
    for _ in range(t.meta.rank - mask.meta.rank):
        mask = dispatcher.call("unsqueeze", mask, -1)
    condition = TensorValue(mask, torch.Tensor, requires_grad=False)
    return torch_calls.call_torch(tr, torch.where, [condition, _cast(tr, _tensor_of(tr, value, t), t), t], {})


def _cast(tr: Tracer, value: TensorValue, like: TensorValue) -> TensorValue:
    made = torch_calls.call_method(tr, value, "to", [Const(like.meta.dtype)], {})
    assert isinstance(made, TensorValue)
    return made


def _put_into(tr: Tracer, t: TensorValue, parts: Sequence[Any], value: Value) -> None:
    """Basic indices name a view, which is written. What shows all of a memory goes on in its history, as by ``copy_``."""
    view = t if _names_all(t, parts) else _view(tr, t, tuple(parts))
    assert isinstance(view, TensorValue)
    if isinstance(value, TensorValue) and tr.is_same_place(view, value):
        writes.write_itself(tr, view)  # ``x[0] += y`` assigns the view that was written to itself
        return

    def compute() -> Value:
        source = _cast(tr, _tensor_of(tr, value, t), t)
        if shows_a_part(view):  # what is written around it keeps its history
            source = _fit(tr, source, view)
            return torch_calls.run_op(tr, "clone", (source.fake, None), [source])  # the value keeps its own memory
        if view.meta.rank and not source.meta.rank:
            return torch_calls.run_op(tr, "fill", (view.fake, source.fake), [view, source])
        source = _fit(tr, source, view)
        return torch_calls.run_op(tr, "copy", (view.fake, source.fake), [view, source])

    tr.write(view, compute, [value])


def _names_all(t: TensorValue, parts: Sequence[Any]) -> bool:
    """Whether torch writes to the tensor itself, for each part of the index leaves its dim as it is."""
    ranks = list(map(_rank_taken, parts))
    if sum(ranks) > t.meta.rank:
        return False
    basic, _ = split_index(t.meta.rank, parts, ranks)
    return None not in basic and all(map(_leaves, basic, t.meta.shape))


def _leaves(part: Any, size: Any) -> bool:
    """Whether a slice shows all of a dim. Of a start that counts from the end torch does not say so."""
    if not isinstance(part, slice):
        return False
    start, stop, step = part.start, part.stop, part.step
    there = stop is None or (isinstance(stop, int) and isinstance(size, int) and stop >= size)
    return start in (None, 0) and step in (None, 1) and there


def _put_at(tr: Tracer, t: TensorValue, parts: Sequence[Any], value: Value, operands: Sequence[Value]) -> None:
    """Index tensors, behind the view that the other indices name; values broadcast to what is written."""
    view, indices, _ = _basic_first(tr, t, parts, operands, masks=True)
    made = _tensor_of(tr, value, t)
    if made.meta.dtype != t.meta.dtype:
        if not _fills(indices, made):
            raise GraphBreak(
                "unsupported-argument", "values of another dtype than what they are written to, which torch refuses"
            )
        made = _cast(tr, made, t)
    rank = _rank_at(view, indices)
    while made.meta.rank > rank and made.meta.shape[0] == 1:
        made = _apply(tr, made, (0,))
    args = [view.fake, indices, made.fake]
    torch_calls.check_places(tr, "index_put", view, (indices, made.fake), [view, made, *operands])
    if all(i is None or i.dtype in (torch.int32, torch.int64) for i in indices):
        tr.write(view, lambda: torch_calls.run_op(tr, "index_put", (*args, False), [view, *operands]), operands[1:])
        return
    path, fn = "torch.ops.aten.index_put.default", torch.ops.aten.index_put.default
    tr.write(view, lambda: torch_calls.extern(tr, path, fn, args, {}, [view, *operands]), operands[1:])


def _fills(indices: Sequence[Any], made: TensorValue) -> bool:
    """Whether torch fills the places of one mask with one value, which may be of any dtype."""
    given = [i for i in indices if i is not None]
    return len(given) == 1 and _is_mask(given[0]) and all(shapes.same(s, 1) for s in made.meta.shape)


def _rank_at(view: TensorValue, indices: Sequence[Any]) -> int:
    """Dims of what indices name: those of the indices themselves, once, and those of the tensor that none takes."""
    tensors = [i for i in indices if i is not None]
    taken = sum(map(_rank_taken, tensors))
    return view.meta.rank - taken + max(1 if _is_mask(i) else i.meta.rank for i in tensors)


def _apply(tr: Tracer, t: TensorValue, at: tuple[Any, ...]) -> TensorValue:
    view = _view(tr, t, at)
    assert isinstance(view, TensorValue)
    return view


def _fit(tr: Tracer, source: TensorValue, target: TensorValue) -> TensorValue:
    """Leading dims of size 1 are dropped, the rest is broadcast, as in torch's assignment."""
    while source.meta.rank > target.meta.rank and source.meta.shape[0] == 1:
        source = _apply(tr, source, (0,))
    if len(source.meta.shape) == target.meta.rank and all(
        shapes.same(a, b) for a, b in zip(source.meta.shape, target.meta.shape, strict=True)
    ):
        return source
    shape = TupleValue([Const(s) if isinstance(s, int) else SymInt(s) for s in target.meta.shape])
    made = torch_calls.call_method(tr, source, "expand", [shape], {})
    assert isinstance(made, TensorValue)
    return made
