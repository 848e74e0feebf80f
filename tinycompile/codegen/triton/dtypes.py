"""Names and extremes of dtypes in Triton."""

from __future__ import annotations

import torch

HALF = frozenset({torch.float16, torch.bfloat16})

_NAMES = {
    torch.bool: "int1", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.uint8: "uint8", torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64",
    torch.float8_e4m3fn: "uint8", torch.float8_e5m2: "uint8",  # as their bits: no card before Hopper has them
}  # fmt: skip


def triton_dtype(dtype: torch.dtype) -> str:
    """``tl.float32`` and so on. Raises KeyError for what Triton lacks (complex, quantised)."""
    return "tl." + _NAMES[dtype]


def supported(dtype: torch.dtype) -> bool:
    """Whether Triton has the dtype."""
    return dtype in _NAMES


def short_name(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def is_float(dtype: torch.dtype) -> bool:
    """Floating point."""
    return dtype.is_floating_point


def lowest(dtype: torch.dtype) -> float | int:
    """The identity of max."""
    return float("-inf") if is_float(dtype) else 0 if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float | int:
    """The identity of min."""
    return float("inf") if is_float(dtype) else 1 if dtype == torch.bool else torch.iinfo(dtype).max
