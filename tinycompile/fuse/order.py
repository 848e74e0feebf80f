"""The order in which things run that need each other."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def dependence_order(needs: Mapping[int, set[int]]) -> list[int]:
    """Each number after those that it needs, otherwise smallest first. Raises AssertionError for a cycle."""
    feeds: dict[int, list[int]] = {i: [] for i in needs}
    for i, earlier in needs.items():
        for j in earlier:
            feeds[j].append(i)
    waits = {i: len(earlier) for i, earlier in needs.items()}
    ready = [i for i, count in waits.items() if not count]
    heapq.heapify(ready)
    done: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        done.append(i)
        for j in feeds[i]:
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(ready, j)
    assert len(done) == len(needs), "fusion made a cycle"
    return done
