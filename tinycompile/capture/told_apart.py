"""What tells constants apart where ``==`` does not: it takes some for one that mean something else, and no NaN for itself."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tinycompile.capture.trust import module_of

_unit, _bytes = np.generic.dtype.__get__, np.generic.tobytes  # (no property of a class of the program's)
_LIMITS = (np.iinfo, np.finfo)  # each is equal to itself alone, and what numpy makes anew may be another


def bits_of(scalar: np.generic) -> tuple[str, bytes]:
    """What tells one of numpy's scalars from all others of its class: its dtype, which has the unit of a time, and its bits."""
    return _unit(scalar).str, _bytes(scalar)


def parts_of(number: complex) -> bytes:
    """What tells a complex number from all others: its parts, with the signs of zeros and NaNs."""
    return struct.pack("<dd", number.real, number.imag)


def facts_of(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """What tells one of numpy's dtypes from all others that have no metadata, of which ``==`` knows nothing: so it does of
    numbers of two names and one size, and of the alignment of a record."""
    fields: Any = dtype.fields or {}
    inside = tuple((name, *fields[name][1:], facts_of(fields[name][0])) for name in dtype.names or ())
    whole = None if dtype.subdtype is None else (facts_of(dtype.subdtype[0]), dtype.subdtype[1])
    return type(dtype), dtype.str, dtype.char, dtype.isalignedstruct, dtype.metadata is not None, inside, whole


def has_metadata(dtype: np.dtype[Any]) -> bool:
    """Whether the program said something of its own of a dtype, or of one in it."""
    parts = [field[0] for field in (dtype.fields or {}).values()] + ([dtype.subdtype[0]] if dtype.subdtype else [])
    return dtype.metadata is not None or any(map(has_metadata, parts))


def is_itself_alone(key: Any) -> bool:
    """Whether a plain key of a dict or a set is found by its identity: it equals no other, or not even itself."""
    if type(key) is tuple:
        return any(map(is_itself_alone, key))
    is_number = type(key) in (float, complex) or (issubclass(type(key), np.generic) and module_of(type(key)) == "numpy")
    return type(key) in _LIMITS or (is_number and bool(key != key))
