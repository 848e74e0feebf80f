"""Attributes of classes and functions that compiled code assigns, over several calls, and what may change between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
X = torch.ones(2)


def helper(x: Any) -> Any:
    helper.calls += 2
    return x


def compiled(fn: Any) -> CompiledFunction:
    return CompiledFunction(fn, Options(backend="eager", fullgraph=True))


def test_counts_go_on_from_call_to_call() -> None:
    class Counter:
        n = 0

        def step(self) -> int:
            type(self).n += 1
            return self.n

    helper.calls = 0
    counter = Counter()
    f = compiled(lambda x: helper(x) * counter.step() + helper.calls)
    for n in range(1, 12):
        assert torch.equal(f(X), X * n + 2 * n)
        assert (Counter.n, helper.calls) == (n, 2 * n)
    assert len(f.all_entries) <= 4 and "n" not in vars(counter)


def test_what_comes_to_have_a_say_is_seen() -> None:
    class Base:
        n = 1

    class Derived(Base):
        pass

    def run(x: Any) -> Any:
        Base.n = 5
        return x * Derived().n

    f = CompiledFunction(run, Options(backend="eager"))
    assert torch.equal(f(X), X * 5) and not f.breaks
    Base.n = 7
    assert torch.equal(f(X), X * 5) and Base.n == 5 and len(f.all_entries) == 1
    Derived.n = 3
    assert torch.equal(f(X), X * 3)
    Derived.n = property(lambda self: 4)
    assert torch.equal(f(X), X * 4) and Base.n == 5
    del Derived.n
    Base.n = property(lambda self: 8)
    assert torch.equal(f(X), X * 5) and Base.n == 5

    class Later(Base):
        n = 9

    assert torch.equal(f(X), X * 5) and Later.n == 9


def test_nothing_is_assigned_when_a_call_fails_before() -> None:
    class Kept:
        n = 1

    def run(x: Any, i: Any) -> Any:
        Kept.n = 2
        return x[i]

    f = CompiledFunction(run, Options(backend="cpp"))
    assert torch.equal(f(X, torch.tensor([1])), X[1:]) and Kept.n == 2
    Kept.n = 1
    with pytest.raises(IndexError):
        f(X, torch.tensor([7]))
    assert Kept.n == 2  # as eager leaves it


def test_a_function_given_twice_is_one() -> None:
    helper.tag = 1

    def run(x: Any, fn: Any) -> Any:
        helper.tag = 5
        return x * fn.tag

    def other(x: Any) -> Any:
        return x

    other.tag = 2
    f = CompiledFunction(run, Options(backend="eager"))
    assert torch.equal(f(X, other), X * 2) and torch.equal(f(X, helper), X * 5) and torch.equal(f(X, other), X * 2)
