"""What users tell capture about their tensors, and ask of it."""

from __future__ import annotations

from collections.abc import Sequence
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
