"""Frames of ours that lie between the program's, which what counts frames is to pass over.

``warnings.warn(stacklevel=2)`` and ``logging`` name the file and line of a caller so many frames up. Both pass over Python's
own import machinery, which they know by the name of its file. The few functions of ours through which compiled code is called
bear that name too, so a caller is the program's: eager code has no frames there."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_NAMES = ("importlib", "_bootstrap")  # as Python looks for them, in C and in logging
_ENDING = f" (passed over as {'.'.join(_NAMES)})"


def internal_frame(fn: F) -> F:
    """Mark a function whose frame is not the program's."""
    code: CodeType = fn.__code__
    fn.__code__ = code.replace(co_filename=code.co_filename + _ENDING)
    return fn


def is_internal(code: CodeType) -> bool:
    """Whether what counts frames passes over those of this code."""
    return all(name in code.co_filename for name in _NAMES)


def is_ours(code: CodeType) -> bool:
    """Whether it is of a function that was marked so."""
    return code.co_filename.endswith(_ENDING)
