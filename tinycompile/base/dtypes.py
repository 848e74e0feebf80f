"""Facts about dtypes, which are torch's objects."""

from __future__ import annotations

import functools
import math

import torch

HALF: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16})
FLOAT8: frozenset[torch.dtype] = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
NARROW: frozenset[torch.dtype] = HALF | FLOAT8  # in memory alone: no arithmetic is done on them but in float32
FLOAT: frozenset[torch.dtype] = HALF | {torch.float32, torch.float64}
INTEGER: frozenset[torch.dtype] = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
COMPLEX: frozenset[torch.dtype] = frozenset({torch.complex32, torch.complex64, torch.complex128})
COMPILED: frozenset[torch.dtype] = FLOAT | INTEGER | {torch.bool}  # what generated kernels compute with; the rest is extern


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a kernel computes: float32 for half types, else the dtype itself."""
    return torch.float32 if dtype in HALF else dtype


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a sum's running value: int64 for integers and bool, else :func:`opmath`."""
    return torch.int64 if dtype in INTEGER or dtype is torch.bool else opmath(dtype)


@functools.cache
def e4m3fn_overflow() -> int:
    """The bits that torch gives what is too large for float8_e4m3fn: those of NaN, or from 2.13 on of the largest number."""
    return int(torch.tensor(math.inf).to(torch.float8_e4m3fn).view(torch.uint8))


def name_of(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def by_name(name: str) -> torch.dtype:
    """``torch.float32`` for ``float32`` or ``torch.float32``. Raises ValueError for anything else."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found
