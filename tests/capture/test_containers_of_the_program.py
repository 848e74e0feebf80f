"""Containers whose class has its own way of being iterated: what Python's functions ask of them, and an enumeration's members."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


class Numbers(list[Any]):
    def __iter__(self) -> Any:
        return iter("zy")


class Pair(tuple[Any, ...]):
    def __getitem__(self, i: Any) -> Any:
        return 7


class Members(set[Any]):
    def __iter__(self) -> Any:
        return iter([3, 1])


class Kind(enum.Enum):
    ONE = 1


_ASKED: list[Callable[[], Any]] = [
    lambda: list(reversed(Numbers([1, 2]))),
    lambda: sorted(Numbers([1, 2])),
    lambda: list(reversed(Pair([1, 2]))),
    lambda: sorted(Members([5])),
    lambda: Kind.ONE in Kind,
]


@pytest.mark.parametrize("asked", _ASKED)
def test_python_asks_what_it_asks_in_eager(asked: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        return asked(), x + 1

    compiled = tinycompile.compile(f, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[0] == asked()


@pytest.mark.parametrize("value", [1, 7])
def test_a_value_in_an_enumeration(value: int) -> None:
    """By value since Python 3.12; before, that is an error, with a warning."""

    def f(x: torch.Tensor) -> Any:
        return value in Kind, x + 1

    compiled = tinycompile.compile(f, backend="eager")
    if sys.version_info >= (3, 12):
        assert compiled(torch.ones(2))[0] is f(torch.ones(2))[0]
        return
    with pytest.raises(TypeError, match="unsupported operand"), pytest.warns(DeprecationWarning):
        compiled(torch.ones(2))
