"""``ScalarValue``: a Python number that is not the same in every call and is no size: a learning rate, a temperature.

It is an expression over numbers that are read anew in each call. The rebuilt code computes it in plain Python, before the
graph; comparisons become guards; tensor ops take it as an input of the graph (``capture/scalars.py``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinycompile.base.expr import symbols
from tinycompile.capture.provenance import natively
from tinycompile.capture.sources import Source
from tinycompile.capture.values.base import Value
from tinycompile.capture.values.constant import Const
from tinycompile.capture.values.symbolic import SymInt

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TOTAL = (abs, bool)  # functions that give a result for every number, of one type
_UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}


class ScalarValue(Value):
    """An int or a float. ``text`` is a Python expression over ``names`` (which guards bind, and the rebuilt code too);
    ``value`` is what it gives in the call being captured."""

    __slots__ = ("names", "text", "value")

    def __init__(self, text: str, value: float, names: frozenset[str], source: Source | None = None) -> None:
        super().__init__(source)
        self.text, self.value, self.names = text, value, names

    def python_type(self, tr: Tracer) -> type:
        return type(self.value)

    def describe(self) -> str:
        return f"number {self.text}"

    def constant(self, tr: Tracer) -> Any:
        """The value in this call; from here on the graph is for this value only."""
        tr.guards.late_check(tr.guards.equals(self.text, self.value), f"{self.text} == {self.value!r}")
        return self.value

    def argument(self, tr: Tracer) -> Any:
        return self.constant(tr)

    def key(self, tr: Tracer) -> Any:
        return self.constant(tr)

    def truth(self, tr: Tracer) -> bool:
        return _decided(tr, f"{self.text} != 0", bool(self.value))

    def get_attr(self, tr: Tracer, name: str) -> Value:
        if name == "real":
            return self
        found = natively(getattr, self.value, name)
        return tr.from_python(found) if name == "__class__" else Const(self.constant(tr)).get_attr(tr, name)


def _decided(tr: Tracer, text: str, answer: bool) -> bool:
    """A question about numbers, answered for this call and guarded."""
    tr.guards.late_check(f"({text}) is {answer}", text if answer else f"not {text}")
    return answer


def operand(tr: Tracer, value: Value) -> tuple[str, Any, frozenset[str]] | None:
    """A real number as text, as it is in this call, and the names in the text."""
    if isinstance(value, ScalarValue):
        return value.text, value.value, value.names
    if isinstance(value, SymInt):
        env = tr.env
        return f"({value.dim})", env.hint(value.dim), frozenset(s.name for s in symbols(value.dim))
    if isinstance(value, Const) and type(value.value) in (int, float, bool):
        return _literal(tr, value.value), value.value, frozenset()
    return None


def _literal(tr: Tracer, value: float) -> str:
    if not math.isfinite(value):
        return tr.guards.hold(value, "constant").name
    return f"({value!r})"


def computed(tr: Tracer, template: str, fn: Callable[..., Any], *operands: Value, partial: bool = False) -> Value | None:
    """``fn`` of numbers as an expression: ``template`` has a ``{}`` for each. None where some are no numbers of this kind, none
    changes from call to call, or the result is no real number. ``partial``: it fails for some numbers, or gives another type:
    guarded, for the program may catch the error, and has done before it what comes before it."""
    if not any(isinstance(v, (ScalarValue, SymInt)) for v in operands):
        return None
    found = [operand(tr, v) for v in operands]
    parts = [f for f in found if f is not None]
    if len(parts) < len(found):
        return None
    try:
        result = natively(fn, *(value for _, value, _ in parts))
    except Exception:  # of these numbers
        for value in operands:
            value.constant(tr)
        raise
    if type(result) not in (int, float):
        return None
    text = template.format(*(text for text, _, _ in parts))
    if partial:
        kind = type(result).__name__
        tr.guards.late_check(f"_type({text}) is _{kind}", f"{text} can be computed, and is of type {kind}")
    return ScalarValue(f"({text})", result, frozenset().union(*(names for _, _, names in parts)))


def changing(tr: Tracer, value: Value) -> ScalarValue | None:
    """A number that changes, a size too, as one of this kind; None for anything else."""
    found = operand(tr, value) if isinstance(value, (ScalarValue, SymInt)) else None
    return None if found is None else ScalarValue(*found)


def fixed(tr: Tracer, value: Value) -> ScalarValue | None:
    """A plain number as one of this kind; None for anything else."""
    if not isinstance(value, Const) or type(value.value) not in (int, float):
        return None
    return ScalarValue(_literal(tr, value.value), value.value, frozenset())


def called(tr: Tracer, fn: Any, *operands: Value) -> Value | None:
    """``fn(...)``, a pure function of numbers, as an expression; None as for ``computed``."""
    name = tr.guards.hold(fn, f"{getattr(fn, '__name__', 'fn')}_").name
    return computed(tr, f"{name}({', '.join(['{}'] * len(operands))})", fn, *operands, partial=fn not in _TOTAL)


def binary(tr: Tracer, symbol: str, a: Value, b: Value) -> Value | None:
    """``a symbol b`` for a changing number and another number; None for others. Of two sizes only the true quotient and
    powers are."""
    fn = _BINARY.get(symbol)
    if fn is None or not (
        _is_scalar(a) or _is_scalar(b) or (symbol in ("/", "**") and _both_sizes(a, b)) or _is_float(a) or _is_float(b)
    ):
        return None
    if symbol == "**" and not _power_is_real(tr, a, b):
        return None
    return computed(tr, f"{{}} {symbol} {{}}", fn, a, b, partial=_may_fail(tr, symbol, a, b))


def _may_fail(tr: Tracer, symbol: str, a: Value, b: Value) -> bool:
    """Whether an operator may fail for other numbers of these types: 0 as divisor, an int that no float holds."""
    ints = [v for v in (a, b) if isinstance(v, ScalarValue) and type(v.value) is int]
    if symbol in ("+", "-", "*"):
        return bool(ints) and float in (a.python_type(tr), b.python_type(tr))
    if symbol in ("/", "//", "%") and isinstance(b, Const) and b.value != 0:
        return bool(ints) and (symbol == "/" or type(b.value) is float)
    return symbol not in ("&", "|", "^")


def _power_is_real(tr: Tracer, base: Value, exponent: Value) -> bool:
    """Whether a power is an int or a float as here in all calls that the guards let through. Of Python's operators on numbers
    only this one gives a type that depends on values: int ** int is a float below 0, float ** float may be complex."""
    left, right = operand(tr, base), operand(tr, exponent)
    if left is None or right is None:
        return False
    if not isinstance(right[1], float):
        if not isinstance(left[1], float) and not isinstance(exponent, Const):
            tr.compare(">=", exponent, Const(0))
        return True
    positive, whole = left[1] >= 0, right[1] % 1 == 0
    if (isinstance(base, Const) and positive) or (isinstance(exponent, Const) and whole):
        return True
    return (positive or whole) and _decided(tr, f"{left[0]} >= 0 or {right[0]} % 1 == 0", True)


def _is_scalar(value: Value) -> bool:
    return isinstance(value, ScalarValue)


def _both_sizes(a: Value, b: Value) -> bool:
    return all(isinstance(v, SymInt) or (isinstance(v, Const) and type(v.value) is int) for v in (a, b))


def _is_float(value: Value) -> bool:
    return isinstance(value, Const) and type(value.value) is float


def unary(tr: Tracer, symbol: str, a: Value) -> Value | None:
    """``-a`` and such of a changing number."""
    return computed(tr, symbol + "{}", _UNARY[symbol], a) if isinstance(a, ScalarValue) else None


def compare(tr: Tracer, symbol: str, a: Value, b: Value) -> bool | None:
    """A comparison of a changing number with another number, guarded; None for others."""
    if not (_is_scalar(a) or _is_scalar(b) or _is_float(a) or _is_float(b)):
        return None
    if not any(isinstance(v, (ScalarValue, SymInt)) for v in (a, b)):
        return None
    left, right = operand(tr, a), operand(tr, b)
    if left is None or right is None:
        return None
    return _decided(tr, f"{left[0]} {symbol} {right[0]}", _COMPARE[symbol](left[1], right[1]))
