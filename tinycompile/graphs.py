"""``trace``: a function's graph, to look at, to edit, and to compile."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from tinycompile.base.config import config
from tinycompile.base.errors import GraphBreakError
from tinycompile.capture.captured import CaptureOptions
from tinycompile.capture.frame import capture
from tinycompile.ir.graph_module import GraphModule


def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> GraphModule:
    """Capture the call ``fn(*args, **kwargs)`` of a function, a method, an ``nn.Module`` or an object that is called; nothing
    is run.

    The result is called like ``fn`` and runs its graph op by op. It holds for arguments like these: sizes, dtypes and Python
    values are those of this call, but for dims marked with :func:`mark_dynamic`; parameters are the module's own, read at each
    call. Raises :class:`GraphBreakError` where the function can't be captured in one graph, TypeError for what can't be called.
    """
    captured = capture(_callee(fn), args, kwargs, CaptureOptions(dynamic=config.dynamic))
    if captured.graph is None:
        raise GraphBreakError("\n".join(str(b) for b in captured.breaks))
    return GraphModule(captured.graph, captured.binder())


def _callee(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The Python function to follow: of a module without hooks its ``forward``, of what else is none one that calls it."""
    if isinstance(fn, MethodType):
        return MethodType(_callee(fn.__func__), fn.__self__)
    original = getattr(fn, "original", fn)  # of something compiled
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    if isinstance(original, torch.nn.Module) and not any(original.__dict__[name] for name in hooks):
        return _callee(original.forward)
    if isinstance(original, (FunctionType, type)) or not callable(original):
        return original

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return call
