"""Graph tensors as lowering holds them: a buffer and the chain of views through which it is read. Views never copy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Call, Sym
from tinycompile.base.expr import Dim, Expr
from tinycompile.base.meta import TensorMeta

_SAMPLED = 4096  # points at which an address map is compared when algebra can't decide


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view op: output coordinates to input coordinates. ``rest``: the call's arguments after the tensor."""

    index: Callable[..., tuple[Dim, ...]]
    source: TensorMeta
    result: TensorMeta
    rest: tuple[Any, ...]

    def __call__(self, coords: Sequence[Dim]) -> tuple[Dim, ...]:
        return self.index(tuple(coords), self.source, self.result, *self.rest)


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor of the graph. ``steps`` lead from its coordinates to those of ``buffer``, the last view first.

    ``copy_of`` names the graph node that makes fresh memory on the way (a reshape that strides forbid, for example): reads
    don't care, but whoever needs a real tensor needs that node's value in memory first. None: a true view of ``buffer``.
    ``detached``: one of the views is ``detach``."""

    meta: TensorMeta
    buffer: str
    steps: tuple[ViewStep, ...] = ()
    copy_of: str | None = None
    detached: bool = False

    def coords(self, coords: Sequence[Dim]) -> tuple[Dim, ...]:
        """Where in the buffer the element at ``coords`` of this tensor lies."""
        for step in self.steps:
            coords = step(coords)
        return tuple(coords)


@functools.lru_cache(maxsize=4096)
def axis(position: int, extent: Dim) -> Expr:
    """The symbol of the axis at a position: ``i0``, ``i1``, ..."""
    return ex.sym(f"i{position}", 0, extent)


@functools.lru_cache(maxsize=4096)
def grid(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """One coordinate a dim: axes numbered in order, 0 for dims of size 1, which need no axis."""
    coords: list[Dim] = []
    used = 0
    for size in shape:
        if isinstance(size, int) and size == 1:
            coords.append(0)
        else:
            coords.append(axis(used, size))
            used += 1
    return tuple(coords)


def is_alias(step: ViewStep, hints: Mapping[str, int]) -> bool:
    """Whether the result's strides address the same memory as the source's do through the index map: a view, not a copy."""
    source, result = step.source, step.result
    if source.dtype != result.dtype or source.device != result.device:
        return False
    coords = grid(result.shape)
    inner = step(coords)
    if inner == coords and result.strides == source.strides:
        return result.offset == source.offset
    difference = _address(inner, source) - _address(coords, result)
    if isinstance(difference, int):
        return difference == 0
    plain = _without_mod(difference)
    return plain == 0 if isinstance(plain, int) else _zero_everywhere(plain, hints)


def _address(coords: Sequence[Dim], meta: TensorMeta) -> Dim:
    return meta.offset + ex.dot(tuple(coords), meta.strides)


def _without_mod(d: Dim) -> Dim:
    """The same value with ``a % b`` spelled ``a - b * (a // b)``: then split dims cancel."""
    if isinstance(d, int):
        return d
    total: Dim = 0
    for mono, coeff in d.terms:
        term: Dim = coeff
        for atom in mono:
            term = term * (_plain_call(atom) if isinstance(atom, Call) else Expr((((atom,), 1),)))
        total = total + term
    return total


def _plain_call(call: Call) -> Dim:
    lhs, rhs = _without_mod(call.lhs), _without_mod(call.rhs)
    if call.fn == "%":
        return lhs - rhs * ex.floordiv(lhs, rhs)
    return {"//": ex.floordiv, "min": ex.minimum, "max": ex.maximum}[call.fn](lhs, rhs)


def _zero_everywhere(d: Expr, hints: Mapping[str, int]) -> bool:
    """Decide by trying: every point of the axes if they are few, else an even sample, at the sizes seen at capture."""
    axes = sorted((s for s in ex.symbols(d) if s.name not in hints), key=lambda s: s.name)
    ranges = [_sampled_range(s, hints, max(2, int(_SAMPLED ** (1 / len(axes))))) for s in axes]
    names = [s.name for s in axes]
    return all(ex.evaluate(d, {**hints, **dict(zip(names, at, strict=True))}) == 0 for at in product(*ranges))


def _sampled_range(s: Sym, hints: Mapping[str, int], count: int) -> list[int]:
    assert s.stop is not None
    extent = ex.evaluate(s.stop, hints)
    return list(range(extent)) if extent <= count else sorted({round(k * (extent - 1) / (count - 1)) for k in range(count)})
