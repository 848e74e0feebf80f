"""Batch normalisation in training: one op, and arithmetic on the statistics that is written to the buffers. What torch's
functions, not its ops, refuse of one value a channel or group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from tinycompile.base import shapes
from tinycompile.base.expr import Dim
from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.sequence import TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher
from tinycompile.ops.batch_norm import reduced_dims, running, unbiased

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


@rule(F.batch_norm)
def _batch_norm(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``F.batch_norm``; in evaluation it is an op like others."""
    given: dict[str, Value] = dict(zip(_NAMES, args, strict=False)) | dict(kwargs)
    x, mean, var = given["input"], given.get("running_mean", NONE), given.get("running_var", NONE)
    trains = "training" in given and given["training"].constant(tr) is True
    if not trains or (mean is NONE) != (var is NONE) or not isinstance(x, TensorValue) or x.meta.rank < 2:
        return torch_calls.call_torch(tr, F.batch_norm, args, kwargs)
    numbers = {name: given[name].constant(tr) for name in ("momentum", "eps") if name in given}
    if any(type(v) not in (int, float) for v in numbers.values()):  # torch's own to judge
        return torch_calls.call_torch(tr, F.batch_norm, args, kwargs)
    _check_size([x.meta.shape[d] for d in reduced_dims(x.meta.rank)], x.meta.shape, torch.Size)
    weight, bias = given.get("weight", NONE), given.get("bias", NONE)
    if tr.grad_enabled and any(isinstance(v, TensorValue) and v.requires_grad for v in (mean, var)):
        raise GraphBreak("user-exception", "batch_norm has no derivative in its running statistics, which require grad")
    eps, momentum = numbers.get("eps", 1e-5), numbers.get("momentum", 0.1)
    operands = [v for v in (x, weight, bias) if v is not NONE]
    made = torch_calls.run_op(tr, "batch_norm_training", (*(v.argument(tr) for v in (x, weight, bias)), eps), operands)
    assert isinstance(made, TupleValue)
    result, batch_mean, batch_var = made.values(tr)
    if isinstance(mean, TensorValue):
        _update(tr, mean, batch_mean, lambda new, old: running(new, old, momentum))
    if isinstance(var, TensorValue):
        _update(tr, var, batch_var, lambda new, old: running(unbiased(new, x.meta.shape), old, momentum))
    return result


@rule(F.group_norm)
def _group_norm(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``F.group_norm``, an op like others where a group has more than one value."""
    given: dict[str, Value] = dict(zip(("input", "num_groups"), args, strict=False)) | dict(kwargs)
    x, groups = given.get("input"), given.get("num_groups")
    if (
        isinstance(x, TensorValue)
        and x.meta.rank >= 2
        and isinstance(groups, Const)
        and type(groups.value) is int
        and groups.value
    ):
        batch, channels, *rest = x.meta.shape
        many = batch * channels // groups.value
        _check_size([many, *rest], [many, groups.value, *rest], list)
    return torch_calls.call_torch(tr, F.group_norm, args, kwargs)


def _check_size(values: Sequence[Dim], size: Sequence[Dim], shown: Callable[[list[int]], Any]) -> None:
    """torch's refusal of one value a channel or group."""
    if shapes.same(shapes.numel(values), 1):
        sizes = shown([shapes.hint(s) for s in size])
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {sizes}")


def _update(tr: Tracer, buffer: TensorValue, batch: Value, compute: Callable[[Any, Any], Any]) -> None:
    """Write a running statistic. No gradient flows through it."""
    assert isinstance(batch, TensorValue)
    new = dispatcher.call("detach", batch.fake) if batch.requires_grad else batch.fake
    tr.write(buffer, lambda: TensorValue(compute(new, buffer.fake), torch.Tensor, False))
