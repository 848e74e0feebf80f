"""Launches that overlap: in a recorded CUDA graph a kernel may begin while the one before it ends.

CUDA calls this programmatic dependent launch. The launch carries an attribute, which becomes an edge of another kind in the
graph, and the kernel waits for the one before it by an instruction (``codegen/triton/library_overlap.py``). So the next
kernel's programs are in place, and its weights on their way, when the last results are written. Needs sm_90 and a driver of
CUDA 12.3.

Only recordings are launched so, through the driver's API: it takes some 10 us of the host, once. A kernel whose predecessor is
a library's begins when that has ended, as always.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from tinycompile.base.target import Target

SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
NEEDED_DRIVER = 12030  # the first whose graphs have such edges
_C_TYPES = {"O": ctypes.c_void_p, "i": ctypes.c_int32, "l": ctypes.c_int64}


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: its value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("allowed", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def _driver() -> Any:
    """The driver's library, or None where it is missing or too old."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        known = driver.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value >= NEEDED_DRIVER
        return driver if known and driver.cuLaunchKernelEx else None
    except (OSError, AttributeError):
        return None


def possible(target: Target) -> bool:
    """Whether kernels for a GPU can overlap."""
    return int(target.arch.removeprefix("sm_")) >= 90 and _driver() is not None


def launch(
    function: int, x: int, y: int, z: int, warps: int, shared: int, types: str, arguments: Sequence[int | None], stream: int
) -> None:
    """As torch's launcher of cubins, with leave to begin early. ``types``: per argument ``O`` an address, ``i`` and ``l`` an
    int of 32 and 64 bits. Raises RuntimeError with the driver's number."""
    values = [_C_TYPES[kind](value or 0) for kind, value in zip(types, arguments, strict=True)]
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    attribute = _Attribute(SERIALIZATION, 0, 1)
    config = _Config(x, y, z, 32 * warps, 1, 1, shared, stream, ctypes.pointer(attribute), 1)
    code = _driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), pointers, None)
    if code != 0:
        raise RuntimeError(f"a launch that overlaps failed: CUDA driver error {code}")
