"""``Tensor.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad`` of what the program computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tinycompile.base import shapes
from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import FALSE, NONE
from tinycompile.capture.values.sequence import SequenceValue, TupleValue
from tinycompile.capture.values.tensor import TensorValue
from tinycompile.dispatch import dispatcher
from tinycompile.eager.fake import FakeTensor

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_GRAD = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched",
    "materialize_grads",
)  # fmt: skip


def method(tr: Tracer, t: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """``t.backward(gradient, retain_graph, create_graph, inputs)``."""
    given = dict(zip(("gradient", "retain_graph", "create_graph", "inputs"), args, strict=False)) | kwargs
    named = {"tensors": t, "grad_tensors": given.pop("gradient", NONE), **given}
    return _backward(tr, [], named)


@rule(torch.autograd.backward)
def _backward(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(_BACKWARD, args, strict=False)) | kwargs
    if any(given.get(name, NONE) is not NONE for name in ("inputs", "grad_variables")):
        tr.effects.gradients.asks_of(tr, _tensors(tr, given.get("inputs", given["tensors"])))
        raise GraphBreak(tr.effects.gradients.kind, "gradients of some inputs only are asked for")
    _require_no_anomaly_mode(tr)
    outputs = _tensors(tr, given["tensors"])
    tangents = _tangents(tr, outputs, given.get("grad_tensors", NONE))
    tr.effects.gradients.run(tr, outputs, tangents, _kept(tr, given))
    return NONE


@rule(torch.autograd.grad)
def _grad(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(_GRAD, args, strict=False)) | kwargs
    if given.get("is_grads_batched", FALSE).truth(tr):
        raise GraphBreak("backward", "is_grads_batched")
    _require_no_anomaly_mode(tr)
    outputs, inputs = _tensors(tr, given["outputs"]), _tensors(tr, given["inputs"])
    for t in inputs:
        if not t.requires_grad or not isinstance(t.fake, FakeTensor):
            raise GraphBreak("backward", f"the gradient of {t.describe()}, which does not require grad")
    tr.effects.gradients.asks_of(tr, inputs)
    tangents = _tangents(tr, outputs, given.get("grad_outputs", NONE))
    found = tr.effects.gradients.wanted(tr, outputs, inputs, tangents, _kept(tr, given))
    zeros = given.get("materialize_grads", FALSE).truth(tr)
    if None in found and not zeros and not given.get("allow_unused", FALSE).truth(tr):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is "
            "the desired behavior."
        )
    return TupleValue([g or (_zeros(tr, t) if zeros else NONE) for g, t in zip(found, inputs, strict=True)])


def _require_no_anomaly_mode(tr: Tracer) -> None:
    """It looks at the gradients of each op, and a graph has none of them."""
    if torch.is_anomaly_enabled():
        raise GraphBreak("backward", "anomaly mode is on")
    tr.guards.check(f"not {tr.guards.hold(torch.is_anomaly_enabled, 'is_anomaly_enabled').name}()", "anomaly mode is off")


def _zeros(tr: Tracer, t: TensorValue) -> Value:
    tr.about_to_record()
    return TensorValue(dispatcher.call("full_like", dispatcher.call("detach", t.fake), 0.0), torch.Tensor, False)


def _kept(tr: Tracer, given: Kwargs) -> bool:
    """Whether the graph is to be kept for another backward."""
    if given.get("create_graph", FALSE).truth(tr):
        raise GraphBreak(tr.effects.gradients.kind, "create_graph: the gradients are to be differentiated again")
    return given.get("retain_graph", NONE).truth(tr)


def _tensors(tr: Tracer, value: Value) -> list[TensorValue]:
    found = list(value.values(tr)) if isinstance(value, SequenceValue) else [value]
    if not found or not all(isinstance(t, TensorValue) and issubclass(t.cls, torch.Tensor) for t in found):
        raise GraphBreak("backward", f"a backward of {value.describe()}")
    return found  # type: ignore[return-value]


def _tangents(tr: Tracer, outputs: Sequence[TensorValue], value: Value) -> list[Value]:
    """One an output; None stands for ones, and only of a scalar."""
    found = list(value.values(tr)) if isinstance(value, SequenceValue) else [value] * (1 if value is not NONE else len(outputs))
    if len(found) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(found)} gradients")
    for out, tangent in zip(outputs, found, strict=True):
        if isinstance(tangent, TensorValue):
            a, b = out.meta, tangent.meta
            if not shapes.same_shape(a.shape, b.shape):
                raise RuntimeError(
                    f"Mismatch in shape: grad_output has a shape of {b.shape} and output has a shape of {a.shape}."
                )
            if a.dtype != b.dtype or a.device != b.device:
                raise GraphBreak("backward", f"a gradient {b} for {a}")
        elif out.requires_grad and not shapes.same(out.meta.numel, 1):
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
    return found
