"""How a record's schema splits a call's arguments; worked out once an op."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tinycompile.ops.record import Op

_OF_REDUCTIONS = ("dim", "keepdim", "dtype")


@dataclass(frozen=True, slots=True)
class Signature:
    """``tensors``: positions of Tensor arguments; ``attrs``: (position, name) of the rest; ``at``: name -> position."""

    tensors: tuple[int, ...]
    attrs: tuple[tuple[int, str], ...]
    at: dict[str, int]

    def named(self, args: tuple[Any, ...], name: str, default: Any = None) -> Any:
        """The argument called ``name``; ``default`` when the op has none."""
        position = self.at.get(name)
        return default if position is None else args[position]

    def reduction_attrs(self) -> tuple[tuple[int, str], ...]:
        """Attributes for a reduction's own formulas: all but those that say what is reduced."""
        return tuple((i, name) for i, name in self.attrs if name not in _OF_REDUCTIONS)


@functools.cache
def signature(op: Op) -> Signature:
    """The signature of a record."""
    args = list(enumerate(op.schema.args))
    tensors = tuple(i for i, a in args if a.type in ("Tensor", "Tensor?"))
    rest = tuple((i, a.name) for i, a in args if a.type not in ("Tensor", "Tensor?"))
    return Signature(tensors, rest, {a.name: i for i, a in args})
