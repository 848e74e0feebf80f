"""Sets from outside that are changed and then looked through: one break, behind which the set is as it is, and its loop a part of
a graph. And keys and members that equal others without being the same."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
X = torch.ones(2)
KEPT = {3, 1, 2}


def loop(x, s):
    s.add(10)
    s.discard(2)
    for i in s:
        x = x * 2 + i
    return x, list(s)


def loops_in_turns(x, s):
    for more in (20, 30):
        s.add(more)
        for i in s:
            x = x + i
            if i == 1:
                continue
            x = x * 2
        s.remove(more)
    return x


def helper(s):
    s.add("z")
    return [c for c in s]


def in_a_callee(x, s):
    s.discard(1)
    return x * len(helper(s)), helper(s)


def unpacked(x, s):
    s |= {7, 8}
    first, *rest = s
    return x * first, rest, [*s], max(s), sum(s), dict.fromkeys(s)


def of_others(x, s):
    t = s | {5}
    s -= {1}
    u, v = s & t, t - s
    return x, list(t), list(u), list(v), sorted(s), frozenset(s)


def emptied(x, s):
    s.clear()
    for i in s:
        x = x * i
    s.update([4, 5])
    return x, [i for i in s]


def of_a_global(x, s):
    KEPT.add(len(s))
    found = [i for i in KEPT]
    KEPT.discard(len(s))
    return x * sum(found), found


def behind_a_break(x, s):
    s.add(9)
    print(len(s))
    s.add(11)
    return x, tuple(s), [str(i) for i in s]


CASES: list[tuple[Callable[..., Any], set[Any], int]] = [
    (loop, {1, 2, 3}, 1), (loops_in_turns, {1, 2}, 6), (in_a_callee, {1, 2, 3}, 2), (unpacked, {1, 2}, 1), (of_others, {1, 2, 3}, 1),
    (emptied, {1, 2, 3}, 1), (of_a_global, {5}, 1), (behind_a_break, {1, 2, 3}, 2), (loop, {2, (3, 4), "a"} - {(3, 4), "a"}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "members", "breaks"), CASES)
def test_one_break_for_each_change(fn: Callable[..., Any], members: set[Any], breaks: int) -> None:
    compiled = CompiledFunction(fn, Options(backend="eager"))
    for _ in range(3):
        mine, theirs = set(members), set(members)
        got, want = compiled(X, mine), fn(X, theirs)
        assert repr(got) == repr(want) and list(mine) == list(theirs)
    assert len(compiled.breaks) <= breaks, [str(b) for b in compiled.breaks]


def test_a_set_that_differs_from_call_to_call_is_not_compiled_again_and_again() -> None:
    compiled, s = CompiledFunction(loop, Options(backend="eager")), {0}
    theirs = set(s)
    for n in range(12):
        s.add(100 + n)
        theirs.add(100 + n)
        assert repr(compiled(X, s)) == repr(loop(X, theirs))
    assert len(compiled.all_entries) < 24


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    """Equals its text."""


def keys(x, d):
    return list(d), [type(k) for k in d], x


def items(x, d):
    return list(d.items()), 1 in d, x


def members(x, s):
    return sorted(s, key=repr), [type(k) for k in s]


def itself(x, value):
    return value, type(value), x


EQUAL: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (fn, tuple(make({k: 2}) for k in (1, True, 1.0, Number.ONE, 1 + 0j)))
    for fn in (keys, items)
    for make in (dict, OrderedDict, Counter, lambda d: defaultdict(list, d))
]
EQUAL += [
    (keys, ({0.0: 1}, {-0.0: 1}, {0: 1}, {False: 1})),
    (keys, ({(1, 2): 1}, {(True, 2): 1}, {(1.0, 2): 1}, {(1, (2,)): 1}, {(1, (2.0,)): 1})),
    (keys, ({"a": 1}, {Text("a"): 1})),
    (keys, ({range(0, 3, 2): 1}, {range(0, 4, 2): 1})),
    (members, ({1, 2}, {True, 2}, {1.0, 2}, {Number.ONE, 2}, frozenset({1, 2}), frozenset({1.0, 2}))),
    (members, ({0.0}, {-0.0}, {(0.0, "a")}, {(-0.0, "a")}, {(0, "a")})),
    (itself, (0j, -0j, complex(0, -0.0), complex(1, 0.0), complex(1, -0.0))),
    (itself, (range(0, 3, 2), range(0, 4, 2), range(4), range(0, 4, 1))),
]


@pytest.mark.parametrize(("fn", "values"), EQUAL)
def test_equal_keys_are_told_apart(fn: Callable[..., Any], values: tuple[Any, ...]) -> None:
    for first in values:
        compiled = CompiledFunction(fn, Options(backend="eager"))
        for value in (first, *values):
            assert repr(compiled(X, value)) == repr(fn(X, value))
