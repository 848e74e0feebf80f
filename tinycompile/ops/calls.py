"""``ops``: every record as a function that goes through the dispatcher, in which decompositions are written.

``ops.add(x, y)`` is ``dispatcher.call("add", x, y)``: it works on our tensors, on fakes under tracing and on torch's tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tinycompile.dispatch import dispatcher
from tinycompile.ops.meta_rules import opmath


class Ops:
    """One attribute an op, made on first use. Arguments are the schema's, positional or by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = partial(dispatcher.call, name)
        setattr(self, name, function)
        return function


ops = Ops()


def cast(x: Any, dtype: torch.dtype) -> Any:
    """``ops.to`` where the dtype differs, else ``x`` itself."""
    return x if x.dtype == dtype else ops.to(x, dtype)


def widen(x: Any) -> Any:
    """``x`` in its opmath dtype: float32 for half types."""
    return cast(x, opmath(x.dtype))


def row_major(x: Any) -> Any:
    """``x``, copied where its memory is not row-major: for ops whose result torch always makes contiguous."""
    return x if x.is_contiguous() else ops.clone(x, memory_format=torch.contiguous_format)
