"""May two groups of nests become one kernel? The answer is a fit of axes, or a refusal with its rule and words.

A group is a set of nests over one space of axes. Its *rows* are the points of its parallel axes: nothing may pass between rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tinycompile.base import expr as ex
from tinycompile.base.device import Device
from tinycompile.base.expr import Dim
from tinycompile.fuse import fit
from tinycompile.fuse.cost import MAX_BUFFERS, MAX_STATEMENTS, SIBLING_SHARE, Cost
from tinycompile.fuse.deps import Access, Facts, defined, names_in
from tinycompile.ir.loops import Nest
from tinycompile.ir.sharing import MOST_ELEMENTS, shareable

Accesses = dict[str, list[Access]]


@dataclass(frozen=True, slots=True)
class Member:
    """A nest in a group, and what its axes are there. ``position``: in program order."""

    position: int
    nest: Nest
    dims: Mapping[str, Dim]
    reads: frozenset[str]

    def spans(self, axes: frozenset[str]) -> bool:
        """Whether the nest runs over some of these axes."""
        return any(names_in(d) & axes for d in self.dims.values())


@dataclass(frozen=True, slots=True)
class Group:
    """Nests over one space. ``ordered``: an argmax or scan fixes the order of the reduction axes."""

    members: tuple[Member, ...]
    axes: Mapping[str, Dim]
    reduction: frozenset[str]
    ordered: bool
    loads: Accesses
    stores: Accesses
    device: Device
    statements: int

    @property
    def parallel(self) -> frozenset[str]:
        """The axes whose points are rows."""
        return frozenset(self.axes) - self.reduction

    @property
    def first(self) -> int:
        """The position of the earliest nest."""
        return min(m.position for m in self.members)

    def accesses(self) -> list[Access]:
        """All loads and stores."""
        return [a for by in (self.loads, self.stores) for group in by.values() for a in group]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not."""

    rule: str
    why: str


def group_of(position: int, nest: Nest, facts: Facts, cost: Cost) -> Group:
    """A group of one nest."""
    inner = {name for s in nest.body for name in defined(s)}
    dims: dict[str, Dim] = {a.name: ex.sym(a.name, 0, a.extent) for a in nest.axes}
    own = {name: ex.sym(f"{nest.name}.{name}") for name in inner}  # indirect indices of two nests are not the same
    loads: Accesses = {}
    stores: Accesses = {}
    for a in (*facts.loads, *facts.stores):
        if any(names_in(d) & inner for d in a.index):
            a = replace(a, index=tuple(ex.substitute(d, own) for d in a.index))
        (loads if a.kind == "load" else stores).setdefault(a.buffer, []).append(a)
    member = Member(position, nest, dims, frozenset(loads))
    device = cost.buffers[facts.stores[0].buffer].meta.device
    return Group((member,), facts.axes, facts.reduction, facts.ordered, loads, stores, device, len(nest.body))


def merge(a: Group, b: Group, mutable: frozenset[str], cost: Cost) -> Group | Refusal:
    """The two as one, or why not. ``mutable``: buffers that are written more than once or are inputs that are written."""
    refusal = _cheap_refusal(a, b, cost)
    if refusal is not None:
        return refusal
    refusal = Refusal("axes-differ", f"no fit of axes ({_space(a)}) and ({_space(b)})")
    for host, guest in _orders(a, b):
        for mapped in _fits(host, guest):
            found = _check(host, guest, mapped, mutable, cost)
            if isinstance(found, Group):
                return found
            refusal = found
    return refusal


def _cheap_refusal(a: Group, b: Group, cost: Cost) -> Refusal | None:
    if a.device != b.device:
        return Refusal("devices-differ", f"{a.device} and {b.device}")
    if a.statements + b.statements > MAX_STATEMENTS:
        return Refusal("too-long", f"the kernel would pass {MAX_STATEMENTS} statements")
    if len({*a.loads, *a.stores, *b.loads, *b.stores}) > MAX_BUFFERS:
        return Refusal("too-many-buffers", f"the kernel would take more than {MAX_BUFFERS} buffers")
    for buffer in {*a.stores} & {*b.stores}:
        return Refusal("both-write", f"both write {buffer}")
    for buffer, stores in (*a.stores.items(), *b.stores.items()):
        if any(s.kind == "atomic" for s in stores):
            return Refusal("atomic", f"{buffer} is complete only when every point has written to it, and points may meet there")
    if not ({*a.stores} & {*b.loads} or {*b.stores} & {*a.loads}):
        return _little_shared(a, b, cost)
    return None


def _little_shared(a: Group, b: Group, cost: Cost) -> Refusal | None:
    if not (a.reduction or b.reduction) and not any(
        x.axes for n in {*a.loads} & {*b.loads} for x in (*a.loads[n], *b.loads[n])
    ):
        return Refusal("little-shared", "they share single elements alone: one launch can do both side by side")
    smaller = min(traffic(a, cost), traffic(b, cost))
    saved = shared_reads(a, b, cost)
    if smaller > cost.limits.launch_bytes and saved < SIBLING_SHARE * smaller:
        return Refusal("little-shared", f"independent, and only {saved} of {smaller} bytes would be read once instead of twice")
    return None


def traffic(g: Group, cost: Cost) -> int:
    """Bytes that the group reads and writes, at the hints."""
    return sum(cost.bytes_of(name, acc, g.axes) for by in (g.loads, g.stores) for name, acc in by.items())


def shared_reads(a: Group, b: Group, cost: Cost) -> int:
    """Bytes that both read."""
    total = 0
    for name in {*a.loads} & {*b.loads}:
        total += min(cost.bytes_of(name, a.loads[name], a.axes), cost.bytes_of(name, b.loads[name], b.axes))
    return total


def _orders(a: Group, b: Group) -> tuple[tuple[Group, Group], ...]:
    """Which is the host: first the one with reductions, then the one with more axes."""
    rank_a, rank_b = (bool(a.reduction), len(a.axes)), (bool(b.reduction), len(b.axes))
    return ((a, b), (b, a)) if rank_a >= rank_b else ((b, a), (a, b))


def _fits(host: Group, guest: Group) -> Iterator[fit.Mapped]:
    host_all, guest_all = _joined(host), _joined(guest)
    written = {*host.stores, *guest.stores}
    common = sorted({*host_all} & {*guest_all}, key=lambda n: (n not in written, -max(len(x.axes) for x in guest_all[n]), n))
    shared: list[tuple[Sequence[Access], Sequence[Access]]] = [(host_all[n], guest_all[n]) for n in common]
    return fit.candidates(host.axes, guest.axes, host.reduction, guest.reduction, shared)


def _joined(g: Group) -> Accesses:
    joined = {name: list(acc) for name, acc in g.stores.items()}
    for name, acc in g.loads.items():
        joined.setdefault(name, []).extend(acc)
    return joined


def _check(host: Group, guest: Group, mapped: fit.Mapped, mutable: frozenset[str], cost: Cost) -> Group | Refusal:
    """All rules, for one fit."""
    reach = fit.image(mapped, guest.axes)
    rows_only = bool(host.reduction) and reach == host.parallel
    if not rows_only and reach != frozenset(host.axes):
        return Refusal("axes-differ", f"({_space(guest)}) covers only part of ({_space(host)})")
    target = {n: e for n, e in host.axes.items() if n in reach}
    if not fit.is_bijection(mapped, guest.axes, target):
        return Refusal("axes-differ", f"the points of ({_space(guest)}) and ({_space(host)}) do not pair up")
    reduction = fit.image(mapped, guest.reduction)
    if guest.reduction:
        refusal = _reductions_agree(host, guest, mapped, reduction, rows_only)
        if refusal is not None:
            return refusal
    merged = _join(host, guest, mapped, host.reduction | reduction)
    return _conflict(host, guest, merged, mutable) or _starved(host, guest, merged, cost) or merged


def _reductions_agree(host: Group, guest: Group, mapped: fit.Mapped, reduction: frozenset[str], rows: bool) -> Refusal | None:
    if rows or (host.reduction and reduction != host.reduction):
        return Refusal("reductions-differ", f"one reduces over {_some(host.reduction)}, the other over {_some(reduction)}")
    if reduction & fit.image(mapped, guest.parallel):
        return Refusal("reductions-differ", "an axis would be reduced in part")
    lone = [ex.as_sym(mapped[g]) for g in guest.axes if g in guest.reduction]
    in_order = [s.name for s in lone if s is not None]
    if guest.ordered and (None in lone or in_order != [h for h in host.axes if h in in_order]):
        return Refusal("order", "an argmax or scan depends on the order of its axes")
    return None


def _join(host: Group, guest: Group, mapped: fit.Mapped, reduction: frozenset[str]) -> Group:
    loads = {name: list(acc) for name, acc in host.loads.items()}
    stores = {name: list(acc) for name, acc in host.stores.items()}
    images = {g: names_in(d) for g, d in mapped.items()}
    for source, into in ((guest.loads, loads), (guest.stores, stores)):
        for name, acc in source.items():
            held = into.setdefault(name, [])
            for a in acc:
                index = tuple(ex.substitute(d, mapped) for d in a.index)
                moved = replace(a, index=index, axes=frozenset[str]().union(*(images[x] for x in a.axes)))
                if moved not in held:
                    held.append(moved)
    moved_members = (replace(m, dims={axis: ex.substitute(d, mapped) for axis, d in m.dims.items()}) for m in guest.members)
    members = tuple(sorted((*host.members, *moved_members), key=lambda m: m.position))
    statements = host.statements + guest.statements
    return Group(members, host.axes, reduction, host.ordered or guest.ordered, loads, stores, host.device, statements)


def _conflict(host: Group, guest: Group, merged: Group, mutable: frozenset[str]) -> Refusal | None:
    """What one writes, the other may touch only at the same point."""
    for buffer in sorted({*host.stores, *guest.stores}):
        in_host = buffer in host.loads or buffer in host.stores
        in_guest = buffer in guest.loads or buffer in guest.stores
        if not (in_host and in_guest):
            continue
        place = merged.stores[buffer][0].index
        for a in (*merged.stores[buffer], *merged.loads.get(buffer, ())):
            if a.index != place:
                shown, wanted = (", ".join(map(str, i)) for i in (place, a.index))
                return Refusal("other-points", f"{buffer} is written at [{shown}] but needed at [{wanted}], from other points")
    if merged.reduction:
        for buffer in mutable & {*merged.stores} & {*merged.loads}:
            if any(a.axes & merged.reduction for a in (*merged.stores[buffer], *merged.loads[buffer])):
                return Refusal("overwrites", f"{buffer} is overwritten, and a reduction may read it more than once")
    return None


def _starved(host: Group, guest: Group, merged: Group, cost: Cost) -> Refusal | None:
    """A reduction with too few rows is to be split in two kernels: nothing over its full space may need its result."""
    if not cost.starved(merged.axes, merged.reduction, merged.accesses()) or _can_share(merged, cost):
        return None
    moved_guest = {m.position for m in guest.members}
    for first, second in ((host, guest), (guest, host)):
        rows = [b for b in first.stores if not any(a.axes & merged.reduction for a in merged.stores[b])]
        ours = moved_guest if second is guest else {m.position for m in merged.members} - moved_guest
        for m in merged.members:
            if m.position in ours and m.reads.intersection(rows) and m.spans(merged.reduction):
                n = cost.points(merged.axes, merged.parallel)
                return Refusal("split-reduction", f"only {n} rows: the reduction is split, and {m.nest.name} needs its result")
    return None


def _can_share(g: Group, cost: Cost) -> bool:
    """Whether several programs can take a part of each row in one kernel: rows lie along memory and have a known length."""
    extents = [g.axes[a] for a in g.reduction]
    known = all(isinstance(n, int) for n in extents) and cost.points(g.axes, g.reduction) <= MOST_ELEMENTS
    along = cost.fastest_axis(g.accesses(), g.axes) in g.reduction
    mutated = {*g.stores} & {*g.loads} & {n for n, b in cost.buffers.items() if b.role == "input"}
    return (
        cost.limits.shares
        and known
        and along
        and not mutated
        and shareable((s for m in g.members for s in m.nest.body), g.device)
    )


def _space(g: Group) -> str:
    return ", ".join(f"{n}={e}{' reduced' if n in g.reduction else ''}" for n, e in g.axes.items())


def _some(axes: frozenset[str]) -> str:
    return f"({', '.join(sorted(axes))})" if axes else "nothing"
