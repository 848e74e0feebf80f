"""Maximum flow, minimum cut (Dinic, 1970): the partitioner's one algorithm, on plain integers."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class FlowNetwork:
    """Nodes are numbered as they are made; capacities are integers."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []  # of each node: positions in the three lists below; position ^ 1 is the way back
        self._to: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        """From ``a`` to ``b``."""
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._capacity.append(room)

    def sink_side(self, source: int, sink: int) -> list[bool]:
        """Saturate the network; of all minimum cuts take the one closest to the sink. One flag a node: is it beyond the
        cut?"""
        while self._augment(source, sink):
            pass
        beyond = [False] * len(self._edges)
        beyond[sink] = True
        queue = deque([sink])
        while queue:
            at = queue.popleft()
            for e in self._edges[at]:
                before = self._to[e]
                if not beyond[before] and self._capacity[e ^ 1] > 0:
                    beyond[before] = True
                    queue.append(before)
        return beyond

    def _augment(self, source: int, sink: int) -> bool:
        """One phase: a blocking flow along shortest paths. False when the sink is out of reach."""
        level = self._levels(source, sink)
        if level[sink] < 0:
            return False
        tried = [0] * len(self._edges)
        path: list[int] = []
        at = source
        while True:
            if at == sink:
                self._push(path)
                path, at = [], source
                continue
            e = self._next(at, level, tried)
            if e is not None:
                path.append(e)
                at = self._to[e]
            elif path:
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
            else:
                return True

    def _levels(self, source: int, sink: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue and level[sink] < 0:
            at = queue.popleft()
            for e in self._edges[at]:
                if self._capacity[e] > 0 and level[self._to[e]] < 0:
                    level[self._to[e]] = level[at] + 1
                    queue.append(self._to[e])
        return level

    def _next(self, at: int, level: list[int], tried: list[int]) -> int | None:
        edges = self._edges[at]
        while tried[at] < len(edges):
            e = edges[tried[at]]
            if self._capacity[e] > 0 and level[self._to[e]] == level[at] + 1:
                return e
            tried[at] += 1
        return None

    def _push(self, path: list[int]) -> None:
        room = min(self._capacity[e] for e in path)
        for e in path:
            self._capacity[e] -= room
            self._capacity[e ^ 1] += room
