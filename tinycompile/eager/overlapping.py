"""Writes on the tape to views some of whose elements are one in memory (``unfold``, ``as_strided``, ``expand``).

torch gives what was written there the gradient of one of them alone: its ``CopySlices`` copies the view's gradient into that
of the base, and the last element that comes to a place stays. For an expanded view it refuses that copy, in the backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tinycompile.base.meta import TensorMeta
from tinycompile.base.shapes import reach
from tinycompile.eager.recording import edge_of
from tinycompile.eager.tape import AutogradMeta, Edge, Node
from tinycompile.eager.tensor import Tensor, from_torch
from tinycompile.ops.calls import ops


def overlaps(target: Any) -> bool:
    """Whether several elements of a view are one in memory."""
    return isinstance(target, Tensor) and target._view is not None and shares_elements(target.meta)


def shares_elements(meta: TensorMeta) -> bool:
    """Whether several elements are one in memory."""
    if not all(isinstance(n, int) for n in (*meta.shape, *meta.strides)):
        return False
    sizes, strides = _plain(meta)
    if 0 in sizes:
        return False
    far = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes, strict=True) if size > 1):
        if stride <= far:  # what lies closer may reach this far: the elements tell
            return not stride or not bool(_last_ones(meta).all())
        far += stride * (size - 1)
    return False


@contextlib.contextmanager
def keeping_one_gradient(target: Tensor) -> Iterator[None]:
    """While a write to ``target`` is recorded, the gradient that goes back to what it was is that of the last element at each
    place in memory."""
    if not overlaps(target) or (edge := edge_of(target)) is None:
        yield
        return
    before = target._autograd
    assert before is not None
    target._autograd = meanwhile = AutogradMeta(LastOnes(edge, target.meta), 0, before.generation)
    try:
        yield
    finally:
        if target._autograd is meanwhile:  # views look their history up again after a write
            target._autograd = before


class LastOnes(Node):
    """The gradient of the elements that came to their places in memory last; nothing for the others."""

    label = "LastOnes"

    def __init__(self, edge: Edge, meta: TensorMeta) -> None:
        super().__init__((edge,), (meta,))

    def run(self, grads: Sequence[Any], create_graph: bool, keep: bool) -> Sequence[Any]:
        kept = from_torch(_last_ones(self.metas[0]))
        return (ops.where(ops.to_device(kept, grads[0].device), grads[0], 0.0),)


def _last_ones(meta: TensorMeta) -> torch.Tensor:
    """Where the last elements are, in the order in which torch copies. Raises its RuntimeError for an expanded view."""
    sizes, strides = _plain(meta)
    numbers = torch.arange(torch.Size(sizes).numel(), device="cpu").reshape(sizes)
    places = torch.zeros(reach(sizes, strides), dtype=torch.int64, device="cpu").as_strided(sizes, strides)
    return places.copy_(numbers) == numbers


def _plain(meta: TensorMeta) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes: Any = tuple(meta.shape)  # no symbols: those are FakeTensor's
    strides: Any = tuple(meta.strides)
    return sizes, strides
