"""What ``torch.amp.GradScaler`` is made of: gradients divided by the scale, and a scale that grows and falls.

The scaler's own methods are followed; these two functions of torch's write to their arguments. Whether a step is skipped is a
number on the device that Python asks for: there a graph ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tinycompile.capture import torch_calls
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, Const
from tinycompile.capture.values.sequence import SequenceValue
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def _call(tr: Tracer, t: Value, method: str, *args: Value) -> TensorValue:
    if not isinstance(t, TensorValue):
        raise GraphBreak("unsupported-argument", f"{t.describe()} in a GradScaler's arithmetic")
    made = torch_calls.call_method(tr, t, method, list(args), {})
    assert isinstance(made, TensorValue)
    return made


def _written(tr: Tracer, target: Value, value: TensorValue) -> None:
    assert isinstance(target, TensorValue)
    tr.write(target, lambda: value, [target])


@rule(torch._amp_foreach_non_finite_check_and_unscale_)
def _unscale(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Each gradient times the inverse scale; ``found_inf`` is 1 where some value was not finite."""
    grads, found_inf, inverse = args
    if not isinstance(grads, SequenceValue):
        raise GraphBreak("unsupported-argument", f"gradients in {grads.describe()}")
    for grad in grads.values(tr):
        bad = _call(tr, _call(tr, _call(tr, grad, "isfinite"), "all"), "logical_not")
        _written(tr, found_inf, _call(tr, found_inf, "maximum", _call(tr, bad, "to", Const(torch.float32))))
        _call(tr, grad, "mul_", inverse)
    return NONE


@rule(torch._amp_update_scale_)
def _update(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Down after a step that was skipped; up after so many that were not, unless that is infinite. Factors are doubles."""
    scale, tracker, found_inf, growth, backoff, interval = args
    wide = _call(tr, scale, "double")
    down, up = (_call(tr, _call(tr, wide, "mul", factor), "float") for factor in (backoff, growth))
    count = _call(tr, tracker, "add", Const(1))
    skipped, full = _call(tr, found_inf, "ne", Const(0)), _call(tr, count, "eq", interval)
    grown = torch_calls.call_torch(tr, torch.where, [_call(tr, _call(tr, up, "isfinite"), "logical_and", full), up, scale], {})
    kept = torch_calls.call_torch(tr, torch.where, [skipped, down, grown], {})
    none = _call(tr, tracker, "mul", Const(0))
    reset = _call(tr, skipped, "logical_or", full)
    counted = torch_calls.call_torch(tr, torch.where, [reset, none, count], {})
    assert isinstance(kept, TensorValue) and isinstance(counted, TensorValue)
    _written(tr, scale, kept)
    _written(tr, tracker, counted)
    return scale
