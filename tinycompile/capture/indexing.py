"""``t[key]`` and ``t[key] = value``. Basic keys are views; index tensors go to torch's index and index_put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.base import shapes
from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.sequence import ListValue, SliceValue, TupleValue
from tinycompile.capture.values.symbolic import SymInt
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor
from tinycompile.eager.indexing import basic_view, is_basic

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_FULL = slice(None)


def get(tr: Tracer, t: TensorValue, key: Value) -> Value:
    """``t[key]``."""
    parts = _parts(tr, t, key)
    at = tuple(parts) if isinstance(key, TupleValue) else parts[0]
    if is_basic(at):
        return _view(tr, t, at)
    view, indices, operands = _basic_first(tr, t, parts, [t, key])
    return _advanced(tr, view, indices, operands)


def _view(tr: Tracer, t: TensorValue, at: Any) -> Value:
    tr.about_to_record()
    return torch_calls.wrap_result(tr, basic_view(t.fake, at), [t], alias=True)


def _parts(tr: Tracer, t: TensorValue, key: Value) -> list[Any]:
    items = key.values(tr) if isinstance(key, TupleValue) else [key]
    return [_part(tr, t, v) for v in items]


def _part(tr: Tracer, t: TensorValue, key: Value) -> Any:
    if isinstance(key, SliceValue):
        return slice(*(_bound(tr, p) for p in key.parts))
    if isinstance(key, (ListValue, TupleValue)) and all(isinstance(v, Const) for v in key.values(tr)):
        numbers, there = tuple(v.constant(tr) for v in key.values(tr)), {"device": t.meta.device.torch()}
        return torch_calls.extern(tr, "torch.tensor", torch.tensor, [numbers], there, []).argument(tr)
    if isinstance(key, Const) and type(key.value) is bool:
        raise GraphBreak("unsupported-argument", "True or False as an index")
    if isinstance(key, (Const, SymInt, TensorValue)):
        return key.argument(tr)
    raise GraphBreak("unsupported-argument", f"{key.describe()} as an index")


def _bound(tr: Tracer, part: Value) -> Any:
    if isinstance(part, TensorValue):
        raise GraphBreak("data-dependent", "a tensor as a slice bound")
    return part.argument(tr)


def _rank_taken(part: Any) -> int:
    """How many dims of the tensor a part uses up."""
    if part is None or part is ...:
        return 0
    return part.meta.rank if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    return isinstance(part, FakeTensor) and part.meta.dtype in (torch.bool, torch.uint8)


def _basic_first(
    tr: Tracer, t: TensorValue, parts: Sequence[Any], operands: Sequence[Value]
) -> tuple[TensorValue, tuple[Any, ...], Sequence[Value]]:
    """Apply all but the index tensors (torch does that first). Returns the view, and one index or None a dim."""
    if any(_is_mask(p) for p in parts):
        raise GraphBreak("data-dependent", "the number of True entries of a mask is the result's size")
    rest = t.meta.rank - sum(map(_rank_taken, parts))
    if rest < 0:
        raise IndexError(f"too many indices for tensor of dimension {t.meta.rank}")
    basic: list[Any] = []
    indices: list[Any] = []
    for part in parts:
        if part is ...:
            basic += [_FULL] * rest
            indices += [None] * rest
        elif isinstance(part, FakeTensor):
            basic.append(_FULL)
            indices.append(part)
        else:
            basic.append(part)
            indices += [None] if part is None or isinstance(part, slice) else []
    plain = all(isinstance(b, slice) and b == _FULL for b in basic)
    view = t if plain else _view(tr, t, tuple(basic))
    assert isinstance(view, TensorValue)
    while indices and indices[-1] is None:
        indices.pop()
    return view, tuple(indices), operands


def _advanced(tr: Tracer, t: TensorValue, indices: tuple[Any, ...], operands: Sequence[Value]) -> Value:
    if all(i is None or (i.dtype in (torch.int32, torch.int64) and i.device == t.fake.device) for i in indices):
        return torch_calls.run_op(tr, "index", (t.fake, indices), [t, *operands])
    path, fn = "torch.ops.aten.index.Tensor", torch.ops.aten.index.Tensor
    return torch_calls.extern(tr, path, fn, [t.fake, indices], {}, [t, *operands])


# --- assignment ---------------------------------------------------------------------------------------------


def put(tr: Tracer, t: TensorValue, key: Value, value: Value) -> None:
    """``t[key] = value`` for a tensor of the graph's own."""
    parts = _parts(tr, t, key)
    operands = [t, key, value]
    if len(parts) == 1 and _is_mask(parts[0]):
        torch_calls.write(tr, t, lambda: _masked(tr, t, parts[0], value))
    elif is_basic(tuple(parts)):
        torch_calls.write(tr, t, lambda: _scattered(tr, t, _written_out(parts, t.meta.rank), value))
    elif all(isinstance(p, FakeTensor) and not _is_mask(p) for p in parts):
        torch_calls.write(tr, t, lambda: _index_put(tr, t, parts, value, operands))
    else:
        raise GraphBreak("unsupported-op", "assignment to an index of slices and tensors")


def _tensor_of(tr: Tracer, value: Value, like: TensorValue) -> TensorValue:
    """A tensor, or a number as one of the right dtype and device."""
    if isinstance(value, TensorValue):
        return value
    made = torch_calls.call_torch(
        tr, torch.full, [TupleValue([]), value], {"dtype": Const(like.meta.dtype), "device": Const(like.meta.device.torch())}
    )
    assert isinstance(made, TensorValue)
    return made


def _masked(tr: Tracer, t: TensorValue, mask: FakeTensor, value: Value) -> Value:
    if isinstance(value, TensorValue) and value.meta.rank:
        raise GraphBreak("data-dependent", "as many values as the mask has True entries are assigned")
    for _ in range(t.meta.rank - mask.meta.rank):
        mask = dispatcher.call("unsqueeze", mask, -1)
    condition = TensorValue(mask, torch.Tensor, requires_grad=False)
    return torch_calls.call_torch(tr, torch.where, [condition, _cast(tr, _tensor_of(tr, value, t), t), t], {})


def _cast(tr: Tracer, value: TensorValue, like: TensorValue) -> TensorValue:
    made = torch_calls.call_method(tr, value, "to", [Const(like.meta.dtype)], {})
    assert isinstance(made, TensorValue)
    return made


def _index_put(tr: Tracer, t: TensorValue, parts: Sequence[Any], value: Value, operands: Sequence[Value]) -> Value:
    made = _cast(tr, _tensor_of(tr, value, t), t)
    args = [t.fake, tuple(parts), made.fake]
    return torch_calls.extern(tr, "torch.ops.aten.index_put.default", torch.ops.aten.index_put.default, args, {}, operands)


def _written_out(parts: Sequence[Any], rank: int) -> list[Any]:
    named = sum(map(_rank_taken, parts))
    if named > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    result: list[Any] = []
    for part in parts:
        result += [_FULL] * (rank - named) if part is ... else [part]
    return result


def _scattered(tr: Tracer, t: TensorValue, parts: Sequence[Any], value: Value) -> Value:
    """Go down the chain of views, put the value there, and come back up with scatters."""
    steps: list[tuple[str, int, Any, TensorValue]] = []
    current, dim = t, 0
    for part in parts:
        if part is None:
            raise GraphBreak("unsupported-op", "assignment to an index with None")
        if isinstance(part, slice):
            if part != _FULL:
                steps.append(("slice", dim, part, current))
                current = _apply(tr, current, (*[_FULL] * dim, part))
            dim += 1
        else:
            steps.append(("select", dim, part, current))
            current = _apply(tr, current, (*[_FULL] * dim, part))
    source = _cast(tr, _tensor_of(tr, value, t), t)
    shape = TupleValue([Const(s) if isinstance(s, int) else SymInt(s) for s in current.meta.shape])
    source = _fit(tr, source, current, shape)
    for kind, at, part, base in reversed(steps):
        source = _scatter(tr, kind, at, part, base, source)
    if not steps:
        return torch_calls.run_op(tr, "clone", (source.fake, None), [source])
    return source


def _apply(tr: Tracer, t: TensorValue, at: tuple[Any, ...]) -> TensorValue:
    view = _view(tr, t, at)
    assert isinstance(view, TensorValue)
    return view


def _fit(tr: Tracer, source: TensorValue, target: TensorValue, shape: TupleValue) -> TensorValue:
    """Leading dims of size 1 are dropped, the rest is broadcast, as in torch's assignment."""
    while source.meta.rank > target.meta.rank and source.meta.shape[0] == 1:
        source = _apply(tr, source, (0,))
    if len(source.meta.shape) == target.meta.rank and all(
        shapes.same(a, b) for a, b in zip(source.meta.shape, target.meta.shape, strict=True)
    ):
        return source
    made = torch_calls.call_method(tr, source, "expand", [shape], {})
    assert isinstance(made, TensorValue)
    return made


def _scatter(tr: Tracer, kind: str, dim: int, part: Any, base: TensorValue, source: TensorValue) -> TensorValue:
    fn: Any = torch.select_scatter if kind == "select" else torch.slice_scatter
    more = [dim, part] if kind == "select" else [dim, part.start, part.stop, 1 if part.step is None else part.step]
    made = torch_calls.extern(tr, f"torch.{kind}_scatter", fn, [base.fake, source.fake, *more], {}, [base, source])
    assert isinstance(made, TensorValue)
    return made
