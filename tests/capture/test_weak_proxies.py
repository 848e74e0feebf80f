"""Weak proxies: any look at one, ``isinstance`` too, goes to what it stands for, which may have died."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure


class Held:
    value = 3

    def __call__(self) -> int:
        return 4


def dead() -> Any:
    return weakref.proxy(Held())


ALIVE = Held()
DEAD = dead()


def made_inside(x: torch.Tensor, proxy: Any) -> Any:
    held = Held()
    inner = weakref.proxy(held)
    first = inner.value
    del held
    try:
        return x + first, inner.value
    except ReferenceError as error:
        return x + first, str(error)


def asked(x: torch.Tensor, proxy: Any) -> Any:
    try:
        return x + proxy.value, proxy()
    except ReferenceError as error:
        return x + 1, str(error)


def of_globals(x: torch.Tensor, proxy: Any) -> Any:
    try:
        return x + DEAD.value, 0
    except ReferenceError as error:
        return x + 1, str(error)


def passed_on(x: torch.Tensor, proxy: Any) -> Any:
    return x + 1, proxy


@pytest.mark.parametrize("program", [made_inside, asked, of_globals, passed_on])
@pytest.mark.parametrize("alive", [False, True])
def test_as_in_eager(program: Callable[..., Any], alive: bool) -> None:
    proxy = weakref.proxy(ALIVE) if alive else DEAD
    expected, got = program(torch.ones(2), proxy), CompiledFunction(program, Options(backend="eager"))(torch.ones(2), proxy)
    assert torch.equal(got[0], expected[0])
    assert got[1] is expected[1] or got[1] == expected[1]
