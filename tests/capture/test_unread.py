"""Containers from outside that a function only adds to: their contents are not guarded, and one compile serves all calls."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


class Box:
    def __init__(self) -> None:
        self.seen: list[Any] = []


def append(o, x):
    o.append(x.sum())


def extended(o, x):
    o.extend([x.sum(), "end"])
    o += [1]


def inserted(o, x):
    o.insert(0, x.sum())


def both_ends(o, x):
    o.append(x.sum())
    o.appendleft("left")


def assigned(o, x):
    o["k"] = x.sum()
    o["again"] = len(x)


def added(o, x):
    o.add(3)


def inside(o, x):
    o["c"].append(x.sum())


def of_an_object(o, x):
    o.seen.append(x.sum())
    o.seen.append(2)


CASES = [
    (append, list), (extended, list), (inserted, list), (append, collections.deque), (both_ends, collections.deque),
    (append, lambda: collections.deque(maxlen=3)), (assigned, dict), (assigned, collections.OrderedDict),
    (assigned, lambda: collections.defaultdict(list)), (added, set), (inside, lambda: {"c": []}), (of_an_object, Box),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "make"), CASES)
def test_one_compile_serves_all_calls(fn: Callable[..., Any], make: Callable[[], Any]) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True, backend="eager")
    mine, theirs = make(), make()
    for k in range(12):
        x = torch.full((3,), float(k))
        compiled(mine, x)
        fn(theirs, x)
    shown = [repr(vars(o)) if isinstance(o, Box) else repr(o) for o in (mine, theirs)]
    assert shown[0] == shown[1]
    assert compiled.cache_info()["entries"] == 1, compiled.source("python")


def test_what_is_read_is_guarded() -> None:
    def f(o, x):
        o.append(1)
        return x + len(o)

    compiled, mine, theirs = tinycompile.compile(f, fullgraph=True, backend="eager"), list[Any](), list[Any]()
    for _ in range(4):
        torch.testing.assert_close(compiled(mine, torch.ones(2)), f(theirs, torch.ones(2)))
    assert mine == theirs

    def g(o, x):
        o["a"] = x + 1
        return o["a"] * 2, list(o)

    compiled = tinycompile.compile(g, fullgraph=True, backend="eager")
    for given in ({}, {"b": 1}, {"a": 2, "b": 3}, {"b": 3, "a": 2}):
        one, two = dict(given), dict(given)
        (got, names), (want, expected) = compiled(one, torch.ones(2)), g(two, torch.ones(2))
        torch.testing.assert_close(got, want)
        assert names == expected and list(one) == list(two)


def test_what_can_be_no_key_is_pythons_error() -> None:
    def f(o, x):
        o[[1]] = x

    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        tinycompile.compile(f, backend="eager")({}, torch.ones(2))


@pytest.mark.parametrize("bad", [None, 3, "f", [1]])
def test_what_is_no_function_is_a_type_error(bad: Any) -> None:
    for make in (tinycompile.compile, tinycompile):
        with pytest.raises(TypeError, match="takes a Python function"):
            make(bad)
