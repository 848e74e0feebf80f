"""Before Python 3.13 a frame has one dict of its variables, which ``locals``, ``eval``, ``exec``, ``dir`` and whoever asks for the
frame bring up to date: what it showed first stays in front, and what ``exec`` assigned stays in it, also behind a break."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


def evaluates(x, n):
    c = 1
    g = lambda: c
    y = x + 1
    eval("1")
    z = g() + n
    return list(locals()), y * z


def executes(x, n):
    y = x + 1
    exec("q = 5")
    z = n
    return list(locals()), locals().get("q"), y * z


def executes_twice(x, n):
    y = x + 1
    exec("q = 5")
    y = y * 2
    try:
        return y, eval("q + n")
    except NameError:
        return y


def lists_names(x, n):
    c = 1
    g = lambda: c
    dir()
    z = g()
    return dir(), vars().keys(), x + z


def callers_names():
    return list(sys._getframe(1).f_locals)


def is_asked_by_a_callee(x, n):
    c = 1
    g = lambda: c
    y = x + 1
    first = callers_names()
    z = g()
    return first, list(locals()), callers_names(), y * z


def breaks_between(x, n):
    c = 1
    g = lambda: c
    eval("1")
    y = x + 1
    tinycompile.graph_break()
    z = g()
    return list(locals()), y * z


def binds_late(x, n):
    if n > 5:
        a = 1
    b = 2
    eval("b")
    a = 3
    return list(locals()), eval("list(locals())"), x * a * b


def loops(x, n):
    found = []
    for i in range(3):
        x = x + 1
        found.append(eval("list(locals())"))
        if i == 1:
            late = i
        c = 2
        found.append((lambda: c)())
    return found, x * late


def deletes(x, n):
    a = b = 1
    eval("1")
    del a
    exec("1")
    a = 5
    return list(locals()), x * a * b


def in_a_callee(x, n):
    return evaluates(x * 2, n), executes(x + 1, n)


FUNCTIONS = (
    evaluates, executes, executes_twice, lists_names, is_asked_by_a_callee, breaks_between, binds_late, loops, deletes, in_a_callee,
)  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any]) -> None:
    compiled, want = tinycompile.compile(fn, backend="eager"), repr(fn(torch.ones(2), 3))
    for _ in range(2):
        assert repr(compiled(torch.ones(2), 3)) == want


def test_what_asks_once_goes_on_compiled() -> None:
    def asks_once(x, n):
        y = x + 1
        z = eval("n + 1")
        return y * z

    compiled = tinycompile.compile(asks_once, backend="eager")
    assert torch.equal(compiled(torch.ones(2), 3), torch.full((2,), 8.0))
    assert len(compiled.graphs) == 2
