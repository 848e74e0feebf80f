"""What is done one step at a time: an iterator is asked for no more than Python asks for, and what was done before an error
stays."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def broken(count: int) -> Iterator[int]:
    yield from range(count)
    raise ValueError("half-way")


def extended(x, held):
    try:
        held.extend(broken(3))
    except ValueError:
        held.append(9)
    return x + len(held)


def extended_unseen(x, held):
    try:
        held.extend(broken(3))
    except ValueError:
        pass
    return x


def added(x, held):
    try:
        held += broken(2)
    except ValueError:
        pass
    return held


def extended_by_itself(x, held):
    held.extend(held)
    held += held
    return x


def extended_by_what_looks(x, held):
    held.extend(held[i] * 2 for i in range(2))
    return x


def begun_again(x, held):
    held.__init__([3])
    return held


def to_the_left(x, held):
    try:
        held.extendleft(broken(2))
    except ValueError:
        pass
    return x


def updated(x, held):
    try:
        held.update(broken(5))
    except ValueError:
        pass
    return x


def taken_out(x, held):
    try:
        held.difference_update(broken(2))
    except ValueError:
        pass
    return x


def paired(x, held):
    try:
        held.update((i, -i) for i in broken(2))
    except ValueError:
        pass
    return x


CASES = {
    "extend": (extended, lambda: [5]),
    "extend unseen": (extended_unseen, lambda: [5]),
    "add": (added, lambda: [5]),
    "itself": (extended_by_itself, lambda: [5, 6]),
    "looks": (extended_by_what_looks, lambda: [5, 6]),
    "init": (begun_again, lambda: [5, 6]),
    "deque": (extended, lambda: collections.deque([7], 3)),
    "deque left": (to_the_left, lambda: collections.deque([7], 3)),
    "deque itself": (extended_by_itself, lambda: collections.deque([7], 3)),
    "set": (updated, lambda: {1, 8}),
    "set init": (begun_again, lambda: {1, 8}),
    "set difference": (taken_out, lambda: {0, 1, 8}),
    "dict": (paired, dict),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_done_before_an_error_stays(name: str) -> None:
    fn, make = CASES[name]
    compiled = tinycompile.compile(fn, fullgraph=True)
    for _ in range(2):
        mine, theirs = make(), make()
        assert str(compiled(torch.ones(2), mine)) == str(fn(torch.ones(2), theirs))
        assert mine == theirs


def noted(log: list[Any], count: int = 3) -> Iterator[int]:
    for i in range(count):
        log.append(i)
        yield i


def unpacked(log):
    values = noted(log, 5)
    try:
        _, _ = values
    except ValueError as error:
        log.append(str(error))
    return list(values)


def unpacked_without_end(log):
    try:
        _, _ = itertools.count()
    except ValueError as error:
        return str(error)


def folded(log):
    return functools.reduce(lambda a, b: log.append((a, b)) or a + b, noted(log))


def greatest(log):
    return max(noted(log), key=lambda v: log.append(("key", v)) or -v)


def cycled(log):
    values = itertools.cycle(noted(log))
    return [next(values), log.append("first") or next(values)]


def words(log):
    said = []
    for fn in (min, max):
        try:
            fn([])
        except ValueError as error:
            said.append(str(error))
    try:
        dict([(1, 2), (3,)])
    except ValueError as error:
        said.append(str(error))
    return said


@pytest.mark.parametrize("fn", [unpacked, unpacked_without_end, folded, greatest, cycled, words], ids=lambda f: f.__name__)
def test_no_more_is_asked_for(fn: Callable[..., Any]) -> None:
    def run(x, log):
        return x * 2, fn(log)

    mine, theirs = list[Any](), list[Any]()
    assert str(tinycompile.compile(run, fullgraph=True)(torch.ones(2), mine)) == str(run(torch.ones(2), theirs))
    assert mine == theirs
