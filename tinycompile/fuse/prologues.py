"""What makes an operand of a product of few rows, in the product's own kernel: a norm beside a matrix product.

Every program of such a product makes the few rows again that it multiplies, from the caches: less than a launch costs the host,
and not more than a kernel of its own costs the card (``docs/results/h200/norms.md``, which also says why rows must be few, and
that they are not made there where a graph launches all kernels). A kernel that also stores what others read (a residual stream
beside its norm) is cut: the stores go behind the product before it, and the norm loads what they left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.fuse.cost import Cost
from tinycompile.fuse.deps import analyse, defined, may_fail, names_in, reads_of
from tinycompile.fuse.weave import Producer, Weaver, identity, without_dead
from tinycompile.ir.loops import Load, Nest, Reduce, Scalar, Scan, Statement, Store

MOST_WEIGHT = 48  # of what makes one element of it (``deps.WEIGHTS``)


@dataclass(frozen=True, slots=True)
class Prologue:
    """``buffer`` is made at ``position`` by ``producer``; ``rest``: what else the kernel there does, or None."""

    buffer: str
    position: int
    producer: Producer
    rest: Nest | None

    @property
    def reads(self) -> frozenset[str]:
        """What it is made of."""
        return reads_of(self.producer.nest)


def prologue_of(position: int, nest: Nest, buffer: str, cost: Cost) -> Prologue | None:
    """How a nest makes one of the buffers that it stores, apart from the others; None where that can't be told apart, is much
    work, or leaves two kernels that reduce."""
    (store,) = (s for s in nest.body if isinstance(s, Store) and s.buffer == buffer)
    lone = [None if isinstance(d, int) else ex.as_sym(d) for d in store.index]
    axes = tuple(s.name if s is not None else None for s in lone)
    walked = [a for a in axes if a is not None]
    whole = set(walked) == {a.name for a in nest.axes} and len(set(walked)) == len(walked)
    if not whole or any(a is None and d != 0 for a, d in zip(axes, store.index, strict=True)):
        return None
    if any(isinstance(s, Scan) or (isinstance(s, Store) and s.mode != "plain") for s in nest.body) or may_fail(nest):
        return None
    others = [s for s in nest.body if isinstance(s, Store) and s is not store]
    own = _loading(nest, store, others, cost)
    rest = without_dead([s for s in nest.body if s is not store]) if others else ()
    if own is None or analyse(own).weight > MOST_WEIGHT or any(isinstance(s, Reduce) for s in rest):
        return None
    left = replace(nest, name=f"{nest.name}_rest", body=rest) if others else None
    return Prologue(buffer, position, Producer(own, axes), left)


def _loading(nest: Nest, store: Store, others: list[Store], cost: Cost) -> Nest | None:
    """A nest's one store, of a value in the buffer's dtype, with loads in place of what its other stores leave in memory."""
    target = cost.buffers[store.buffer].meta.dtype
    kinds = {n: d for s in nest.body for n, d in zip(defined(s), _dtypes(s), strict=True)}
    placed = {s.value: s for s in others if kinds[s.value] == cost.buffers[s.buffer].meta.dtype}
    rounded = {s.value: s for s in others if s.value not in placed}
    body: list[Statement] = []
    for s in nest.body:
        if s is store:
            if kinds[s.value] != target:
                body.append(Scalar(f"{s.value}_stored", target, "cast", (s.value,), s.origin))
                s = replace(s, value=f"{s.value}_stored")
            body.append(s)
        elif not isinstance(s, Store):
            made = placed.get(s.name) if isinstance(s, Scalar) else None
            if isinstance(s, Scalar) and s.op == "cast" and s.args[0] in rounded:
                kept = rounded[s.args[0]]
                made = kept if cost.buffers[kept.buffer].meta.dtype == s.dtype else None
            if made is not None and isinstance(s, Scalar):
                s = Load(s.name, cost.buffers[made.buffer].meta.dtype, made.buffer, made.index, origin=made.origin)
            body.append(s)
    found = without_dead(body)
    names = {n for s in found for n in defined(s)}
    return None if names & rounded.keys() else replace(nest, body=found)


def _dtypes(s: Statement) -> tuple[torch.dtype, ...]:
    return s.dtypes if isinstance(s, (Reduce, Scan)) else () if isinstance(s, Store) else (s.dtype,)


def folded(nest: Nest, prologues: Mapping[str, Prologue], cost: Cost, taken: tuple[str, ...]) -> Nest | None:
    """A product that makes what it would load; None where the rows of one are not what the other sums over."""
    wanted = {b: p.producer for b, p in prologues.items() if b in reads_of(nest)}
    if not wanted:
        return nest
    summed = {a.name: a.extent for a in nest.axes if a.kind != "parallel"}
    if not all(_same_rows(s, wanted[s.buffer], summed) for s in nest.body if isinstance(s, Load) and s.buffer in wanted):
        return None
    weaver = Weaver(cost.buffers, [a.name for a in nest.axes], wanted, taken=taken)
    weaver.add(nest, identity(nest))
    origins = (*(o for p in wanted.values() for o in p.nest.origins), *nest.origins)
    return weaver.finish(nest.name, {a.name: a.extent for a in nest.axes}, origins)


def _same_rows(load: Load, producer: Producer, summed: Mapping[str, Dim]) -> bool:
    """Whether a load walks what its producer reduces from end to end along the sum, and nothing else along it."""
    extents = {a.name: a.extent for a in producer.nest.axes}
    reduced = {a for s in producer.nest.body if isinstance(s, Reduce) for a in s.axes}
    walked: dict[str, Dim] = {}
    for axis, d in zip(producer.axes, load.index, strict=True):
        lone = ex.as_sym(d)
        if axis in reduced and lone is not None:
            walked[lone.name] = extents[axis]
        elif reduced and names_in(d) & summed.keys():
            return False
    return not reduced or (walked == summed and len(walked) == len(reduced))
