"""Integer algebra for shapes and indices: polynomials over symbols, with floordiv, mod, min, max and ranges.

A value is a plain ``int`` or an :class:`Expr`; no wrapped integers exist, so ``isinstance(d, int)`` asks "is it static?".
An ``Expr`` is a canonical polynomial: a sorted tuple of ``(monomial, coefficient)`` where a monomial is a sorted tuple of
atoms (``atoms.py``): symbols, and calls of ``//``, ``%``, ``min`` and ``max``.
Equal values built in different orders are equal objects, which is what makes index maps comparable.

Everything is frozen and hashable, and ``str()`` of any value is valid Python.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Union

from tinycompile.base.atoms import Atom, Call, Monomial, Sym, atom_range, numeric_range

Dim = Union[int, "Expr"]


@dataclass(frozen=True, slots=True)
class Expr:
    """A non-constant polynomial with integer coefficients. Build with operators, :func:`sym` or :func:`from_terms`."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))  # nested expressions are hashed all the time

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        merged = dict(self.terms)
        for mono, coeff in terms_of(other):
            merged[mono] = merged.get(mono, 0) + coeff
        return from_terms(merged)

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        merged: dict[Monomial, int] = {}
        right = terms_of(other)
        for a, ca in self.terms:
            for b, cb in right:
                mono = tuple(sorted(a + b, key=lambda t: t.key))
                merged[mono] = merged.get(mono, 0) + ca * cb
        return from_terms(merged)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __str__(self) -> str:
        return " + ".join(_term_str(m, c) for m, c in self.terms).replace("+ -", "- ")

    __repr__ = __str__

    def __int__(self) -> int:
        raise TypeError(f"{self} is symbolic: it has no one integer value here")

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self} is not known here; use shapes.known() or shapes.same()")


def _term_str(mono: Monomial, coeff: int) -> str:
    body = "*".join(str(a) for a in mono)
    if not body:
        return str(coeff)
    return body if coeff == 1 else f"-{body}" if coeff == -1 else f"{coeff}*{body}"


def _mono_key(mono: Monomial) -> tuple[bool, tuple[str, ...]]:
    return (not mono, tuple(a.key for a in mono))  # the constant comes last: "i*4 + j + 1"


def terms_of(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The terms of an int or Expr; () for zero."""
    if isinstance(d, int):
        return (((), int(d)),) if d else ()
    return d.terms


def from_terms(terms: Mapping[Monomial, int]) -> Dim:
    """Canonicalise; returns an int when nothing symbolic is left."""
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1:
        return Expr((kept[0],)) if kept[0][0] else kept[0][1]
    if any(type(atom) is Call for mono, _ in kept for atom in mono):
        whole = _recombined(dict(kept))
        if whole is not None:
            return from_terms(whole)
    return Expr(tuple(sorted(kept, key=lambda t: _mono_key(t[0]))))


def _recombined(terms: dict[Monomial, int]) -> dict[Monomial, int] | None:
    """``(a // n)*n + a % n`` is ``a``: what is left after undoing one such split, or None when there is none."""
    for mono, coeff in terms.items():
        for at, atom in enumerate(mono):
            if not isinstance(atom, Call) or atom.fn != "%":
                continue
            rest = from_terms({mono[:at] + mono[at + 1 :]: coeff})
            high = terms_of(floordiv(atom.lhs, atom.rhs) * atom.rhs * rest)
            if high and all(terms.get(m) == c for m, c in high if any(isinstance(a, Call) for a in m)):
                left = dict(terms)
                for m, c in (*high, (mono, coeff)):
                    left[m] = left.get(m, 0) - c
                for m, c in terms_of(atom.lhs * rest):
                    left[m] = left.get(m, 0) + c
                return left
    return None


def sym(name: str, lo: int = 0, stop: Dim | None = None) -> Expr:
    """A symbol as a value. A size symbol has ``lo=2`` (0 and 1 are specialised); an axis has ``lo=0, stop=extent``."""
    return Expr((((Sym(name, lo, stop),), 1),))


def as_sym(d: Dim) -> Sym | None:
    """The symbol if ``d`` is exactly one symbol, else None."""
    if isinstance(d, Expr) and len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1:
        atom = d.terms[0][0][0]
        return atom if isinstance(atom, Sym) else None
    return None


def _call(fn: str, lhs: Dim, rhs: Dim) -> Dim:
    return Expr((((Call(fn, lhs, rhs),), 1),))


def _exact_quotient(mono: Monomial, coeff: int, den: Dim) -> tuple[Monomial, int] | None:
    """``coeff*mono / den`` when the division is exact, for ``den`` a single term; else None."""
    den_terms = terms_of(den)
    if len(den_terms) != 1:
        return None
    den_mono, den_coeff = den_terms[0]
    if coeff % den_coeff:
        return None
    rest = list(mono)
    for atom in den_mono:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest), coeff // den_coeff


def _split(num: Dim, den: Dim) -> tuple[Dim, Dim]:
    """``num == quotient * den + rest`` with every exactly divisible term in the quotient."""
    if num == den:
        return 1, 0
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for mono, coeff in terms_of(num):
        exact = _exact_quotient(mono, coeff, den)
        if exact is None:
            rest[mono] = coeff
        else:
            quotient[exact[0]] = quotient.get(exact[0], 0) + exact[1]
    if isinstance(den, int) and isinstance(rest_const := rest.get((), 0), int) and rest_const:
        whole, rest[()] = divmod(rest_const, den)
        quotient[()] = quotient.get((), 0) + whole
    return from_terms(quotient), from_terms(rest)


def _factors(num: Dim, den: Dim) -> list[Dim]:
    """Proper factors of a divisor worth a try: integers it shares with a coefficient of ``num``, and atoms of its monomial."""
    content = math.gcd(*(coeff for _, coeff in terms_of(den)))
    shared: list[Dim] = [math.gcd(content, coeff) for mono, coeff in terms_of(num) if mono]
    atoms: list[Dim] = [_atom_expr(a) for a in terms_of(den)[0][0]] if len(terms_of(den)) == 1 else []
    return [f for f in dict.fromkeys(shared + atoms) if f not in (1, den)]


def _peel(num: Dim, den: Dim) -> tuple[Dim, Dim, Dim, Dim] | None:
    """``(factor, den / factor, quotient, rest)`` with ``num == quotient*factor + rest``, ``0 <= rest < factor``; or None."""
    for factor in _factors(num, den):
        quotient, rest = _split(num, factor)
        if rest == 0 or _within(rest, factor):
            return factor, _split(den, factor)[0], quotient, rest
    return None


def floordiv(num: Dim, den: Dim) -> Dim:
    """``num // den`` for ``den`` known positive, as Python defines it."""
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    return num if den == 1 else _floordiv(num, den)


@functools.lru_cache(maxsize=65536)
def _floordiv(num: Dim, den: Dim) -> Dim:
    quotient, rest = _split(num, den)
    if rest == 0 or _within(rest, den):
        return quotient
    if quotient != 0:
        return quotient + floordiv(rest, den)
    if (peeled := _peel(num, den)) is not None:
        return floordiv(peeled[2], peeled[1])
    if (inner := _only_call(num, "//")) is not None:
        return floordiv(inner.lhs, inner.rhs * den)
    if (inner := _only_call(num, "%")) is not None and _split(inner.rhs, den)[1] == 0:
        return mod(floordiv(inner.lhs, den), _split(inner.rhs, den)[0])
    return _call("//", num, den)


def mod(num: Dim, den: Dim) -> Dim:
    """``num % den`` for ``den`` known positive; the result lies in ``[0, den)``."""
    if isinstance(num, int) and isinstance(den, int):
        return num % den
    return 0 if den == 1 else _mod(num, den)


@functools.lru_cache(maxsize=65536)
def _mod(num: Dim, den: Dim) -> Dim:
    _, rest = _split(num, den)
    if rest == 0 or _within(rest, den):
        return rest
    if (peeled := _peel(rest, den)) is not None:
        return mod(peeled[2], peeled[1]) * peeled[0] + peeled[3]
    if (inner := _only_call(rest, "%")) is not None and _split(inner.rhs, den)[1] == 0:
        return mod(inner.lhs, den)
    return _call("%", rest, den)


def ceildiv(num: Dim, den: Dim) -> Dim:
    """``-(-num // den)``: the number of blocks of ``den`` that cover ``num``."""
    return floordiv(num + den - 1, den)


def minimum(a: Dim, b: Dim) -> Dim:
    """``min(a, b)``, decided when the ranges decide it."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if at_least(b - a, 0):
        return a
    return b if at_least(a - b, 0) else _call("min", *sorted((a, b), key=str))


def maximum(a: Dim, b: Dim) -> Dim:
    """``max(a, b)``, decided when the ranges decide it."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if at_least(b - a, 0):
        return b
    return a if at_least(a - b, 0) else _call("max", *sorted((a, b), key=str))


def _only_call(d: Dim, fn: str) -> Call | None:
    if isinstance(d, Expr) and len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1:
        atom = d.terms[0][0][0]
        if isinstance(atom, Call) and atom.fn == fn:
            return atom
    return None


def _within(d: Dim, den: Dim) -> bool:
    return at_least(d, 0) and at_least(den - d, 1)


def at_least(d: Dim, bound: int) -> bool:
    """True when the ranges prove ``d >= bound``; False means "not proven"."""
    if isinstance(d, int):
        return d >= bound
    return _at_least(d, bound)


@functools.lru_cache(maxsize=65536)
def _at_least(d: Expr, bound: int) -> bool:
    worst: Dim = d
    for _ in range(12):  # replace one symbol after the other by its worst value
        low = numeric_range(worst)[0]
        if low is not None and low >= bound:
            return True
        if isinstance(worst, int) or (replaced := _worst_value(worst)) is None:
            break
        worst = substitute(worst, replaced)
    split = _split_floors(d)
    return split is not None and at_least(split, bound)


def _split_floors(d: Expr) -> Dim | None:
    """``d`` with ``a - a % n`` for each ``(a // n)*n``: other terms of ``a`` cancel then. None where there is none."""
    found: dict[Monomial, Dim] = {}
    for mono, coeff in d.terms:
        for at, atom in enumerate(mono):
            if isinstance(atom, Call) and atom.fn == "//":
                exact = _exact_quotient(mono[:at] + mono[at + 1 :], coeff, atom.rhs)
                if exact is not None:
                    found[mono] = (atom.lhs - mod(atom.lhs, atom.rhs)) * from_terms(dict([exact]))
    kept = from_terms({mono: coeff for mono, coeff in d.terms if mono not in found})
    return sum(found.values(), kept) if found else None


def _worst_value(d: Expr) -> dict[str, Dim] | None:
    """A symbol in which ``d`` is monotone, with the end of its range where ``d`` is smallest.

    It must occur linearly, outside calls, with one sign. Axes go first: their ends are sizes, which cancel against others."""
    inside = {s.name for mono, _ in d.terms for a in mono if isinstance(a, Call) for s in symbols(_atom_expr(a))}
    signs: dict[Sym, set[bool]] = {}
    for mono, coeff in d.terms:
        for atom in mono:
            if isinstance(atom, Sym) and atom.name not in inside:
                rest_low = [atom_range(o)[0] for o in mono if o != atom]
                linear = mono.count(atom) == 1 and all(low is not None and low >= 0 for low in rest_low)
                signs.setdefault(atom, set()).update({coeff < 0} if linear else {True, False})
    for symbol in sorted(signs, key=lambda s: s.stop is None):
        if signs[symbol] == {False}:
            return {symbol.name: symbol.lo}
        if signs[symbol] == {True} and symbol.stop is not None:
            return {symbol.name: symbol.stop - 1}
    return None


def _atom_expr(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def symbols(d: Dim) -> set[Sym]:
    """Every symbol in ``d``, also inside calls (not in the symbols' own ranges)."""
    found: set[Sym] = set()
    if isinstance(d, Expr):
        for mono, _ in d.terms:
            for atom in mono:
                found |= {atom} if isinstance(atom, Sym) else symbols(atom.lhs) | symbols(atom.rhs)
    return found


_APPLY: dict[str, Callable[[Dim, Dim], Dim]] = {"//": floordiv, "%": mod, "min": minimum, "max": maximum}


def substitute(d: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols by name, all at once, and simplify again."""
    return d if isinstance(d, int) or not values else _substitute(d, tuple(values.items()))


@functools.lru_cache(maxsize=65536)  # a model's layers ask the same again and again
def _substitute(d: Expr, pairs: tuple[tuple[str, Dim], ...]) -> Dim:
    values = dict(pairs)
    total: Dim = 0
    for mono, coeff in d.terms:
        product: Dim = coeff
        for atom in mono:
            if isinstance(atom, Sym):
                product = product * values.get(atom.name, _atom_expr(atom))
            else:
                product = product * _APPLY[atom.fn](substitute(atom.lhs, values), substitute(atom.rhs, values))
        total = total + product
    return total


_EVALUATE: dict[str, Callable[[int, int], int]] = {"//": operator.floordiv, "%": operator.mod, "min": min, "max": max}


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """The integer value under ``values`` (by symbol name). Raises KeyError for a symbol without one."""
    if isinstance(d, int):
        return d
    total = 0
    for mono, coeff in d.terms:
        for atom in mono:
            if isinstance(atom, Sym):
                coeff *= values[atom.name]
            else:
                coeff *= _EVALUATE[atom.fn](evaluate(atom.lhs, values), evaluate(atom.rhs, values))
        total += coeff
    return total


def divisible_by(d: Dim, k: int) -> bool:
    """True when every term has a coefficient that ``k`` divides."""
    return all(coeff % k == 0 for _, coeff in terms_of(d))


@functools.lru_cache(maxsize=65536)
def coefficient(d: Dim, name: str) -> Dim | None:
    """``d``'s derivative by the symbol when ``d`` is affine in it (0 when absent); None when it is not affine."""
    total: dict[Monomial, int] = {}
    for mono, coeff in terms_of(d):
        hits = [a for a in mono if isinstance(a, Sym) and a.name == name]
        nested = any(isinstance(a, Call) and name in {s.name for s in symbols(_atom_expr(a))} for a in mono)
        if nested or len(hits) > 1:
            return None
        if hits:
            rest = list(mono)
            rest.remove(hits[0])
            total[tuple(rest)] = total.get(tuple(rest), 0) + coeff
    return from_terms(total)


@functools.lru_cache(maxsize=65536)
def dot(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> Dim:
    """The sum of products, such as an offset from an index and strides. Raises ValueError for tuples of two lengths."""
    total: Dim = 0
    for a, b in zip(left, right, strict=True):
        total = total + a * b
    return total


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dims, 1 for none."""
    total: Dim = 1
    for d in dims:
        total = total * d
    return total
