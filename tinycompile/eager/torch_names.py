"""What torch calls the nodes of its graph, for the words of errors: asked of torch, with meta tensors, when one is raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from tinycompile.base import shapes
from tinycompile.base.device import Device
from tinycompile.base.expr import Expr
from tinycompile.base.meta import TensorMeta
from tinycompile.ops.record import Op

REGENERATED = "AsStridedBackward0"  # the node of a view whose base, or another view of it, was written to
THROUGH_A_VIEW = "torch::autograd::CopySlices"  # that of a base, one of whose views was written to


def node_name(op_name: str) -> str:
    """``layer_norm`` is LayerNormBackward0."""
    return "".join(w[:1].upper() + w[1:] for w in op_name.split("_")) + "Backward0"


def name_of_record(op: Op, args: Sequence[Any], in_place: bool = False) -> str:
    """``MulBackward0``: the node of a call of a record. ``args``: TensorMeta for tensors. ``in_place``: the method that writes
    was called."""
    found = name_of_method(op, args) if in_place else None
    found = name_of_call(op.eager, args, {}) if found is None else found
    return node_name(op.name) if found is None else found


def name_of_method(op: Op, args: Sequence[Any]) -> str | None:
    """The same of the method that writes in place."""
    if op.name == "fill" and type(args[1]) is int and args[1] == 0:
        return name_of_call(torch.Tensor.zero_, args[:1], {}, True)  # which is spelled so
    if op.name == "where":  # and ``x[mask] = value``
        return "IndexPutBackward0"
    methods = [getattr(owner, f"{op.name}_", None) for owner in (torch.Tensor, torch, functional)]
    at = [a.name for a in op.schema.args if not a.kw_only]
    named = {a.name: v for a, v in zip(op.schema.args, args, strict=True) if a.kw_only}
    found = (name_of_call(fn, args[: len(at)], named, True) for fn in methods if fn is not None)
    return next((name for name in found if name is not None), None)


def name_of_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], in_place: bool = False) -> str | None:
    """The same of a torch function; None where meta tensors can't tell."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            given, named = [_instance(a) for a in args], {k: _instance(v) for k, v in kwargs.items()}
            if in_place:
                given[0] = given[0].clone()
            made = fn(*given, **named)
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    first = made[0] if isinstance(made, (tuple, list)) and made else made
    node = getattr(first, "grad_fn", None)
    return None if node is None else str(node.name())


def _instance(value: Any) -> Any:
    """A meta tensor that requires grad where it can."""
    if isinstance(value, TensorMeta):
        sizes, strides = ([shapes.hint(d) for d in dims] for dims in (value.shape, value.strides))
        made = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
        return made.requires_grad_(value.dtype.is_floating_point or value.dtype.is_complex)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_instance, value))
    if isinstance(value, Device):
        return torch.device("meta")
    return shapes.hint(value) if isinstance(value, Expr) else value
