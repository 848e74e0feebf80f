"""The functions of ``operator``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from tinycompile.capture.rules.registry import RULES, Args, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, boolean

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def _as_operators() -> None:
    for symbol, name in (
        ("+", "add"),
        ("-", "sub"),
        ("*", "mul"),
        ("/", "truediv"),
        ("//", "floordiv"),
        ("%", "mod"),
        ("**", "pow"),
        ("@", "matmul"),
        ("&", "and_"),
        ("|", "or_"),
        ("^", "xor"),
        ("<<", "lshift"),
        (">>", "rshift"),
    ):
        RULES[getattr(operator, name)] = lambda tr, args, kwargs, s=symbol: tr.binary(s, *args)
        RULES[getattr(operator, "i" + name.rstrip("_"))] = lambda tr, args, kwargs, s=symbol: tr.binary(s + "=", *args)
    for symbol, name in (("<", "lt"), ("<=", "le"), ("==", "eq"), ("!=", "ne"), (">", "gt"), (">=", "ge")):
        RULES[getattr(operator, name)] = lambda tr, args, kwargs, s=symbol: tr.compare(s, *args)
    for symbol, name in (("-", "neg"), ("+", "pos"), ("~", "invert")):
        RULES[getattr(operator, name)] = lambda tr, args, kwargs, s=symbol: tr.unary(s, *args)
    RULES[operator.is_] = lambda tr, args, kwargs: boolean(tr.identical(*args))
    RULES[operator.is_not] = lambda tr, args, kwargs: boolean(not tr.identical(*args))
    RULES[operator.contains] = lambda tr, args, kwargs: boolean(args[0].contains(tr, args[1]))
    RULES[operator.getitem] = lambda tr, args, kwargs: args[0].get_item(tr, args[1])


_as_operators()


@rule(operator.setitem)
def _setitem(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(tr, args[1], args[2])
    return NONE
