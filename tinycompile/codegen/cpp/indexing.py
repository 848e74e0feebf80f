"""Integer expressions as C++ text."""

from __future__ import annotations

from collections.abc import Callable

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Atom, Call, Sym
from tinycompile.base.expr import Dim

Namer = Callable[[str], str]


def c_dim(d: Dim, name: Namer) -> str:
    """``d`` as a C++ expression of type int64_t (a literal when static); ``name`` spells a symbol."""
    if isinstance(d, int):
        return c_int(d)
    text = ""
    for mono, coeff in d.terms:
        term = _term([_atom(a, name) for a in mono], abs(coeff))
        sign = " - " if coeff < 0 else " + "
        text = text + sign + term if text else ("-" + term if coeff < 0 else term)
    return text


def c_factor(d: Dim, name: Namer) -> str:
    """``d`` in a form that can stand beside ``*`` or in a comparison: in brackets where needed."""
    text = c_dim(d, name)
    simple = isinstance(d, int) or (len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1)
    return text if simple else f"({text})"


def c_int(value: int) -> str:
    """An integer literal that C++ reads as at least 64 bits where it needs to."""
    if value == -(2**63):
        return "(-9223372036854775807LL - 1)"
    if value >= 2**63:
        return f"{value}ULL"
    return str(value) if -(2**31) < value < 2**31 else f"{value}LL"


def _term(factors: list[str], coeff: int) -> str:
    if not factors:
        return c_int(coeff)
    return "*".join(factors if coeff == 1 else [*factors, c_int(coeff)])


def _atom(atom: Atom, name: Namer) -> str:
    if isinstance(atom, Sym):
        return name(atom.name)
    return _call(atom, name)


def _call(call: Call, name: Namer) -> str:
    lhs, rhs = call.lhs, call.rhs
    if call.fn in ("min", "max"):
        fn = "tc::least" if call.fn == "min" else "tc::most"
        return f"{fn}<int64_t>({c_dim(lhs, name)}, {c_dim(rhs, name)})"
    if ex.at_least(lhs, 0):  # C's division is Python's when nothing is negative
        op = "/" if call.fn == "//" else "%"
        return f"({c_factor(lhs, name)} {op} {c_factor(rhs, name)})"
    fn = "tc::floor_div" if call.fn == "//" else "tc::floor_mod"
    return f"{fn}({c_dim(lhs, name)}, {c_dim(rhs, name)})"
