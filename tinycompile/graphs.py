"""``trace``: a function's graph, to look at, to edit, and to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinycompile.base.config import config
from tinycompile.base.errors import GraphBreakError
from tinycompile.capture.captured import CaptureOptions
from tinycompile.capture.frame import capture
from tinycompile.ir.graph_module import GraphModule


def trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> GraphModule:
    """Capture the call ``fn(*args, **kwargs)`` of a function, a method or an ``nn.Module``; nothing is run.

    The result is called like ``fn`` and runs its graph op by op. It holds for arguments like these: sizes, dtypes and Python
    values are those of this call, but for dims marked with :func:`mark_dynamic`; parameters are the module's own, read at each
    call. Raises :class:`GraphBreakError` where the function can't be captured in one graph, TypeError for what is no function.
    """
    captured = capture(_callee(fn), args, kwargs, CaptureOptions(dynamic=config.dynamic))
    if captured.graph is None:
        raise GraphBreakError("\n".join(str(b) for b in captured.breaks))
    return GraphModule(captured.graph, captured.binder())


def _callee(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The Python function of a module without hooks is its ``forward``; with hooks, one that calls it."""
    original = getattr(fn, "original", fn)  # of something compiled
    if not isinstance(original, torch.nn.Module):
        return original
    if not any(original.__dict__[name] for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")):
        return original.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return call
