"""Variables that a closure shares, read by name behind a break: ``eval``, ``exec`` and frames see what is in the cell."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


def callers_variables():
    return {k: v for k, v in sys._getframe(1).f_locals.items() if isinstance(v, (int, str))}


def evaluated(x, n):
    g = lambda: n
    return eval("n + 1"), g(), x + 1


def executed(x, n):
    g = lambda: (n, m)
    m, out = n + 1, []
    exec("out.append((n, m))")
    return out, g()


def looked_up_in_the_frame(x, n):
    g = lambda: n
    tinycompile.graph_break()
    return callers_variables(), locals()["n"], vars()["n"], sorted(dir()), g()


def assigned_after_a_break(x, n):
    g = lambda: late
    try:
        eval("late")
    except NameError as error:
        told = str(error)
    late = n
    return told, eval("late"), g()


def in_a_comprehension(x, n):
    made = [(lambda: (k, n))() for k in range(2)]
    tinycompile.graph_break()
    return eval("n"), [(lambda: k)() for k in range(2)], made


class Owner:
    def method(self, n):
        g = lambda: self
        return eval("self") is self, g() is self, eval("n"), __class__.__name__


def in_a_method(x, n):
    return Owner().method(n)


def of_arguments(x, n, *rest, **named):
    g = lambda: (n, rest, named, x)
    return eval("(n, rest, named)"), len(g())


FUNCTIONS = [evaluated, executed, looked_up_in_the_frame, assigned_after_a_break, in_a_comprehension, in_a_method, of_arguments]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Any) -> None:
    compiled = tinycompile.compile(fn, backend="eager")
    for n in (3, 4, 3):
        assert repr(compiled(torch.ones(2), n)) == repr(fn(torch.ones(2), n))
