"""``a is b`` for two arguments of any kind, whichever of the two answers was compiled first."""

from __future__ import annotations

import functools
from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure
Named = namedtuple("Named", "a b")
SENTINEL = ("missing", 1000.5)
WORD = "".join(["missing", " value"])


class Plain:
    pass


MAKERS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (1, torch.ones(1)),
    "tuple of floats": lambda: (float("1.5"), 2),
    "named tuple": lambda: Named(1, 2),
    "frozenset": lambda: frozenset([1, 2]),
    "list": lambda: [1],
    "dict": lambda: {1: 2},
    "set": lambda: {1},
    "deque": lambda: deque([1]),
    "bytearray": lambda: bytearray(b"a"),
    "float": lambda: float("1.5"),
    "int": lambda: int("12345678"),
    "complex": lambda: complex("1j"),
    "str": lambda: "".join(["a b", "c"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "range": lambda: range(3),
    "slice": lambda: slice(1, 2),
    "size": lambda: torch.ones(2, 2).shape,
    "function": lambda: lambda: 1,
    "built-in method": lambda: [].append,
    "bound method": lambda: Plain().__init__,
    "partial": lambda: functools.partial(int),
    "array": lambda: np.ones(2),
    "numpy scalar": lambda: np.float32(2),
    "tensor": lambda: torch.ones(2),
    "module": lambda: torch.nn.Linear(1, 1),
    "object": Plain,
}


def same(a: Any, b: Any, x: torch.Tensor) -> tuple[bool, torch.Tensor]:
    return a is b, x + 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", list(MAKERS))
def test_two_arguments(name: str, first: bool) -> None:
    make, compiled = MAKERS[name], tinycompile.compile(same, backend="eager")
    for one in (first, not first, first):
        a = make()
        assert compiled(a, a if one else make(), torch.ones(1))[0] is one


def is_missing(a: Any, x: torch.Tensor) -> tuple[Any, ...]:
    return a is SENTINEL, a is WORD, a is None, a is not SENTINEL, x + 1


@pytest.mark.parametrize("values", [(SENTINEL, ("missing", float("1000.5")), WORD, "".join(["missing ", "value"]), None)])
def test_sentinels(values: tuple[Any, ...]) -> None:
    for order in (values, values[::-1]):
        compiled = tinycompile.compile(is_missing, backend="eager")
        for value in order:
            assert compiled(value, torch.ones(1))[:4] == is_missing(value, torch.ones(1))[:4]


def over_a_break(x: torch.Tensor) -> tuple[Any, ...]:
    pair, half, word = (1, x), x.shape[0] / 3, "a" + str(x.shape[0])
    kept = [pair, half, word]
    tinycompile.graph_break()
    return pair is kept[0], half is kept[1], word is kept[2], x + 1


def test_over_a_break() -> None:
    assert tinycompile.compile(over_a_break, backend="eager")(torch.ones(3))[:3] == (True, True, True)
