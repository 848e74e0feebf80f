"""Numbers that change from call to call, and with which an operator or a function fails in some: the program's handler runs, and
what comes before the error is done once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

X = torch.ones(2)
INTS, FLOATS = (3, 5, 7, 0, -3, 2), (2.5, 3.5, 4.5, 0.0, -2.0, math.inf, 800.0)
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    **{n: getattr(operator, n) for n in ("truediv", "floordiv", "mod", "lshift", "rshift", "add", "mul", "and_")},
    "pow": lambda a, b: a ** (b % 5) if isinstance(a, int) else a**b,
    "divmod": divmod,
    "of a difference": lambda a, b: 1 / (a - b),
    "twice": lambda a, b: a / 2 // b,
    "int": lambda a, b: int(a),
    "round": lambda a, b: round(a),
    "max": max,
    **{n: (lambda a, b, n=n: getattr(math, n)(a)) for n in ("sqrt", "log", "exp", "floor", "asin", "gamma", "cosh")},
    **{f"math.{n}": getattr(math, n) for n in ("pow", "fmod", "atan2", "remainder")},
}


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def plain(value: Any) -> str:
    return repr(value)


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("varied", ["both", "a", "b"])
@pytest.mark.parametrize("numbers", [INTS, FLOATS], ids=["ints", "floats"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operation_that_fails_for_some(name: str, numbers: tuple[Any, ...], varied: str, caught: bool) -> None:
    compute, log = PROGRAMS[name], []

    def handled(x: Any, a: Any, b: Any) -> Any:
        log.append(a)
        try:
            made = compute(a, b)
        except Exception as error:
            log.append("caught")
            made = type(error).__name__, str(error)
        log.append(b)
        return x + 1, made

    def raising(x: Any, a: Any, b: Any) -> Any:
        log.append(a)
        made = compute(a, b)
        log.append(b)
        return x + 1, made

    fn = handled if caught else raising
    compiled = tinycompile.compile(fn, backend="eager")
    for i, number in enumerate(numbers):
        other = numbers[(i * 3 + 1) % len(numbers)]
        a, b = {"both": (number, other), "a": (number, numbers[0]), "b": (numbers[0], number)}[varied]
        want, expected = outcome(fn, X, a, b), log.copy()
        log.clear()
        got = outcome(compiled, X, a, b)
        assert (plain(got), plain(log)) == (plain(want), plain(expected))
        log.clear()


def test_numbers_that_it_takes_need_no_other_code() -> None:
    compiled = tinycompile.compile(lambda x, a, b: x * (a / b) + math.sqrt(a) + a**b, backend="eager")
    for a in (1.5, 2.5, 3.5, 4.5, 5.5):
        compiled(X, a, a + 1)
    assert len(compiled.graphs) <= 3
