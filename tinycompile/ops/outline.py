"""Metadata of ops that are stated as other ops: a decomposition is run on *outlines*, tensors that have a meta and no data.

Outlines bear the OUTLINE key, above all others, whose fallback works out an op's results by the op's own rule. So a record made
by :func:`~tinycompile.ops.declare.composite` needs no shape rule, and is given exactly the strides of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import Shape
from tinycompile.dispatch import dispatcher, local_keys
from tinycompile.dispatch.keys import Key, KeySet
from tinycompile.ops.record import OPS, Metas

_BIT = Key.OUTLINE.bit


class NotCoveredError(NotImplementedError):
    """A call that a decomposition leaves to torch."""


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What a decomposition may ask of a tensor."""

    meta: TensorMeta
    keys: int = _BIT

    @property
    def shape(self) -> Shape:
        """Sizes."""
        return self.meta.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.meta.dtype

    @property
    def device(self) -> Device:
        """Where it would be."""
        return self.meta.device

    def is_contiguous(self) -> bool:
        """Whether the strides are row-major."""
        return self.meta.is_contiguous()


@dataclass(frozen=True, slots=True)
class Outlined:
    """The shape rule that a decomposition implies."""

    fn: Callable[..., Any]

    def __call__(self, *args: Any) -> Metas:
        """The results' metas. Raises what the parts' rules raise, NotCoveredError where ``fn`` declines."""
        with local_keys.include(Key.OUTLINE):
            result = self.fn(*(_outlined(a) for a in args))
        if result is NotImplemented:
            raise NotCoveredError("the decomposition does not cover these arguments")
        return tuple(r.meta for r in result) if isinstance(result, (tuple, list)) else result.meta

    def covers(self, args: Sequence[Any]) -> bool:
        """Whether the decomposition takes a call under tracing. Real tensors need no answer: they run torch's kernel."""
        if not any(_is_traced(t) for t in _tensors(args)):
            return True
        try:
            self(*args)
        except Exception:  # noqa: BLE001  # whatever is wrong with the call, torch says it
            return False
        return True


def _tensors(args: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for a in args:
        if isinstance(a, (tuple, list)):
            found += _tensors(a)
        elif isinstance(a, TensorMeta) or hasattr(a, "meta"):
            found.append(a)
    return found


def _is_traced(value: Any) -> bool:
    return isinstance(value, TensorMeta) or bool(value.keys & Key.TRACING.bit)


def _outlined(value: Any) -> Any:
    if isinstance(value, TensorMeta):
        return Outline(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_outlined(v) for v in value)
    meta = getattr(value, "meta", None)
    return Outline(meta) if isinstance(meta, TensorMeta) else value


def _meta_of(value: Any) -> Any:
    if isinstance(value, Outline):
        return value.meta
    return tuple(_meta_of(v) for v in value) if isinstance(value, (tuple, list)) else value


def outline(op_name: str, keyset: KeySet, args: tuple[Any, ...]) -> Any:
    """The OUTLINE key's fallback."""
    if op_name == "identity":
        return args[0]
    metas = OPS[op_name].meta(*(_meta_of(a) for a in args))
    return Outline(metas) if isinstance(metas, TensorMeta) else tuple(Outline(m) for m in metas)


dispatcher.fallback(Key.OUTLINE, outline)
