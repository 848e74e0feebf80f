"""Functions that look at the frames of those who call them: they are called from the program's frames, not through wrappers.

A callee that broke is called through a compiled wrapper of its own, whose frames lie between it and its caller. What finds its
caller by frames (``logging``, ``warnings.warn(stacklevel=2)``, ``sys._getframe(1)``) would find the wrapper instead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from types import CodeType

from tinycompile.base.raised import is_a
from tinycompile.capture.breaks import FrameAsked

_STANDARD = os.path.dirname(os.__file__) + os.sep
_OTHERS = tuple(_STANDARD + name + os.sep for name in ("site-packages", "dist-packages"))
_WORDS = frozenset(
    {
        "_current_frames", "_getframe", "_getframemodulename", "currentframe", "extract_stack", "f_back", "format_stack",
        "getouterframes", "print_stack", "stack_info", "stacklevel", "tb_frame", "walk_stack",
    }
)  # fmt: skip


def may_look_up(error: BaseException, codes: Sequence[CodeType]) -> bool:
    """Whether a call that broke looks at its caller's frame, or may do so further on. ``codes``: of the calls in which the
    error came up, the broken call's first. The standard library's own functions may: they have no tensors to compile."""
    if is_a(error, FrameAsked) and error.levels + 1 >= len(codes):
        return True  # it asked for the frame of the broken call, and can go up from there
    return all(map(_is_standard, codes))


@cache
def speaks_of_frames(code: CodeType) -> bool:
    """Whether the code, or that of a function in it, names what gives frames, or says how far up a warning is placed."""
    if not _WORDS.isdisjoint((*code.co_names, *code.co_varnames)):
        return True
    named = (c for c in code.co_consts if isinstance(c, tuple))
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return any("stacklevel" in names for names in named) or any(map(speaks_of_frames, inner))


def _is_standard(code: CodeType) -> bool:
    return code.co_filename.startswith(_STANDARD) and not code.co_filename.startswith(_OTHERS)
