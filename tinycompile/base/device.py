"""``Device``: a type and an index in four bytes. A description, not a move."""

from __future__ import annotations

from typing import Any

import torch

from tinycompile.base import torch_private

# torch's own numbers (c10/core/DeviceType.h), so that a packed device means the same on both sides.
DEVICE_TYPES: tuple[str, ...] = (
    "cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan", "metal", "xpu", "mps",
    "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone",
)  # fmt: skip
_CODE = {name: code for code, name in enumerate(DEVICE_TYPES)}
_PRIVATE = _CODE["privateuseone"]
_NAMES = dict(enumerate(DEVICE_TYPES))  # as :meth:`Device.unpack` gives them


def rename_privateuse1(name: str) -> None:
    """Another name for ``privateuseone``, as by ``torch.utils.rename_privateuse1_backend``; the old one stays known."""
    _CODE[name], _NAMES[_PRIVATE] = _PRIVATE, name


class Device(str):
    """A device type's name and an index; index -1 means "unspecified". ``str()`` is torch's spelling.

    It is that text, so torch takes one wherever it takes a device (``torch.zeros(3, device=x.device)``), and it equals torch's
    object for the same device; like that, it equals no other text."""

    __slots__ = ("_hash", "index", "type")
    _hash: int | None
    type: str
    index: int  # type: ignore[assignment]  # in place of str.index

    def __new__(cls, type: str | torch.device, index: int = -1) -> Device:
        """As torch's: ``Device("cuda")``, ``Device("cuda", 1)``, ``Device("cuda:1")``, ``Device(x.device)``. Raises
        RuntimeError for an unknown type or for an index that is out of range or given twice, TypeError for what names no
        device."""
        if isinstance(type, (Device, torch.device)) and index < 0:
            return cls.of(type)
        if not isinstance(type, str) or isinstance(type, Device):
            raise TypeError(f"Device(): argument 'type' (position 1) must be str, not {type.__class__.__name__}")
        if ":" in type:
            if index >= 0:
                raise RuntimeError(f"type (string) must not include an index because index was passed explicitly: {type}")
            return cls.of(type)
        if __debug__:
            if type not in _CODE:
                raise RuntimeError(
                    f"Expected one of {', '.join(_NAMES.values())} device type at start of device string: {type}"
                )
            if not -1 <= index <= 127:
                raise RuntimeError(f"Device index must be -1 or between 0 and 127, got {index}")
        made = str.__new__(cls, type if index < 0 else f"{type}:{index}")
        for name, value in (("type", type), ("index", index), ("_hash", None)):
            object.__setattr__(made, name, value)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Device can't be changed: {name}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Device):
            return self.type == other.type and self.index == other.index
        return isinstance(other, torch.device) and self.type == other.type and self.index == _index(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", _hash_of(self.type, self.index))
        return self._hash  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"Device(type={self.type!r}, index={self.index})"

    def __reduce__(self) -> Any:
        return Device, (self.type, self.index)

    @classmethod
    def of(cls, device: Device | torch.device | str | int) -> Device:
        """From torch's device, a string such as ``"cuda:1"``, or a CUDA index."""
        if isinstance(device, Device):
            return device
        given = torch.device(device)
        name = given.type if given.type in DEVICE_TYPES else _NAMES[_CODE.get(given.type, _PRIVATE)]
        return cls(name, _index(given))

    def torch(self) -> torch.device:
        """The same device as torch's object."""
        return torch.device(self.type) if self.index < 0 else torch.device(self.type, self.index)

    def pack(self) -> bytes:
        """Two little-endian int16: type, index."""
        return _CODE[self.type].to_bytes(2, "little") + self.index.to_bytes(2, "little", signed=True)

    @classmethod
    def unpack(cls, data: bytes) -> Device:
        """The inverse of :meth:`pack`."""
        return cls(_NAMES[int.from_bytes(data[:2], "little")], int.from_bytes(data[2:4], "little", signed=True))

    def __str__(self) -> str:
        return self.type if self.index < 0 else f"{self.type}:{self.index}"


def default_device() -> Device:
    """torch's, with its index. torch makes a tensor there to learn that, and has none on a registered device."""
    named = torch_private.named_default_device()
    if named is not None and _CODE.get(named.type) == _PRIVATE:
        return Device(named.type, max(_index(named), 0))
    return Device.of(torch.get_default_device())


def _index(device: torch.device) -> int:
    return -1 if device.index is None else device.index


def _hash_of(type: str, index: int) -> int:
    """That of torch's equal object; torch has none under a name that only we know."""
    try:
        return hash(torch.device(type) if index < 0 else torch.device(type, index))
    except RuntimeError:
        return hash((type, index))
