"""What users tell capture about their tensors and functions, and ask of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from tinycompile.base import shapes
from tinycompile.base.internal_frames import internal_frame


def mark_dynamic(tensor: Any, dim: int | Sequence[int]) -> None:
    """Make these dims symbolic from the first compile that sees this tensor. Raises IndexError for a dim that it lacks."""
    _mark(tensor, "_tinycompile_dynamic", "_tinycompile_static", dim)


def mark_static(tensor: Any, dim: int | Sequence[int]) -> None:
    """Keep these dims of this tensor object static, also when their sizes change. Raises IndexError for a dim that it lacks."""
    _mark(tensor, "_tinycompile_static", "_tinycompile_dynamic", dim)


def _mark(tensor: Any, name: str, other: str, dim: int | Sequence[int]) -> None:
    if not hasattr(tensor, "ndim"):
        raise TypeError(f"a tensor is needed, not {type(tensor).__name__}")
    named = [dim] if isinstance(dim, int) else dim
    if isinstance(named, str) or not all(isinstance(d, int) for d in named):
        raise TypeError(f"dims are ints, not {dim!r}")
    dims = {shapes.normalize_dim(d, tensor.ndim) for d in named}
    setattr(tensor, name, getattr(tensor, name, frozenset()) | dims)
    setattr(tensor, other, getattr(tensor, other, frozenset()) - dims)


def is_compiling() -> bool:
    """False here; True inside a function that is being captured (as is ``torch.compiler.is_compiling``)."""
    return torch.compiler.is_compiling()


# --- functions ----------------------------------------------------------------------------------------------


def graph_break() -> None:
    """End the graph here, under capture; otherwise nothing."""


graph_break._tinycompile_mark = "break"  # type: ignore[attr-defined]


class _Disabled(threading.local):
    """How many functions are running in this thread that switched compiled code off for all that they call."""

    depth = 0


_disabled = _Disabled()


class Switch:
    """``off``: how many calls, of all threads, are inside such functions: so a compiled call asks only then."""

    off = 0
    lock = threading.Lock()


def is_disabled() -> bool:
    """Whether the caller runs inside a function that is disabled with all that it calls."""
    return _disabled.depth > 0


class SwitchedOff:
    """Entered by a function that is. (``contextlib`` would set ``__traceback__`` of the program's exceptions.)"""

    def __enter__(self) -> None:
        with Switch.lock:
            Switch.off += 1
        _disabled.depth += 1

    def __exit__(self, *_: object) -> None:
        _disabled.depth -= 1
        with Switch.lock:
            Switch.off -= 1


def disable(fn: Any = None, *, recursive: bool = True) -> Any:
    """A function that capture does not look into: a call of it is a graph break, and it runs in plain Python.

    ``fn``: a function, a method, or a module (its ``forward`` is disabled in place). Without ``fn``, a decorator.
    ``recursive``: what it calls runs in plain Python too, also where that is compiled on its own; False leaves that compiled.
    Raises TypeError for anything else."""
    if fn is None:
        return functools.partial(disable, recursive=recursive)
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive=recursive)
        return fn
    return _marked(fn, "disable", SwitchedOff if recursive else contextlib.nullcontext)


def mark_of(fn: Any) -> str | None:
    """What a user has said about a function: here, or with ``torch.compiler.disable``."""
    mark: str | None = getattr(fn, "_tinycompile_mark", None)
    return "disable" if mark is None and getattr(fn, "_torchdynamo_disable", False) is True else mark


def before_torch_compile(fn: Any) -> Any:
    """The function that ``torch.compile`` was given, of what it gives back; of anything else that itself."""
    found = getattr(fn, "_torchdynamo_orig_callable", None) if isinstance(fn, FunctionType) else None
    return fn if found is None or mark_of(fn) == "disable" else found


def allow_in_graph(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes into graphs as one opaque call. It takes and returns tensors (or tuples of them) and plain values,
    has no effects, and works on meta tensors. Raises TypeError for what is no Python function."""
    marked: Any = _marked(fn, "allow")
    marked._tinycompile_path = f"tinycompile.capture.marks.allowed.{_allow(marked)}"
    return marked


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose result is taken, at capture, to be the same for ever: it is called once, then its result is used.

    Raises TypeError for what is no Python function."""
    return _marked(fn, "constant")


class Allowed:
    """The functions that ``allow_in_graph`` was given, by name."""


allowed = Allowed()
_serial = itertools.count()


def _allow(fn: Callable[..., Any]) -> str:
    name = f"{fn.__name__}_{next(_serial)}"
    setattr(allowed, name, fn)
    return name


def _marked(fn: Any, mark: str, around: Callable[[], Any] = contextlib.nullcontext) -> Any:
    """A copy of the function that bears the mark; the function itself stays as it is."""
    if isinstance(fn, MethodType):
        return MethodType(_marked(fn.__func__, mark, around), fn.__self__)
    fn = getattr(fn, "original", fn)  # of a compiled function
    if not isinstance(fn, FunctionType):
        raise TypeError(f"a Python function is needed, not {type(fn).__name__}")

    @functools.wraps(fn)
    @internal_frame
    def marked(*args: Any, **kwargs: Any) -> Any:
        with around():
            return fn(*args, **kwargs)

    marked._tinycompile_mark = mark  # type: ignore[attr-defined]
    return marked
