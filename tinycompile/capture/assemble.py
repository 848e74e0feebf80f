"""Encode CPython 3.11 to 3.13 bytecode: instructions with their caches, exception tables, line tables.

Needs nothing but the standard library."""

from __future__ import annotations

import opcode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from tinycompile.capture.bytecode import ExceptionEntry, exception_table

UNIT = 2  # bytes of one code unit
Position = tuple[int | None, int | None, int | None, int | None]  # line, end line, column, end column


def cache_units(name: str) -> int:
    """How many inline cache entries follow an instruction."""
    table: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]  # by number up to 3.12, by name after
    return table.get(name, 0) if isinstance(table, dict) else table[opcode.opmap[name]]


def encode(name: str, arg: int | None = None, extended: int = 0) -> bytes:
    """One instruction with its EXTENDED_ARGs (at least so many) and empty caches."""
    arg = arg or 0
    high = [arg >> 24 & 255, arg >> 16 & 255, arg >> 8 & 255]
    while len(high) > extended and not high[0]:
        del high[0]
    prefix = b"".join(bytes((opcode.EXTENDED_ARG, b)) for b in high)
    return prefix + bytes((opcode.opmap[name], arg & 255)) + bytes(UNIT * cache_units(name))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some instructions that belong to one place in the source; to none without ``position``."""

    data: bytes
    position: Position | None = None


def prepend(code: CodeType, chunks: Sequence[Chunk], protected: Iterable[ExceptionEntry], **changes: Any) -> CodeType:
    """``code`` with ``chunks`` before its instructions. Jumps are relative, so only the tables shift.

    ``protected``: rows for the new instructions; their targets are offsets in ``code`` as it was."""
    data = b"".join(c.data for c in chunks)
    shift = len(data)
    own = [ExceptionEntry(r.start, r.end, r.target + shift, r.depth, r.lasti) for r in protected]
    moved = [ExceptionEntry(r.start + shift, r.end + shift, r.target + shift, r.depth, r.lasti) for r in exception_table(code)]
    return code.replace(
        co_code=data + code.co_code,
        co_exceptiontable=encode_exceptions([*own, *moved]),
        co_linetable=b"".join(_locations(chunks, code.co_firstlineno)) + code.co_linetable,
        **changes,
    )


# --- tables -------------------------------------------------------------------------------------------------


def encode_exceptions(rows: Iterable[ExceptionEntry]) -> bytes:
    """``co_exceptiontable``: big-endian groups of six bits, the first of a row marked with bit 7."""
    out = bytearray()
    for row in rows:
        first = len(out)
        for value in (row.start // 2, (row.end - row.start) // 2, row.target // 2, row.depth << 1 | row.lasti):
            groups = [value & 63]
            while value := value >> 6:
                groups.append(value & 63 | 64)
            out += bytes(reversed(groups))
        out[first] |= 128
    return bytes(out)


_NO_LOCATION, _LONG, _NO_COLUMNS = 15, 14, 13
_MOST_UNITS = 8  # that one entry covers


def _locations(chunks: Sequence[Chunk], first_line: int) -> Iterator[bytes]:
    """Rows of ``co_linetable`` for the chunks. Lines count from the row before: the last chunk goes back to where they began,
    so that the rows that follow stay right."""
    line = first_line
    for chunk in chunks:
        units, position = len(chunk.data) // UNIT, chunk.position
        if position is None or position[0] is None:
            if chunk is chunks[-1] and line != first_line:
                yield _head(_NO_COLUMNS, 1) + _signed(first_line - line)
                units, line = units - 1, first_line
            yield from (_head(_NO_LOCATION, n) for n in _split(units))
            continue
        start, end, column, end_column = position
        assert start is not None
        for n in _split(units):
            more = _unsigned((end or start) - start), _unsigned(_after(column)), _unsigned(_after(end_column))
            yield _head(_LONG, n) + _signed(start - line) + b"".join(more)
            line = start


def _split(units: int) -> Iterator[int]:
    while units > 0:
        yield min(units, _MOST_UNITS)
        units -= _MOST_UNITS


def _head(kind: int, units: int) -> bytes:
    return bytes((128 | kind << 3 | units - 1,))


def _after(column: int | None) -> int:
    return 0 if column is None else column + 1


def _unsigned(value: int) -> bytes:
    """Little-endian groups of six bits."""
    out = bytearray()
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    return bytes((*out, value))


def _signed(value: int) -> bytes:
    return _unsigned(-value << 1 | 1 if value < 0 else value << 1)
