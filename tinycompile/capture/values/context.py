"""Context managers that capture knows: gradient modes and ``nullcontext``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tinycompile.capture.breaks import GraphBreak
from tinycompile.capture.values.base import Kwargs, MethodOf, Value
from tinycompile.capture.values.constant import NONE

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class GradMode(Value):
    """``torch.no_grad()``, ``enable_grad()`` or ``set_grad_enabled(mode)``; ``now``: the last sets the mode when it is made."""

    __slots__ = ("before", "mode", "now")

    def __init__(self, mode: bool, now: bool, before: bool) -> None:
        super().__init__()
        self.mode, self.now, self.before = mode, now, before

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "__class__" and not self.now:
            return tr.from_python(torch.enable_grad if self.mode else torch.no_grad)
        if not callable(getattr(torch.no_grad, name, None)):
            raise GraphBreak("grad-mode", f"attribute {name!r} of a gradient mode")
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name == "__enter__":
            if not self.now:
                self.before = tr.grad_enabled
            tr.set_grad(self.mode)
            return NONE
        if name == "__exit__":
            tr.set_grad(self.before)
            return NONE
        if name == "clone":
            return GradMode(self.mode, self.now, self.before)
        raise GraphBreak("grad-mode", f"method {name!r} of a gradient mode")

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if self.now or len(args) != 1 or kwargs:
            raise GraphBreak("grad-mode", "a call of a gradient mode")
        return UnderGradMode(args[0], self)


def entered_grad_mode(mode: bool, now: bool, before: bool) -> Any:
    """The real object of a gradient mode that was entered under capture; its exit goes back to ``before``."""
    if now:
        made = object.__new__(torch.set_grad_enabled)
        made.mode = mode
    else:
        made = torch.enable_grad() if mode else torch.no_grad()  # type: ignore[assignment]
    made.prev = before
    return made


class UnderGradMode(Value):
    """``torch.no_grad()(fn)``: the function, with gradients off while it runs."""

    __slots__ = ("fn", "mode")

    def __init__(self, fn: Value, mode: GradMode) -> None:
        super().__init__()
        self.fn, self.mode = fn, mode

    def truth(self, tr: Tracer) -> bool:
        return True

    def get_attr(self, tr: Tracer, name: str) -> Value:
        return self.fn if name == "__wrapped__" else self.fn.get_attr(tr, name)

    def call(self, tr: Tracer, args: Sequence[Value], kwargs: Kwargs) -> Value:
        before = tr.grad_enabled
        tr.set_grad(self.mode.mode)
        try:
            return self.fn.call(tr, args, kwargs)
        finally:
            tr.set_grad(before)


class NullContext(Value):
    """``contextlib.nullcontext(value)``."""

    __slots__ = ("value",)

    def __init__(self, value: Value = NONE) -> None:
        super().__init__()
        self.value = value

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name not in ("__enter__", "__exit__"):
            raise GraphBreak("unsupported-value", f"attribute {name!r} of nullcontext")
        return MethodOf(self, name)

    def call_method(self, tr: Tracer, name: str, args: Sequence[Value], kwargs: Kwargs) -> Value:
        if name in ("__enter__", "__exit__"):
            return self.value if name == "__enter__" else NONE
        raise GraphBreak("unsupported-value", f"method {name!r} of nullcontext")
