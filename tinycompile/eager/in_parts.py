"""Records that are run as their parts: where a tape follows them, under vmap, on devices without a kernel.

The parts may take what torch refuses, so the record's own rule is asked first. What it refuses, or does not know, is torch's to
judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinycompile.eager.backends import meta_of
from tinycompile.eager.refused_dtypes import seems_refused
from tinycompile.ops.record import Op

_COVERED: dict[Any, bool] = {}
_AT_MOST = 4096


def in_parts(op: Op, form: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """``form(*args)``; NotImplemented for a call that torch alone can judge, or run."""
    metas = tuple(meta_of(a) for a in args)
    try:
        known = _COVERED.get((op.name, *metas))
    except TypeError:  # a list of numbers has no hash
        return form(*args) if _is_covered(op, args, metas) else NotImplemented
    if known is None:
        if len(_COVERED) >= _AT_MOST:
            _COVERED.clear()
        known = _COVERED[op.name, *metas] = _is_covered(op, args, metas)
    return form(*args) if known else NotImplemented


def _is_covered(op: Op, args: tuple[Any, ...], metas: tuple[Any, ...]) -> bool:
    try:
        op.meta(*metas)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    return not seems_refused(op, args)
