"""``torch.broadcast_tensors`` and ``torch.meshgrid``: views of each tensor, expanded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tinycompile.base import shapes
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.torch_warnings import tell
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.queue import DequeValue
from tinycompile.capture.values.sequence import SequenceValue, TupleValue, size_value
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def _tensors(args: Sequence[Value], name: str) -> list[TensorValue]:
    found = [t for t in args if isinstance(t, TensorValue)]
    if not found or len(found) != len(args):
        raise GraphBreak("unsupported-argument", f"{name} of something other than tensors")
    return found


def _method(tr: Tracer, t: Value, name: str, argument: Value) -> Value:
    assert isinstance(t, TensorValue)
    return tr.tensor_method(t, name, [argument], {})


@rule(torch.broadcast_tensors)
def _broadcast_tensors(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    tensors = _tensors(args, "broadcast_tensors")
    if kwargs:
        raise GraphBreak("unsupported-argument", "broadcast_tensors by keywords, which torch refuses")
    shape = shapes.broadcast_shapes(*(t.meta.shape for t in tensors))
    made: list[Value] = []
    for t in tensors:  # torch returns one that has the shape itself
        alike = shapes.same_shape(t.meta.shape, shape)
        made.append(t if alike else _method(tr, t, "expand", size_value(shape)))
    return TupleValue(made)


@rule(torch.meshgrid)
def _meshgrid(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The tensors, separate arguments or in one list, lie along dims of their own, the first two exchanged for
    ``indexing="xy"``."""
    if len(args) == 1 and isinstance(args[0], SequenceValue) and not isinstance(args[0], DequeValue):
        args = args[0].values(tr)
    tensors, indexing = _tensors(args, "meshgrid"), kwargs.get("indexing")
    if indexing is None:
        tell(tr, torch.meshgrid, [t.fake for t in tensors], {})
        indexing = Const("ij")
    if indexing.constant(tr) not in ("ij", "xy") or any(t.meta.rank > 1 for t in tensors):
        raise GraphBreak("user-exception", "meshgrid of these arguments, which torch refuses")
    dims = list(range(len(tensors)))
    if indexing.constant(tr) == "xy" and len(dims) > 1:
        dims[:2] = 1, 0
    sizes = [t.meta.shape[0] if t.meta.rank else 1 for t in tensors]
    shape = size_value([sizes[dims.index(d)] for d in range(len(dims))])
    made: list[Value] = []
    for t, dim in zip(tensors, dims, strict=True):
        part: Value = t
        for d in range(len(dims)):
            if d != dim or not t.meta.rank:
                part = _method(tr, part, "unsqueeze", Const(d))
        made.append(_method(tr, part, "expand", shape))
    return TupleValue(made)
