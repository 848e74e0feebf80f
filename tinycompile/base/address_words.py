"""Whether many tensors still begin where they began, by words of memory as in ``tensor_words.py``.

Where a tensor's data begins stands in three places, each of which points to the next: the Python object (which tensor it stands
for), ``c10::TensorImpl`` (its storage, and its offset there) and ``c10::StorageImpl`` (the address of the memory). 148 tensors
take 2 us so, where torch's own comparison of their addresses takes 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinycompile.base import words
from tinycompile.base.tensor_words import LAYOUT
from tinycompile.base.torch_private import BulkAlignment
from tinycompile.base.words import WORD

_STORAGE = 6  # words that are looked through


@dataclass(frozen=True)
class Place:
    """Positions of words. ``impl``: in the Python object, the pointer to the tensor. There: ``storage`` and ``offset``, the
    pointer to the storage and the number of elements before the first. ``data``: the address, in the storage."""

    impl: int
    storage: int
    offset: int
    data: int


def _place() -> Place | None:
    """Where the words lie in this build of torch; None where they are not found."""
    if LAYOUT is None:
        return None
    probe = torch.empty(2003, device="cpu")[977:]
    storage = probe.untyped_storage()
    inside, memory = words.read(probe._cdata, LAYOUT.keys), words.read(storage._cdata, _STORAGE)
    if inside.count(storage._cdata) != 1 or inside.count(977) != 1 or storage.data_ptr() not in memory:
        return None  # (the address stands before what is to be freed, which may be the same)
    return Place(LAYOUT.impl, inside.index(storage._cdata), inside.index(977), memory.index(storage.data_ptr()))


PLACE = _place()  # (now: a transform that is going on when it is first needed would get in the way)


def _stands_there(t: torch.Tensor, at: Place) -> bool:
    """Whether what a tensor says of itself stands where it is looked for."""
    if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout is not torch.strided:
        return False
    if words.read(id(t), at.impl + 1)[-1] != t._cdata:
        return False
    storage, inside = t.untyped_storage(), words.read(t._cdata, max(at.storage, at.offset) + 1)
    told = inside[at.storage], inside[at.offset], words.read(storage._cdata, at.data + 1)[-1]
    return told == (storage._cdata, t.storage_offset(), storage.data_ptr())


class WatchedAddresses:
    """Calling it tells whether the tensors begin where they began when it was made. Each place is looked into only after the
    pointer to it was found to be the same, so it is alive."""

    __slots__ = ("_first", "_readers", "_tensors")

    def __init__(self, tensors: Sequence[torch.Tensor], at: Place) -> None:
        self._tensors = tuple(tensors)
        self._readers = (
            words.reader([id(t) + at.impl * WORD for t in tensors]),
            words.reader([t._cdata + i * WORD for t in tensors for i in (at.storage, at.offset)]),
            words.reader([t.untyped_storage()._cdata + at.data * WORD for t in tensors]),
        )
        self._first = tuple(read() for read in self._readers)

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> WatchedAddresses | None:
        """None where words do not tell."""
        at = PLACE
        return cls(tensors, at) if at is not None and all(_stands_there(t, at) for t in tensors) else None

    def __call__(self) -> bool:
        return all(read() == first for read, first in zip(self._readers, self._first, strict=True))


class WatchedAlignment:
    """As :class:`BulkAlignment`. Tensors whose words have not changed are not looked at; where words change again and again,
    all are at each call."""

    _PATIENCE = 4

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors, self._every = tuple(tensors), BulkAlignment(tensors)
        self._same: WatchedAddresses | None = None
        self._looks = 0

    def check(self) -> bool:
        """Whether all begin at multiples of 16 bytes, as they did when this was made."""
        return (self._same is not None and self._same()) or self._look()

    def _look(self) -> bool:
        now = WatchedAddresses.of(self._tensors) if self._looks < self._PATIENCE else None  # before the look
        if not self._every.check():
            return False
        self._looks += 1
        self._same = now
        return True
