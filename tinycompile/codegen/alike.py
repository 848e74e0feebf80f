"""A launch of alike nests, seen as one nest over ``numel`` elements whose buffers and size are told at run time.

Both languages generate that one nest by their ordinary emitter; what calls it for each member is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinycompile.base import expr as ex
from tinycompile.base.meta import TensorMeta
from tinycompile.ir.loops import Axis, Buffer, Load, Nest, SizeBinding, Statement, Store, buffers_of, offset_of
from tinycompile.ir.plan import Kernel, Plan


@dataclass(frozen=True, slots=True)
class Member:
    """One nest of the launch: its buffers, in the order of the common nest's, and its number of elements."""

    buffers: tuple[str, ...]
    numel: int


@dataclass(frozen=True, slots=True)
class Alike:
    """``kernel`` in ``plan``: the common nest, named and with the buffers of the first member. ``numel``: its size symbol."""

    kernel: Kernel
    plan: Plan
    numel: str
    members: tuple[Member, ...]


def alike(kernel: Kernel, plan: Plan, name: str) -> Alike:
    """The common nest of a launch, called ``name``."""
    metas = {b.name: b.meta for b in plan.buffers}
    numel = "numel"
    while numel in metas:
        numel += "_"
    members = tuple(Member(buffers_of(n), _elements(n)) for n in kernel.nests)
    total = sum(m.numel for m in members)  # how much work there is decides how it is cut
    nest = _common(kernel.nest, metas, numel, name)
    buffers = tuple(Buffer(b, _flat(metas[b], kernel.nest, b, numel, metas), "input") for b in members[0].buffers)
    pointers = members[0].buffers
    common = replace(kernel, nest=nest, more=(), reads=_kept(kernel.reads, pointers), writes=_kept(kernel.writes, pointers))
    sizes = (SizeBinding(numel, pointers[0], 0),)
    shown = replace(plan, buffers=buffers, inputs=pointers, sizes=sizes, hints=((numel, total),), steps=(common,))
    return Alike(common, shown, numel, members)


def _kept(names: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(n for n in names if n in among)


def _elements(nest: Nest) -> int:
    extent = nest.axes[0].extent if nest.axes else 1
    assert isinstance(extent, int)
    return extent


def _common(nest: Nest, metas: dict[str, TensorMeta], numel: str, name: str) -> Nest:
    """The nest over ``numel`` elements of flat buffers."""
    axes = tuple(Axis(a.name, ex.sym(numel, 1), a.kind) for a in nest.axes)
    each = ex.sym(axes[0].name, 0, axes[0].extent) if axes else 0

    def flat(s: Statement) -> Statement:
        if not isinstance(s, (Load, Store)):
            return s
        offset = offset_of(s, metas)
        return replace(s, index=(offset if isinstance(offset, int) else each,))

    return replace(nest, name=name, axes=axes, body=tuple(map(flat, nest.body)))


def _flat(meta: TensorMeta, nest: Nest, buffer: str, numel: str, metas: dict[str, TensorMeta]) -> TensorMeta:
    """A buffer as the common nest sees it: ``numel`` elements, or as many as its fixed places need."""
    offsets = [offset_of(s, metas) for s in nest.body if isinstance(s, (Load, Store)) and s.buffer == buffer]
    fixed = [o for o in offsets if isinstance(o, int)]
    size: ex.Dim = ex.sym(numel, 1) if len(fixed) < len(offsets) else max(fixed) + 1
    return TensorMeta((size,), (1,), meta.dtype, meta.device, meta.offset)
