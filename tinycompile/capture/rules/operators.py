"""The functions of ``operator``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from tinycompile.capture.rules.registry import RULES, Args, Rule, rule
from tinycompile.capture.values.base import Kwargs, Value
from tinycompile.capture.values.constant import NONE, boolean
from tinycompile.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from tinycompile.capture.tracer import Tracer


def _binary(symbol: str) -> Rule:
    return lambda tr, args, kwargs: tr.binary(symbol, *args)


def _compare(symbol: str) -> Rule:
    return lambda tr, args, kwargs: tr.compare(symbol, *args)


def _unary(symbol: str) -> Rule:
    return lambda tr, args, kwargs: tr.unary(symbol, *args)


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
        RULES[getattr(operator, name)] = _binary(symbol)
        RULES[getattr(operator, "i" + name.rstrip("_"))] = _binary(symbol + "=")
    for symbol, name in (("<", "lt"), ("<=", "le"), ("==", "eq"), ("!=", "ne"), (">", "gt"), (">=", "ge")):
        RULES[getattr(operator, name)] = _compare(symbol)
    for symbol, name in (("-", "neg"), ("+", "pos"), ("~", "invert")):
        RULES[getattr(operator, name)] = _unary(symbol)
    RULES[operator.is_] = lambda tr, args, kwargs: boolean(tr.identical(*args))
    RULES[operator.is_not] = lambda tr, args, kwargs: boolean(not tr.identical(*args))
    RULES[operator.contains] = lambda tr, args, kwargs: boolean(args[0].contains(tr, args[1]))
    RULES[operator.getitem] = lambda tr, args, kwargs: args[0].get_item(tr, args[1])


_as_operators()


@rule(torch.Tensor.__getitem__)
def _tensor_getitem(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Torch's own, also where the program put another in its place."""
    return tr.index_tensor(args[0], args[1]) if isinstance(args[0], TensorValue) else args[0].get_item(tr, args[1])


@rule(torch.Tensor.__setitem__)
def _tensor_setitem(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], TensorValue):
        return _setitem(tr, args, kwargs)
    tr.write_tensor(args[0], args[1], args[2])
    return NONE


@rule(operator.setitem)
def _setitem(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(tr, args[1], args[2])
    return NONE
