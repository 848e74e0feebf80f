"""Fitting one nest's axes onto another's: which axis becomes which expression, found by matching how both touch a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tinycompile.base import expr as ex
from tinycompile.base.expr import Dim
from tinycompile.fuse.deps import Access, names_in

Axes = Mapping[str, Dim]
Mapped = dict[str, Dim]  # guest axis -> expression over the host's axes

TRIES = 4  # accesses of one buffer that are compared on each side


def candidates(
    host: Axes, guest: Axes, host_reduced: frozenset[str], guest_reduced: frozenset[str],
    shared: Sequence[tuple[Sequence[Access], Sequence[Access]]],
) -> Iterator[Mapped]:  # fmt: skip
    """Possible fits, the likeliest first, each once. ``shared``: for each common buffer, the accesses of both."""
    seen: list[Mapped] = []
    for theirs, ours in shared:
        for b in _distinct(ours):
            for a in _distinct(theirs):
                mapped = _unify(host, guest, a.index, b.index)
                if mapped is not None:
                    mapped = _complete(host, guest, host_reduced, guest_reduced, mapped)
                if mapped is not None and mapped not in seen:
                    seen.append(mapped)
                    yield mapped
    if len(host) == len(guest):
        aligned = dict(zip(guest, host, strict=True))
        mapped = {g: ex.sym(h, 0, host[h]) for g, h in aligned.items() if host[h] == guest[g]}
        if len(mapped) == len(guest) and mapped not in seen:
            yield mapped


def _distinct(accesses: Sequence[Access]) -> list[Access]:
    """The first few accesses with different coordinates."""
    by_index = {a.index: a for a in reversed(accesses)}
    return list(reversed(by_index.values()))[:TRIES]


def _unify(host: Axes, guest: Axes, theirs: Sequence[Dim], ours: Sequence[Dim]) -> Mapped | None:
    """What the guest's lone axes must be for both to touch the same element."""
    mapped: Mapped = {}
    for a, b in zip(theirs, ours, strict=True):
        lone = ex.as_sym(b)
        if lone is None or lone.name not in guest:
            continue
        if not names_in(a) <= set(host) or mapped.setdefault(lone.name, a) != a:
            return None
    return mapped


def _complete(
    host: Axes, guest: Axes, host_reduced: frozenset[str], guest_reduced: frozenset[str], mapped: Mapped
) -> Mapped | None:
    """Give the guest's remaining axes the host's unused axes of the same extent, in order."""
    used = {name for d in mapped.values() for name in names_in(d)}
    free = [h for h in host if h not in used]
    full = dict(mapped)
    for g in guest:
        if g in full:
            continue
        same = [h for h in free if host[h] == guest[g] and (g not in guest_reduced or not host_reduced or h in host_reduced)]
        if not same:
            return None
        full[g] = ex.sym(same[0], 0, host[same[0]])
        free.remove(same[0])
    return full


def image(mapped: Mapping[str, Dim], guest_axes: Sequence[str] | frozenset[str] | Axes) -> frozenset[str]:
    """The host axes that some guest axes have become."""
    return frozenset(name for g in guest_axes for name in names_in(mapped[g]))


def is_bijection(mapped: Mapping[str, Dim], guest: Axes, host: Axes) -> bool:
    """Whether ``mapped`` pairs the points of the host axes given with the guest's, one to one."""
    lone = [ex.as_sym(mapped[g]) for g in guest]
    if all(s is not None and s.name in host and host[s.name] == guest[g] for s, g in zip(lone, guest, strict=True)):
        return len({s.name for s in lone if s is not None}) == len(host) == len(guest)
    linear: Dim = 0
    for g, extent in guest.items():
        if not (ex.at_least(mapped[g], 0) and ex.at_least(extent - 1 - mapped[g], 0)):
            return False
        linear = linear * extent + mapped[g]
    return _counts_through(linear, host, ex.product(guest.values()))


def _counts_through(linear: Dim, axes: Axes, total: Dim) -> bool:
    """Whether a number is written in mixed radix by the axes: then it takes each value in ``[0, total)`` once."""
    steps: dict[str, Dim] = {}
    for name in axes:
        step = ex.coefficient(linear, name)
        if step is None or step == 0:
            return False
        steps[name] = step
    rest = linear - sum((step * ex.sym(name, 0, axes[name]) for name, step in steps.items()), start=0)
    reached: Dim = 1
    while steps:
        following = next((n for n, step in steps.items() if step == reached), None)
        if following is None:
            return False
        reached = reached * axes[following]
        del steps[following]
    return rest == 0 and reached == total
