"""What integer expressions are made of: symbols with ranges, and calls; and the numeric ranges that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from tinycompile.base.expr import Dim


@dataclass(frozen=True, slots=True)
class Sym:
    """A named integer, ``lo <= value < stop``; ``stop`` None means unbounded. Order is by name alone."""

    name: str
    lo: int = 0
    stop: Dim | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.lo, self.stop)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """``fn`` is one of ``//``, ``%``, ``min``, ``max``; the divisor of ``//`` and ``%`` is positive."""

    fn: str
    lhs: Dim
    rhs: Dim
    _hash: int = field(init=False, repr=False, compare=False, default=0)
    _text: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.lhs, self.rhs)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if not self._text:  # terms are sorted by it
            plain = self.fn in ("min", "max")
            text = f"{self.fn}({self.lhs}, {self.rhs})" if plain else f"({_wrap(self.lhs)} {self.fn} {_wrap(self.rhs)})"
            object.__setattr__(self, "_text", text)
        return self._text

    @property
    def key(self) -> str:
        return str(self)


Atom = Union[Sym, Call]
Monomial = tuple[Atom, ...]


def _wrap(d: Dim) -> str:
    return str(d) if isinstance(d, int) or (len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1) else f"({d})"


def numeric_range(d: Dim) -> tuple[int | None, int | None]:
    """Inclusive numeric bounds ``(low, high)``; None where unbounded or unknown."""
    if isinstance(d, int):
        return d, d
    low: int | None = 0
    high: int | None = 0
    for mono, coeff in d.terms:
        lo, hi = _mono_range(mono)
        lo, hi = (_scale(lo, coeff), _scale(hi, coeff)) if coeff > 0 else (_scale(hi, coeff), _scale(lo, coeff))
        low = None if low is None or lo is None else low + lo
        high = None if high is None or hi is None else high + hi
    return low, high


def _scale(v: int | None, by: int) -> int | None:
    return None if v is None else v * by


def _mono_range(mono: Monomial) -> tuple[int | None, int | None]:
    lo, hi = 1, 1  # type: int, int | None
    for atom in mono:
        a, b = atom_range(atom)
        if a is None or a < 0:
            return _mixed(mono)
        lo, hi = lo * a, None if hi is None or b is None else hi * b
    return lo, hi


def _mixed(mono: Monomial) -> tuple[int | None, int | None]:
    if len(mono) == 1:
        return atom_range(mono[0])
    bounds = [atom_range(a) for a in mono]
    if any(a is None or b is None for a, b in bounds):
        return None, None
    corners = [1]
    for a, b in bounds:
        corners = [c * v for c in corners for v in (a, b) if v is not None]
    return min(corners), max(corners)


def atom_range(atom: Atom) -> tuple[int | None, int | None]:
    """As :func:`numeric_range`."""
    if isinstance(atom, Sym):
        top = None if atom.stop is None else numeric_range(atom.stop)[1]
        return atom.lo, None if top is None else top - 1
    (alo, ahi), (blo, bhi) = numeric_range(atom.lhs), numeric_range(atom.rhs)
    if atom.fn == "%":
        top = None if bhi is None else max(bhi, 1) - 1
        if alo is not None and alo >= 0 and ahi is not None:
            top = ahi if top is None else min(top, ahi)
        return 0, top
    if atom.fn == "//":
        blo, bhi = max(blo or 1, 1), None if bhi is None else max(bhi, 1)  # a divisor is positive, whatever its range shows
        lo = None if alo is None else (0 if bhi is None else alo // bhi) if alo >= 0 else alo // blo
        hi = None if ahi is None else ahi // blo if ahi >= 0 else (-1 if bhi is None else ahi // bhi)
        return lo, hi
    if atom.fn == "min":
        known = [v for v in (ahi, bhi) if v is not None]
        return (None if alo is None or blo is None else min(alo, blo)), (min(known) if known else None)
    known = [v for v in (alo, blo) if v is not None]
    return (max(known) if known else None), (None if ahi is None or bhi is None else max(ahi, bhi))
