"""What is changed about a function after its first call takes effect at the next: code, defaults, closures; behind breaks too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tests.capture.corpus import r

pytestmark = pytest.mark.pure


def straight(x, k=2, *, shift=1.0):
    return x * k + shift


def breaking(x, k=2, *, shift=1.0):
    y = x * k
    print(end="")
    return y + shift


def calling(x):
    return straight(x) - 1


@pytest.fixture(params=[straight, breaking, calling], ids=lambda f: f.__name__)
def pair(request: Any) -> Any:
    """A function, compiled and called once, and what is to be changed; it is as before afterwards."""
    fn: Callable[..., Any] = request.param
    target: Any = straight if fn is calling else fn
    kept = target.__code__, target.__defaults__, dict(target.__kwdefaults__)
    compiled = tinycompile.compile(fn, backend="eager")
    compiled(r(4))
    yield fn, target, compiled
    target.__code__, target.__defaults__, target.__kwdefaults__ = kept


def agree(fn: Any, compiled: Any, *args: Any) -> None:
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), fn(*args))


def test_code(pair: Any) -> None:
    fn, target, compiled = pair
    before = fn(r(4))

    def other(x, k=2, *, shift=1.0):
        z = x - k
        print(end="")
        return z * shift * 3

    target.__code__ = other.__code__
    agree(fn, compiled, r(4))
    assert not torch.equal(fn(r(4)), before)


def test_defaults(pair: Any) -> None:
    fn, target, compiled = pair
    target.__defaults__ = (7,)
    agree(fn, compiled, r(4))
    target.__defaults__ = (r(4),)
    agree(fn, compiled, r(4))


def test_keyword_defaults(pair: Any) -> None:
    fn, target, compiled = pair
    target.__kwdefaults__ = {"shift": 4.0}
    agree(fn, compiled, r(4))
    target.__kwdefaults__["shift"] = -1.0
    agree(fn, compiled, r(4))


@pytest.mark.parametrize("broken", [False, True])
def test_closures(broken: bool) -> None:
    scale, bias, fn = 2, r(4), torch.sin

    def f(x):
        y = x * scale
        if broken:
            print(end="")
        return fn(y) + bias

    compiled = tinycompile.compile(f, backend="eager")
    agree(f, compiled, r(4))
    scale = 3
    agree(f, compiled, r(4))
    bias, fn = bias * 5, torch.cos
    agree(f, compiled, r(4))
    f.__closure__[0].cell_contents = r(4) * 2
    agree(f, compiled, r(4))


def test_an_attribute_of_a_function_that_is_read() -> None:
    def f(x):
        return x * f.factor

    f.factor = 2
    compiled = tinycompile.compile(f, backend="eager")
    agree(f, compiled, r(4))
    f.factor = 5
    agree(f, compiled, r(4))
