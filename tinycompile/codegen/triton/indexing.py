"""Integer expressions as Triton source: floor division, remainder, and comparisons in the form that axis analysis reads."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

from tinycompile.base import expr as ex
from tinycompile.base.atoms import Atom, Sym
from tinycompile.base.expr import Dim

_TAKEN = frozenset({"tl", "triton", "libdevice", "range", "float", "int", "i", "row", "col", "outer", "program", "min", "max"})


class Names:
    """Unique Python identifiers, as close as can be to what was asked for."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(_TAKEN | taken)

    def fresh(self, wanted: str) -> str:
        """A new identifier."""
        base = re.sub(r"\W", "_", wanted).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = "v_" + base
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def dim_text(d: Dim, symbol: Callable[[Sym], str]) -> str:
    """``d`` as source; ``symbol`` spells each symbol. Numerators known non-negative use ``//`` and ``%``."""
    if isinstance(d, int):
        return str(d)
    text = ""
    for mono, coeff in d.terms:
        body = "*".join(_atom_text(a, symbol) for a in mono)
        size = abs(coeff)
        part = str(size) if not body else body if size == 1 else f"{body}*{size}"
        text += f" {'-' if coeff < 0 else '+'} {part}" if text else f"{'-' if coeff < 0 else ''}{part}"
    return text


def _atom_text(atom: Atom, symbol: Callable[[Sym], str]) -> str:
    if isinstance(atom, Sym):
        return symbol(atom)
    left, right = dim_text(atom.lhs, symbol), dim_text(atom.rhs, symbol)
    if atom.fn in ("min", "max"):
        return f"tl.{atom.fn}imum({left}, {right})"
    if ex.at_least(atom.lhs, 0):
        return f"({wrap(left)} {atom.fn} {wrap(right)})"
    return f"{'floor_divide' if atom.fn == '//' else 'floor_mod'}({left}, {right})"


def wrap(text: str) -> str:
    """Parenthesised unless it is a single word, number or call."""
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"


def at_least_zero(d: Dim, symbol: Callable[[Sym], str]) -> str:
    """``d >= 0`` as ``a >= c`` or ``a < c``: only strict bounds keep Triton's knowledge of runs of equal mask bits."""
    terms = dict(ex.terms_of(d))
    constant = terms.pop((), 0)
    plus = ex.from_terms({m: c for m, c in terms.items() if c > 0})
    minus = ex.from_terms({m: -c for m, c in terms.items() if c < 0})
    if minus == 0:
        return f"{dim_text(plus, symbol)} >= {-constant}"
    return f"{dim_text(minus, symbol)} < {dim_text(plus + constant + 1, symbol)}"
