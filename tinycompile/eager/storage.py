"""``Storage``: flat bytes on a device, shared by every view of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from tinycompile.base.device import Device
from tinycompile.base.holdings import tell_holdings
from tinycompile.base.torch_private import storage_id


class Writes:
    """How often somebody wrote in place, as one group of tensors counts it. Torch counts writes to its own memory."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count


class Storage:
    """``nbytes`` bytes on ``device``. On ``meta`` there is a size but no data.

    Storages over the same memory of torch's are one object: ``a.storage is b.storage`` asks whether two tensors share memory.
    Of memory of a registered device: ``changes`` is how often it was written to, ``writes`` counts that for the tensors on it
    but for those that were split off by ``.data``.
    """

    __slots__ = ("__weakref__", "_bytes", "_memory", "_nbytes", "changes", "device", "writes")

    def __init__(self, nbytes: int, device: Device | str = "cpu") -> None:
        """Uninitialised bytes."""
        if nbytes < 0:
            raise RuntimeError(f"a Storage can't have {nbytes} bytes")
        self.device = Device.of(device)
        self._nbytes, self.changes, self.writes = nbytes, 0, Writes()
        self._bytes: torch.UntypedStorage | None = None
        self._memory: Any = None
        try:
            self._allocate()
        except (RuntimeError, MemoryError) as error:
            tell_holdings(error)
            raise

    def _allocate(self) -> None:
        allocate = ALLOCATORS.get(self.device.type)
        if allocate is not None:
            self._memory = allocate(self._nbytes, max(self.device.index, 0))
        elif self.device.type != "meta":
            self._bytes = torch.empty(self._nbytes, dtype=torch.uint8, device=self.device.torch()).untyped_storage()
            _known[storage_id(self._bytes)] = self

    def grow(self, nbytes: int) -> None:
        """More memory of a registered device, uninitialised, for all tensors on it."""
        self._memory, self._nbytes = ALLOCATORS[self.device.type](nbytes, max(self.device.index, 0)), nbytes

    @classmethod
    def of(cls, untyped: torch.UntypedStorage) -> Storage:
        """The Storage over torch's bytes: the same object for as long as somebody holds it."""
        key = storage_id(untyped)
        known = _known.get(key)
        if known is not None and known._bytes is not None:
            return known
        made = cls.__new__(cls)
        made.device, made._nbytes, made._bytes = Device.of(untyped.device), untyped.nbytes(), untyped
        made._memory, made.changes, made.writes = None, 0, Writes()
        _known[key] = made
        return made

    @property
    def nbytes(self) -> int:
        """The size in bytes, as it is now (torch can resize)."""
        return self._nbytes if self._bytes is None else self._bytes.nbytes()

    @property
    def untyped(self) -> torch.UntypedStorage:
        """torch's object on these bytes. Raises NotImplementedError on meta and on registered devices."""
        if self._memory is not None:
            raise NotImplementedError(f"torch has no tensors on {self.device}: copy it with .cpu() first")
        if self._bytes is None:
            raise NotImplementedError("Cannot access the data of a meta storage; no data!")
        return self._bytes

    @property
    def key(self) -> int:
        """The same for all Storages over the same memory, for as long as it lives."""
        return id(self) if self._bytes is None else storage_id(self._bytes)

    @property
    def memory(self) -> Any:
        """What the allocator of a registered device returned; None elsewhere."""
        return self._memory

    def data_ptr(self) -> int:
        """The address of the first byte; 0 on meta and on registered devices."""
        return 0 if self._bytes is None else self._bytes.data_ptr()

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        return f"Storage({self.nbytes} bytes on {self.device})"


# Of registered devices, by name: ``allocate(nbytes, index)`` returns memory, which may be any object.
ALLOCATORS: dict[str, Callable[[int, int], Any]] = {}
_known: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
