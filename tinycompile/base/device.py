"""``Device``: a type and an index in four bytes. A description, not a move."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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


@dataclass(frozen=True, slots=True)
class Device:
    """A device type's name and an index; index -1 means "unspecified". ``str()`` is torch's spelling."""

    type: str
    index: int = -1

    def __post_init__(self) -> None:
        if __debug__:
            if self.type not in _CODE:
                raise RuntimeError(
                    f"Expected one of {', '.join(_NAMES.values())} device type at start of device string: {self.type}"
                )
            if not -1 <= self.index <= 127:
                raise RuntimeError(f"Device index must be -1 or between 0 and 127, got {self.index}")

    @classmethod
    def of(cls, device: Device | torch.device | str | int) -> Device:
        """From torch's device, a string such as ``"cuda:1"``, or a CUDA index."""
        if isinstance(device, Device):
            return device
        given = torch.device(device)
        name = given.type if given.type in DEVICE_TYPES else _NAMES[_CODE.get(given.type, _PRIVATE)]
        return cls(name, -1 if given.index is None else given.index)

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
