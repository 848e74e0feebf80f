"""Dispatch keys and sets of them. A key set is an int with one bit a key; the highest bit runs first."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum


class Key(IntEnum):
    """In order of priority, the lowest first: a greater key runs before a smaller one."""

    PRIVATEUSE1 = 0
    META = 1
    CUDA = 2
    CPU = 3
    TRACING = 4
    FUNCTIONALIZE = 5
    BATCHED = 6
    AUTOGRAD = 7
    AUTOCAST = 8
    OUTLINE = 9

    @property
    def bit(self) -> int:
        """The key's bit in a key set."""
        return 1 << self


class KeySet(int):
    """A set of keys. Any int bitmask can be made one; set operations give plain ints, so that hot paths stay cheap."""

    __slots__ = ()

    @classmethod
    def of(cls, *keys: Key) -> KeySet:
        """The set of these keys."""
        mask = 0
        for key in keys:
            mask |= 1 << key
        return cls(mask)

    def __contains__(self, key: Key) -> bool:
        return bool(self >> key & 1)

    def __iter__(self) -> Iterator[Key]:
        """The keys, the first to run first."""
        return (key for key in _DESCENDING if self >> key & 1)

    def __len__(self) -> int:
        return self.bit_count()

    def add(self, key: Key) -> KeySet:
        """With ``key``."""
        return KeySet(self | 1 << key)

    def remove(self, key: Key) -> KeySet:
        """Without ``key``."""
        return KeySet(self & ~(1 << key))

    def below(self, key: Key) -> KeySet:
        """Only the keys that run after ``key``: where a kernel of ``key`` redispatches to."""
        return KeySet(self & ((1 << key) - 1))

    def highest(self) -> Key:
        """The key that runs first. Raises ValueError when the set is empty."""
        if not self:
            raise ValueError("an empty key set has no highest key")
        return Key(self.bit_length() - 1)

    def __str__(self) -> str:
        return "{" + ", ".join(key.name for key in self) + "}"

    __repr__ = __str__


_DESCENDING = tuple(sorted(Key, reverse=True))
ALL = KeySet.of(*Key)
BACKENDS = KeySet.of(Key.CPU, Key.CUDA, Key.META, Key.PRIVATEUSE1)

_BACKEND_OF = {"cpu": Key.CPU, "cuda": Key.CUDA, "hip": Key.CUDA, "meta": Key.META}


def backend_key(device_type: str) -> Key:
    """The backend of a device type; types without a key of their own are PRIVATEUSE1."""
    return _BACKEND_OF.get(device_type, Key.PRIVATEUSE1)
