"""Each ``torch._foreach_*`` with arguments of all kinds: eager's answer, or torch's words, and no warning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

Tensors = list[torch.Tensor]
NAMES = sorted(n for n in dir(torch) if n.startswith("_foreach_"))
FORMS: dict[str, Callable[[Any, Tensors, Tensors, Tensors], Any]] = {
    "one list": lambda f, a, b, c: f(a),
    "a zero": lambda f, a, b, c: f(a, 0.0),
    "an int": lambda f, a, b, c: f(a, 2),
    "a bool": lambda f, a, b, c: f(a, True),
    "infinity": lambda f, a, b, c: f(a, math.inf),
    "numbers": lambda f, a, b, c: f(a, [2.0, -0.0]),
    "a tensor": lambda f, a, b, c: f(a, torch.tensor(2.0)),
    "a list": lambda f, a, b, c: f(a, b),
    "a list, and alpha": lambda f, a, b, c: f(a, b, alpha=0.5),
    "a list, and a number": lambda f, a, b, c: f(a, b, 0.5),
    "two lists": lambda f, a, b, c: f(a, b, c),
    "two lists, and numbers": lambda f, a, b, c: f(a, b, c, [0.5, 2.0]),
    "a number first": lambda f, a, b, c: f(2.0, a),
    "an order by name": lambda f, a, b, c: f(a, ord=1),
}


def _lists() -> list[Tensors]:
    torch.manual_seed(0)
    return [[torch.rand(3) + 0.2 + i, torch.rand(2, 2) + 0.2 + i] for i in (0, 1, 0)]


def _outcome(fn: Callable[..., Any]) -> Any:
    given = _lists()
    try:
        found = fn(*given)
    except (TypeError, RuntimeError, IndexError) as error:
        return type(error), str(error)
    return [*(found or ()), *given[0]]


@pytest.mark.filterwarnings("error:compiled|tinycompile")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_as_eager(name: str, form: str) -> None:
    call, fn = FORMS[form], getattr(torch, name)

    def program(a: Tensors, b: Tensors, c: Tensors) -> Any:
        return call(fn, a, b, c)

    found, expected = _outcome(tinycompile.tinycompile(program, backend="eager")), _outcome(program)
    if isinstance(expected, tuple):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, equal_nan=True)
