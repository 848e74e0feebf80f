"""``copy.copy`` and ``copy.deepcopy``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.memory import owns_memory
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.array import ArrayValue
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.mapping import DictValue
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from tinycompile.capture.values.sets import SetValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.ops.meta_rules import is_non_overlapping_and_dense

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


@rule(copy.deepcopy)
def _deepcopy(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 and isinstance(args[1], DictValue) and args[1].items:
        raise GraphBreak("unsupported-value", "copy.deepcopy() with a memo")
    return _deep(tr, args[0], {})


def _deep(tr: Tracer, value: Value, memo: dict[int, Value]) -> Value:
    """One copy for each object, however often it occurs."""
    found = memo.get(id(value))
    if found is not None:
        return found
    if isinstance(value, Const):
        return value
    made: Value
    if isinstance(value, ArrayValue):
        made = value.call_method(tr, "copy", [], {})
    elif isinstance(value, TensorValue):
        made = _deep_tensor(tr, value, any(isinstance(v, TensorValue) for v in memo.values()))
    elif isinstance(value, TupleValue):
        parts = [_deep(tr, v, memo) for v in value.values(tr)]
        same = all(a is b for a, b in zip(parts, value.values(tr), strict=True))
        made = value if same and _is_kept_as_it_is(tr, value, "__deepcopy__") else TupleValue(parts, cls=value.cls)
    elif isinstance(value, ListValue):
        made = memo[id(value)] = DequeValue([], value.maxlen) if isinstance(value, DequeValue) else ListValue()
        made.items.extend(_deep(tr, v, memo) for v in value.values(tr))
    elif isinstance(value, DictValue):
        made = memo[id(value)] = DictValue(tr, (), value.cls)
        made.default_factory = value.default_factory
        for k, v in value.pairs(tr):
            made.set_item(tr, _deep(tr, k, memo), _deep(tr, v, memo))
        for name, v in value.attributes(tr):
            made.set_attr(tr, name, _deep(tr, v, memo))
    elif isinstance(value, SetValue):
        made = value.made(tr, [_deep(tr, v, memo) for v in value.iterate(tr)])
    else:
        raise GraphBreak("unsupported-value", f"copy.deepcopy({value.describe()})")
    memo[id(value)] = made
    return made


def _is_kept_as_it_is(tr: Tracer, value: TupleValue, way: str) -> bool:
    """Whether a copy of a tuple is the tuple itself; one of a class that derives from that is made anew."""
    if value.cls is not tuple:
        for name in (way, "__reduce_ex__", "__reduce__", "__getnewargs_ex__"):
            value.leaves(tr, name)
    return value.cls is tuple


def has_nothing_beside(t: torch.Tensor) -> bool:
    """Whether a tensor is a plain one without attributes."""
    return type(t) is torch.Tensor and not t.requires_grad and not t.__dict__


def is_all_of_its_memory(t: torch.Tensor) -> bool:
    """Whether a tensor is a plain one, with nothing beside its elements, and these are all that its storage has."""
    return has_nothing_beside(t) and t.grad is None and t.storage_offset() == 0 and t.untyped_storage().nbytes() == t.nbytes


def _check_ways(tr: Tracer, t: TensorValue, *names: str) -> None:
    """Break where the program says how tensors are copied."""
    if any(t.replaced(tr, name) is not None for name in names):
        raise GraphBreak("unsupported-value", f"a copy of {t.describe()}, of whose kind the program says how that is made")


def _deep_tensor(tr: Tracer, t: TensorValue, others: bool) -> Value:
    """A copy of the tensor's storage, which is a clone where the tensor is all of that. Tensors that are copied together would
    share their storage as before: that is left to torch, unless this one was made here. ``others``: whether there are any."""
    _check_ways(tr, t, "__deepcopy__")
    plain = t.cls is torch.Tensor and not t.requires_grad and t.view is None and is_non_overlapping_and_dense(t.meta)
    if plain and t.is_input and t.source is not None:
        plain = not others and is_all_of_its_memory(t.obj)
        tr.guards.check(
            f"{tr.guards.hold(is_all_of_its_memory, 'is_all_of_its_memory').name}({t.source.text}) is {plain}",
            f"whether {t.source.label} is all of its memory",
        )
    elif plain:
        plain = owns_memory(tr, t)
    made = tr.tensor_method(t, "clone", [], {}) if plain else None
    if not isinstance(made, TensorValue) or made.meta.strides != t.meta.strides:
        raise GraphBreak("unsupported-value", f"copy.deepcopy({t.describe()})")
    return made


@rule(copy.copy)
def _copy(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    (value,) = args
    if isinstance(value, TensorValue):
        return _shallow_tensor(tr, value)
    if isinstance(value, (ListValue, DictValue, SetValue, ArrayValue)):
        made = value.call_method(tr, "copy", [], {})
        for name, v in value.attributes(tr) if isinstance(value, DictValue) else ():
            made.set_attr(tr, name, v)
        return made
    if isinstance(value, TupleValue) and not _is_kept_as_it_is(tr, value, "__copy__"):
        return TupleValue(value.items, cls=value.cls)
    if value.is_constant or isinstance(value, SequenceValue):
        return value
    raise GraphBreak("unsupported-value", f"copy.copy({value.describe()})")


def _shallow_tensor(tr: Tracer, t: TensorValue) -> Value:
    """Another tensor on the same storage, as ``t.data`` is, where nothing else would be copied."""
    _check_ways(tr, t, "__copy__", "__reduce_ex__")
    plain = t.cls is torch.Tensor and not t.requires_grad
    if plain and t.is_input and t.source is not None:
        plain = has_nothing_beside(t.obj)
        tr.guards.check(
            f"{tr.guards.hold(has_nothing_beside, 'has_nothing_beside').name}({t.source.text}) is {plain}",
            f"whether {t.source.label} has anything beside its elements",
        )
    if not plain:
        raise GraphBreak("unsupported-value", f"copy.copy({t.describe()})")
    return t.get_attr(tr, "data")
