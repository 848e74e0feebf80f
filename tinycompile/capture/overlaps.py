"""Whether strided regions of one memory have an element in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_LIMIT = 10_000  # steps of the search; what takes longer is said to overlap


class Region(NamedTuple):
    """Elements at ``offset + sum(i * stride)`` for ``0 <= i < size`` in each dim. In elements, or in bytes."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """Behind its last element."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)) + 1


def may_overlap(a: Region, b: Region) -> bool:
    """Whether an element is in both. Exact, but for a search that takes too long: then True."""
    if 0 in a.sizes or 0 in b.sizes:
        return False
    # a.offset + sum(i * s) == b.offset + sum(j * t), the second sum brought to the left with j counted downwards
    ways = [(n - 1, s) for n, s in zip((*a.sizes, *b.sizes), (*a.strides, *b.strides), strict=True) if n > 1 and s]
    target = b.offset - a.offset + sum((n - 1) * t for n, t in zip(b.sizes, b.strides, strict=True))
    ways.sort(key=lambda way: -way[1])
    reach, common = [0], [0]
    for most, stride in reversed(ways):
        reach.append(reach[-1] + most * stride)
        common.append(math.gcd(common[-1], stride))
    return _reaches(ways, reach[::-1], common[::-1], target)


def _reaches(ways: Sequence[tuple[int, int]], reach: Sequence[int], common: Sequence[int], target: int) -> bool:
    """Whether ``target`` is a sum of ``k * stride`` with ``0 <= k <= most``; strides are positive, the largest first."""
    waiting, steps = [(0, target)], 0
    while waiting:
        at, left = waiting.pop()
        steps += 1
        if steps > _LIMIT:
            return True
        if left == 0:
            return True
        if not 0 < left <= reach[at] or left % common[at]:
            continue
        most, stride = ways[at]
        most = min(most, left // stride)
        least = max(0, -(-(left - reach[at + 1]) // stride))
        waiting.extend((at + 1, left - k * stride) for k in range(least, most + 1))
    return False
