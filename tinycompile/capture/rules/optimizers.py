"""Steps of torch's optimizers: known as such, for they are compiled on their own and not followed.

A step ends the graph before it. The call is then made through the compiled form that ``compile_callee`` gives for it."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW

from tinycompile.capture.breaks import GraphBreak

OPTIMIZERS: tuple[type[torch.optim.Optimizer], ...] = (SGD, Adam, AdamW)


@functools.cache
def _steps() -> frozenset[Any]:
    return frozenset(inspect.unwrap(cls.step) for cls in OPTIMIZERS)


def is_step(fn: Any) -> bool:
    """Whether a function is the ``step`` of an optimizer that is known here, also as hooks and schedulers wrap it."""
    return isinstance(fn, FunctionType) and "__wrapped__" in fn.__dict__ and inspect.unwrap(fn) in _steps()


def check(fn: FunctionType) -> None:
    """Called before a function is followed."""
    if is_step(fn):
        raise GraphBreak("optimizer", f"{inspect.unwrap(fn).__qualname__}()")
