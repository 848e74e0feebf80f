"""What made a function: ``vmap(f)`` and ``grad(f)`` are Python functions like any other; capture, which wants to follow ``f``
in its own way, asks here."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Transform(NamedTuple):
    """``made_by(fn, **options)``."""

    made_by: Callable[..., Any]
    fn: Callable[..., Any]
    options: Mapping[str, Any]


_MADE: weakref.WeakKeyDictionary[Callable[..., Any], Transform] = weakref.WeakKeyDictionary()


def made_by(transform: Callable[..., Any], fn: Callable[..., Any], made: Any, **options: Any) -> Any:
    """Note that ``made`` is ``transform(fn, **options)``; returns it. By identity: what stands in a function's ``__dict__`` is
    copied by ``functools.wraps``."""
    _MADE[made] = Transform(transform, fn, options)
    return made


def transform_of(fn: Any) -> Transform | None:
    """How a function was made, if one of ours made it."""
    try:
        return _MADE.get(fn)
    except TypeError:  # not to be hashed, or not to be referenced weakly
        return None


compile_whole: list[Callable[[Sequence[Transform], Any], Any]] = []
"""``compile_whole[0](chain, fn)``: a compiled function of the transforms in ``chain``, the outermost first, over what ``fn``
was compiled from; None for what is not compiled. Set by ``api.py``, which stands above this file."""


def whole(transform: Callable[..., Any], fn: Callable[..., Any], **options: Any) -> Any:
    """``transform(fn, **options)`` as one compiled function, where ``fn`` is a compiled one or transforms of one; else None."""
    chain = [Transform(transform, fn, options)]
    while (made := transform_of(chain[-1].fn)) is not None:
        chain.append(made)
    return compile_whole[0](chain, chain[-1].fn) if compile_whole else None
