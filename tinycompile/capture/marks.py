"""What users tell capture about their tensors and functions, and ask of it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from tinycompile.base import shapes


def mark_dynamic(tensor: Any, dim: int | Sequence[int]) -> None:
    """Make these dims symbolic from the first compile that sees this tensor. Raises IndexError for a dim that it lacks."""
    _mark(tensor, "_tinycompile_dynamic", "_tinycompile_static", dim)


def mark_static(tensor: Any, dim: int | Sequence[int]) -> None:
    """Keep these dims of this tensor object static, also when their sizes change. Raises IndexError for a dim that it lacks."""
    _mark(tensor, "_tinycompile_static", "_tinycompile_dynamic", dim)


def _mark(tensor: Any, name: str, other: str, dim: int | Sequence[int]) -> None:
    dims = {shapes.normalize_dim(d, tensor.ndim) for d in ([dim] if isinstance(dim, int) else dim)}
    setattr(tensor, name, getattr(tensor, name, frozenset()) | dims)
    setattr(tensor, other, getattr(tensor, other, frozenset()) - dims)


def is_compiling() -> bool:
    """False here; True inside a function that is being captured (as is ``torch.compiler.is_compiling``)."""
    return torch.compiler.is_compiling()


# --- functions ----------------------------------------------------------------------------------------------


def graph_break() -> None:
    """End the graph here, under capture; otherwise nothing."""


graph_break._tinycompile_mark = "break"  # type: ignore[attr-defined]


def disable(fn: Any = None, *, recursive: bool = True) -> Any:
    """A function that capture does not look into: a call of it is a graph break, and it runs in plain Python.

    ``fn``: a function, a method, or a module (its ``forward`` is disabled in place). Without ``fn``, a decorator.
    ``recursive=False``: functions that it calls and that are compiled on their own stay compiled; they do in any case, so this
    is accepted for likeness only. Raises TypeError for anything else."""
    if fn is None:
        return functools.partial(disable, recursive=recursive)
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward)
        return fn
    return _marked(fn, "disable")


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


def _marked(fn: Any, mark: str) -> Any:
    """A copy of the function that bears the mark; the function itself stays as it is."""
    if isinstance(fn, MethodType):
        return MethodType(_marked(fn.__func__, mark), fn.__self__)
    fn = getattr(fn, "original", fn)  # of a compiled function
    if not isinstance(fn, FunctionType):
        raise TypeError(f"a Python function is needed, not {type(fn).__name__}")

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    marked._tinycompile_mark = mark  # type: ignore[attr-defined]
    return marked
