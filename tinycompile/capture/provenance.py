"""Whose an error is that comes up under capture: the program's, or a fault of capture's own.

The program's errors come up in three ways, and no other. A ``raise`` statement of this package speaks for Python or torch. Some
functions raise what the program itself raises (``raises_for_the_program``). And what Python or torch is called for on the
program's behalf (``natively``) raises what the program would get. Whatever else comes up in this package's code is a fault of
ours, be it a TypeError or an AttributeError: no handler of the program's may see it, nor may we take it for an answer."""

from __future__ import annotations

import dis
import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, TypeVar

from tinycompile.base.errors import TinycompileError
from tinycompile.base.overheard import overheard
from tinycompile.base.raised import is_a, trace_of
from tinycompile.capture.breaks import GraphBreak

F = TypeVar("F", bound=Callable[..., Any])
_INNERMOST: set[CodeType] = set()
_RAISE = dis.opmap["RAISE_VARARGS"]
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def raises_for_the_program(fn: F) -> F:
    """Mark a function that raises exceptions of the program's, of whatever class."""
    _INNERMOST.add(fn.__code__)
    return fn


def natively(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of Python's or torch's own on the program's behalf. An exception from here is the program's. What warns
    is a break: eager Python warns in each call, from the program's line, or raises the warning there."""
    with overheard() as heard:
        try:
            return fn(*args, **kwargs)
        finally:
            if heard:
                raise GraphBreak("warns", str(heard[0].message))


def _is_raised(trace: TracebackType) -> bool:
    """Whether a ``raise`` statement of this package's is where a traceback ends."""
    code = trace.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[trace.tb_lasti] == _RAISE


def declines(error: BaseException) -> bool:
    """Whether the record of an op says that it does without these arguments, or that torch has nothing for them."""
    trace = trace_of(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return is_a(error, NotImplementedError) and trace is not None and _is_raised(trace)


def is_the_programs(error: BaseException) -> bool:
    """Whether the program raised an error, or Python or torch would raise it in the program."""
    trace = trace_of(error)
    if trace is None:
        return False
    while trace.tb_next is not None and trace.tb_frame.f_code is not natively.__code__:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    if is_a(error, RecursionError):  # our own frames may have used the stack up, there too
        return code is not natively.__code__ and _is_raised(trace)
    if code is natively.__code__ or code in _INNERMOST:
        return True
    return _is_raised(trace) and not is_a(error, AssertionError, NotImplementedError, TinycompileError)
