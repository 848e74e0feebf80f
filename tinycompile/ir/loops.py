"""Loops IR: iteration spaces over buffers. A nest has named axes and a body of SSA statements; views are index maps.

Semantics of a nest. Every SSA value lives at a set of axes: those that its index expressions and operands mention; a reduction
drops its axes. A value is used at any superset of its axes (broadcast). Stores happen at each point of the axes of their value
and index. So ``layer_norm(x + r)`` is one nest with axes ``i0`` (parallel) and ``i1`` (reduction): values at (i0, i1), a
welford at (i0), then values at (i0, i1) again. An axis is ``reduction`` when some Reduce or Scan runs over it.

Statements run in order as if each were a whole-array operation over its axes (that is the reference interpreter); a backend
may reorder freely within the data dependences. Loads and stores of one buffer in one nest must not conflict across points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

import torch

from tinycompile.base.expr import Dim, dot, terms_of
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.graph import Location


@dataclass(frozen=True, slots=True)
class Axis:
    """``kind``: ``parallel`` or ``reduction``. Index expressions name it as ``sym(name, 0, extent)``."""

    name: str
    extent: Dim
    kind: str = "parallel"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory. ``role``: ``input``, ``temp`` or ``output``. ``meta`` gives the shape and strides in which coordinates are
    read."""

    name: str
    meta: TensorMeta
    role: str = "temp"


@dataclass(frozen=True, slots=True)
class Load:
    """Read ``buffer`` at ``index`` (one expression a dim) where each mask expression is >= 0, elsewhere ``other``.

    An index may use symbols that name earlier integer values of the nest (indirect loads), ``sym(value_name, 0, size)``."""

    name: str
    dtype: torch.dtype
    buffer: str
    index: tuple[Dim, ...]
    mask: tuple[Dim, ...] = ()
    other: float | int | bool = 0
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Const:
    """A number, or a symbolic size as a number."""

    name: str
    dtype: torch.dtype
    value: Any
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """An index expression as a value."""

    name: str
    dtype: torch.dtype
    expr: Dim
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar op of the vocabulary. For ``cast`` the dtype is the target."""

    name: str
    dtype: torch.dtype
    op: str
    args: tuple[str, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce ``args`` over ``axes``. ``names``/``dtypes``: one per value of the kind."""

    names: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    kind: str
    args: tuple[str, ...]
    axes: tuple[str, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """Inclusive scan along one axis; the values keep the axis."""

    names: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    kind: str
    args: tuple[str, ...]
    axis: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Store:
    """Write ``value`` to ``buffer`` at ``index``. The value has the buffer's dtype, or float32 for a half buffer (rounded
    here). ``mode``: ``plain``; or, where several points may meet at one place of a buffer that an earlier step has filled,
    ``atomic_add`` (they add up) or ``replace`` (the last in the order of the axes stays; on a GPU any one of them)."""

    buffer: str
    index: tuple[Dim, ...]
    value: str
    mode: str = "plain"
    origin: str = ""


Statement = Union[Load, Const, Index, Scalar, Reduce, Scan, Store]


@dataclass(frozen=True, slots=True)
class Nest:
    """One future kernel, or part of one. ``origins``: graph nodes it computes."""

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    origins: tuple[str, ...] = ()


def buffers_of(nest: Nest) -> tuple[str, ...]:
    """The buffers of a nest in order of first use: alike nests have theirs at the same positions."""
    return tuple(dict.fromkeys(s.buffer for s in nest.body if isinstance(s, (Load, Store))))


def offset_of(access: Load | Store, metas: Mapping[str, TensorMeta]) -> Dim:
    """The place of an access in its buffer, in elements."""
    return dot(access.index, metas[access.buffer].strides)


def starts_of(nest: Nest, metas: Mapping[str, TensorMeta]) -> dict[str, int]:
    """By buffer, the constant in the offset of its first access: alike nests may differ in it."""
    found: dict[str, int] = {}
    for s in nest.body:
        if isinstance(s, (Load, Store)):
            found.setdefault(s.buffer, dict(terms_of(offset_of(s, metas))).get((), 0))
    return found


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided view of a buffer's storage: what extern calls take and what outputs return.

    ``alias``: what a view op made of the buffer is another tensor object even where it covers the whole buffer. ``"view"``, or
    ``"detach"`` where the way leads through one; empty: the buffer's own tensor will do."""

    buffer: str
    meta: TensorMeta
    alias: str = ""


def views_in(value: Any) -> Iterator[TensorView]:
    """The views among arguments or outputs, also in tuples and lists."""
    if isinstance(value, TensorView):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from views_in(item)


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A library call. ``kind``: ``call`` (an op record's eager) or ``extern`` (a dotted path). Args hold TensorViews for
    tensors. ``outputs``: the buffers it makes, one per tensor result (None where a result is unused or no tensor). ``several``:
    the function returns a sequence, be it of one tensor. ``body``: the same as loops, where generated code may do it too."""

    name: str
    kind: str
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    origins: tuple[str, ...] = ()
    several: bool = False
    body: Nest | None = None


@dataclass(frozen=True, slots=True)
class SizeBinding:
    """Where a size symbol's value is read at run time: ``inputs[input].shape[dim]``, or the number itself when ``dim`` is
    None."""

    symbol: str
    input: str
    dim: int | None


@dataclass(frozen=True, slots=True)
class Loops:
    """A whole graph as loops. ``outputs``: TensorViews of buffers (an input's view is a true alias), or numbers/dims.
    ``inputs`` names every placeholder in order; those of tensors are buffers too. ``lines``: graph node -> user's line.
    ``donated``: inputs that nobody reads after the call."""

    name: str
    inputs: tuple[str, ...]
    sizes: tuple[SizeBinding, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Nest | ExternCall, ...]
    outputs: tuple[Any, ...]
    hints: tuple[tuple[str, int], ...] = ()
    lines: tuple[tuple[str, Location], ...] = ()
    donated: tuple[str, ...] = ()
