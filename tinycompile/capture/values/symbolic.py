"""``SymInt``: a size that is not the same in every call, as a Python int. Comparisons become guards on the symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinycompile.base import expr as ex
from tinycompile.base import shapes
from tinycompile.base.expr import Dim, Expr
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


class SymInt(Value):
    """An integer expression over size symbols."""

    __slots__ = ("dim",)

    def __init__(self, dim: Expr, source: Source | None = None) -> None:
        super().__init__(source)
        self.dim = dim

    def python_type(self, tr: Tracer) -> type:
        return int

    def describe(self) -> str:
        return f"size {self.dim}"

    def constant(self, tr: Tracer) -> Any:
        """The value in this call; from here on the graph is for this value only."""
        value = shapes.hint(self.dim)
        shapes.same(self.dim, value)
        return value

    def argument(self, tr: Tracer) -> Any:
        return self.dim

    def key(self, tr: Tracer) -> Any:
        return self.constant(tr)

    def truth(self, tr: Tracer) -> bool:
        return not shapes.same(self.dim, 0)

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name in ("real", "numerator"):
            return self
        found = natively(getattr, 0, name)
        return tr.from_python(found) if name == "__class__" else Const(self.constant(tr)).get_attr(tr, name)


def dim_value(dim: Dim) -> Value:
    """A dim as a value: a constant when it is static, or when guards have settled its symbols. Each time it is another int."""
    if isinstance(dim, Expr):
        dim = ex.substitute(dim, _settled())
    return SymInt(dim) if isinstance(dim, Expr) else Const(dim + 0)


def _settled() -> dict[str, Dim]:
    """Symbols that a relation of the form ``s - 16 == 0`` has fixed."""
    env = shapes.current_env()
    values: dict[str, Dim] = {}
    for relation in env.relations if env is not None else ():
        if relation.kind == "eq" and relation.holds:
            (symbol, *more) = ex.symbols(relation.expr)
            offset = relation.expr - ex.sym(symbol.name, symbol.lo, symbol.stop)
            if not more and isinstance(offset, int):
                values[symbol.name] = -offset
    return values


def as_dim(value: Value) -> Dim | None:
    """The dim of an integer value, None for any other value (bools are no dims)."""
    if isinstance(value, SymInt):
        return value.dim
    if isinstance(value, Const) and type(value.value) is int:
        return value.value
    return None


def _power(a: Dim, b: Dim) -> Dim | None:
    return ex.product([a] * b) if isinstance(b, int) and 0 <= b <= 8 else None


def _floordiv(a: Dim, b: Dim) -> Dim | None:
    return ex.floordiv(a, b) if ex.at_least(b, 1) else None


def _mod(a: Dim, b: Dim) -> Dim | None:
    return ex.mod(a, b) if ex.at_least(b, 1) else None


_BINARY: dict[str, Callable[[Dim, Dim], Dim | None]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": _floordiv,
    "%": _mod,
    "**": _power,
}
_COMPARE: dict[str, Callable[[Dim, Dim], bool]] = {
    "==": shapes.same,
    "!=": lambda a, b: not shapes.same(a, b),
    ">=": shapes.at_least,
    "<=": lambda a, b: shapes.at_least(b, a),
    ">": lambda a, b: not shapes.at_least(b, a),
    "<": lambda a, b: not shapes.at_least(a, b),
}


def binary(symbol: str, a: Value, b: Value) -> Value | None:
    """``a symbol b`` kept symbolic; None when that can't be, or when nothing is symbolic."""
    if not isinstance(a, SymInt) and not isinstance(b, SymInt):
        return None
    left, right, rule = as_dim(a), as_dim(b), _BINARY.get(symbol)
    if rule is None or left is None or right is None:
        return None
    result = rule(left, right)
    return None if result is None else dim_value(result)


def compare(symbol: str, a: Value, b: Value) -> bool | None:
    """A comparison of integers of which one is symbolic; None for others."""
    if not isinstance(a, SymInt) and not isinstance(b, SymInt):
        return None
    left, right, rule = as_dim(a), as_dim(b), _COMPARE.get(symbol)
    return None if rule is None or left is None or right is None else rule(left, right)
