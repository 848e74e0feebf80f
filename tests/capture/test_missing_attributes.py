"""What an object doesn't have is missed where the program asks for it: its handlers and finally blocks run, breaks in them too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure

SAID: list[Any] = []


@tinycompile.disable
def say(words):
    SAID.append(words)


class Loud:
    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        say(kind and kind.__name__)


class Hooked:
    @property
    def failing(self):
        raise AttributeError("it fails")


MAKERS: dict[str, Callable[[], Any]] = {
    "iter of a tuple": lambda: iter(()),
    "iter of a dict": lambda: iter({1: 2}),
    "iter of a text": lambda: iter("ab"),
    "zip": lambda: zip([1], strict=True),
    "map": lambda: map(abs, [1]),
    "enumerate": lambda: enumerate([1]),
    "reversed": lambda: reversed([1]),
    "chain": lambda: itertools.chain([1]),
    "count": lambda: itertools.count(),
    "pairwise": lambda: itertools.pairwise([1, 2]),
    "generator": lambda: (i for i in [1]),
    "dict items": lambda: {1: 2}.items(),
    "range": lambda: range(2),
    "slice": lambda: slice(1),
    "no_grad": lambda: torch.no_grad(),
    "autocast": lambda: torch.autocast("cpu"),
    "object": lambda: Hooked(),
    "function": lambda: len,
}


def handled(obj, x):
    try:
        obj.failing()
    except AttributeError as error:
        say(str(error))
        return x + 5
    return x * 2


def in_a_with_block(obj, x):
    with Loud():
        obj.failing()
    return x * 2


def at_last(obj, x):
    try:
        return x * len([obj.failing(), 1])
    finally:
        say("at last")


def by_getattr(obj, x):
    try:
        getattr(obj, "failing")  # noqa: B009
    except AttributeError as error:
        say(str(error))
    return x * 2


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("fn", [handled, in_a_with_block, at_last, by_getattr])
def test_as_eager(fn: Callable[..., Any], made: str) -> None:
    """Made inside, and given from outside."""

    def inside(x: torch.Tensor) -> torch.Tensor:
        return fn(MAKERS[made](), x)

    found = []
    for call, outer in ((fn, inside), (tinycompile.compile(fn, backend="eager"), tinycompile.compile(inside, backend="eager"))):
        SAID.clear()
        for run in (lambda call=call: call(MAKERS[made](), torch.ones(2)), lambda outer=outer: outer(torch.ones(2))):
            for _ in range(2):
                try:
                    SAID.append(run().tolist())
                except AttributeError as error:
                    SAID.append(repr(error))
        found.append(list(SAID))
    assert found[1] == found[0]
