"""That what a graph writes shares no memory with another input: found out at capture, guarded at each call.

Which tensors a guard holds is fixed, so their places are looked up once; only those that come with a call are looked at
again."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tinycompile.base.shapes import reach
from tinycompile.base.torch_private import storage_id
from tinycompile.capture.overlaps import Region, may_overlap
from tinycompile.eager.optimizer_inputs import StepInputs


def separate(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share no memory."""
    if a.device != b.device or not a.numel() or not b.numel():
        return True
    first, second = _bytes(a), _bytes(b)
    apart = first.end <= second.offset or second.end <= first.offset
    return apart or not may_overlap(first, second)


def _bytes(t: torch.Tensor) -> Region:
    size = t.element_size()
    return Region(t.data_ptr(), (*t.shape, size), (*(s * size for s in t.stride()), 1))


class Place(NamedTuple):
    """Where a tensor lies: the bytes from its first element to its last."""

    start: int
    end: int
    at: int
    tensor: torch.Tensor
    written: bool


def place(at: int, t: torch.Tensor, written: bool) -> Place:
    """The place of input ``at``."""
    start = t.data_ptr()
    return Place(start, start + t.element_size() * reach(t.shape, t.stride()), at, t, written)


def clash(places: Sequence[Place]) -> tuple[int, int] | None:
    """Two inputs that share memory, of which one is written, the written one first."""
    active: list[Place] = []
    for here in sorted(places, key=lambda p: (p.start, p.at)):
        active = [p for p in active if p.end > here.start]
        for other in active:
            if (here.written or other.written) and not separate(here.tensor, other.tensor):
                return (here.at, other.at) if here.written else (other.at, here.at)
        active.append(here)
    return None


def one_storage(tensors: Iterable[tuple[torch.Tensor, bool]]) -> bool:
    """Whether a tensor that is written is in one storage with one that is not. Torch counts the writes to both together, also
    where they share no element, and takes each for an edit of what was saved of the other."""
    ids: tuple[set[int], set[int]] = set(), set()
    for t, written in tensors:
        ids[written].add(storage_id(t.untyped_storage()))
    return not ids[0].isdisjoint(ids[1])


class Apart:
    """The guard. ``held``: tensors that the guard itself holds, each with whether it is written; ``states``: positions among
    those of an optimizer, which tells when they are exchanged. ``loose``: whether each tensor of a call is written. ``alone``:
    what is written has storages of its own, too."""

    def __init__(
        self,
        held: Sequence[tuple[torch.Tensor, bool]],
        states: Sequence[tuple[StepInputs, int, bool]],
        loose: Sequence[bool],
        alone: bool = False,
    ) -> None:
        self._alone = alone
        self._held, self._states, self._loose = tuple(held), tuple(states), tuple(loose)
        self._writes = any(loose)
        self._moves: list[int] = []
        self._places: list[Place] = []
        self._starts: list[int] = []
        self._ends: list[int] = []

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these, and what is held, share no memory that is written."""
        moves = [inputs.moves for inputs, _, _ in self._states]
        if moves != self._moves or not self._places:
            self._look(moves)
        given = zip(tensors, self._loose, strict=True)
        if self._alone and one_storage([*((p.tensor, p.written) for p in self._places), *given]):
            return False
        here = [place(-1 - i, t, w) for i, (t, w) in enumerate(zip(tensors, self._loose, strict=True))]
        if self._writes:
            return clash([*self._places, *here]) is None
        near = [p for p in here if not self._is_clear(p)]
        return not near or clash([*(p for p in self._places if p.written), *near]) is None

    def _look(self, moves: list[int]) -> None:
        exchanged = [(inputs.states[i], written) for inputs, i, written in self._states]
        self._places = [place(i, t, w) for i, (t, w) in enumerate((*self._held, *exchanged))]
        written = sorted((p for p in self._places if p.written), key=lambda p: p.start)
        self._starts, self._ends, end = [p.start for p in written], [], 0
        for p in written:
            end = max(end, p.end)
            self._ends.append(end)
        self._moves = moves

    def _is_clear(self, p: Place) -> bool:
        """Whether no held tensor that is written begins before its end and ends behind its start."""
        before = bisect.bisect_left(self._starts, p.end)
        return before == 0 or self._ends[before - 1] <= p.start


def apart_from_arrays(tensors: Sequence[torch.Tensor], arrays: Sequence[np.ndarray]) -> bool:
    """Whether tensors lie outside the memory, from its first byte to its last, that numpy arrays show."""
    places = [place(0, t, written=True) for t in tensors if t.device.type == "cpu"]
    bounds = [np.lib.array_utils.byte_bounds(a) for a in arrays]
    return all(p.end <= low or high <= p.start for p in places for low, high in bounds)
