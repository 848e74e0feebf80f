"""``torch.autograd.Function``: where no gradient is asked for, ``forward`` is followed with a shadow of its context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.rules.registry import Args, rule
from tinycompile.capture.torch_calls import tensors_in
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.classes import ClassValue, class_lookup
from tinycompile.capture.values.object import NewObject
from tinycompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class ShadowContext:
    """Stands for ``ctx`` while ``forward`` is followed: nobody will ask for what is saved."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing is kept."""

    def save_for_forward(self, *tensors: Any) -> None:
        """Nothing is kept."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """No output has a gradient here."""

    def set_materialize_grads(self, value: bool) -> None:
        """There will be no gradients."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Inputs that are written in place: the whole call is left to torch."""


ShadowContext.mark_dirty._tinycompile_mark = "break"  # type: ignore[attr-defined]


@rule(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    cls, *given = args
    if not isinstance(cls, ClassValue):
        raise GraphBreak("unsupported-value", f"apply of {cls.describe()}")
    tensors = list(tensors_in(tr, [*given, *kwargs.values()]))
    if tr.grad_enabled and any(t.requires_grad for t in tensors):
        raise GraphBreak("unknown-function", f"{cls.cls.__qualname__}.apply, an autograd.Function whose gradient is asked for")
    context = NewObject(ShadowContext)
    context.shadow["needs_input_grad"] = tr.from_python((False,) * len(given))
    found = class_lookup(cls.cls, "setup_context")
    splits = found is not None and found[0].__module__ != "torch.autograd.function"
    before = tr.grad_enabled
    tr.set_grad(False)
    try:
        result = cls.get_attr(tr, "forward").call(tr, given if splits else [context, *given], kwargs)
        if splits:
            cls.get_attr(tr, "setup_context").call(tr, [context, TupleValue(given), result], {})
    finally:
        tr.set_grad(before)
    if any(t is other for t in tensors_in(tr, [result]) for other in tensors):
        raise GraphBreak("unknown-function", f"{cls.cls.__qualname__}.apply returns an argument")
    return result
