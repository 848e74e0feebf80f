"""Changes of dicts whose keys are objects, and of the dicts of classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from tests.capture.changes.stories import AS_BEFORE, UNRELATED, Story, story
from tests.capture.corpus import r

X = r(2, 3)


class Node:
    def __init__(self, n: float) -> None:
        self.n = n


@story
def objects_that_are_keys() -> Story:
    a, b, c = Node(1.0), Node(2.0), Node(3.0)
    table: dict[Any, float] = {a: 2.0, b: 3.0}
    yield lambda x: x * sum(k.n * v for k, v in table.items()) + table.get(c, 0.5) + (c in table), X
    table[c] = 4.0
    yield
    del table[c]
    yield AS_BEFORE
    table[a] = table.pop(a)  # another order
    table[b] = 5.0
    yield
    a.n = 7.0
    yield


@story
def another_object_under_an_equal_name() -> Story:
    a, b = Node(1.0), Node(1.0)
    table: dict[Any, Any] = {a: 2.0}
    yield lambda x, k: x * table.get(k, 9.0), X, a
    table[b] = table.pop(a)
    yield


@story
def an_argument_becomes_a_key() -> Story:
    a, b = Node(1.0), Node(2.0)
    given: dict[Any, Any] = {a: 2.0}
    yield lambda x, d, k: x * (5 if k in d else 3), X, given, b
    given[b] = 1.0
    yield
    del given[b]
    yield AS_BEFORE


@story
def modules_and_parameters_as_keys() -> Story:
    layer, other, weight = nn.Linear(3, 3), nn.Linear(3, 3), nn.Parameter(torch.ones(3))
    table: dict[Any, float] = {layer: 2.0, weight: 3.0, "name": 4.0}
    yield lambda x: x * table[layer] + weight * table[weight] + (other in table) + table["name"], X
    table["name"] = 5.0
    yield
    table[other] = 1.0
    yield
    weight.data = torch.full((3,), 2.0)
    yield
    table[weight] = 8.0
    yield


@story
def names_in_the_dict_of_a_class() -> Story:
    class Base:
        scale = 2.0

    class Own(Base):
        kept = 1.0

    yield lambda x: x * vars(Own).get("scale", 3.0) + Base.__dict__["scale"] + ("kept" in Own.__dict__), X
    Own.more = 1.0  # type: ignore[attr-defined]
    yield UNRELATED
    Own.scale = 4.0
    yield
    Base.scale = 5.0
    yield
    del Own.kept
    yield


@story
def all_names_in_the_dict_of_a_class() -> Story:
    class Own:
        first, second = 2.0, 3.0

    yield lambda x: x * sum(v for k, v in vars(Own).items() if not k.startswith("_")), X
    Own.third = 4.0  # type: ignore[attr-defined]
    yield
    Own.first = 7.0
    yield
    del Own.second
    yield


@story
def a_method_in_the_dict_of_a_class() -> Story:
    class Own:
        def scaled(self, x: Any) -> Any:
            return x * 2

    yield lambda x: Own.__dict__["scaled"](None, x), X
    Own.scaled = lambda self, x: x * 3  # type: ignore[method-assign]
    yield


@story
def a_key_with_a_hash_of_its_own_changes() -> Story:
    @dataclasses.dataclass(unsafe_hash=True)
    class Point:
        a: int

    key, other = Point(1), Point(2)
    table = {key: 2.0, other: 3.0}
    yield lambda x: x * table.get(Point(1), 5.0) + table.get(Point(2), 7.0) + (Point(3) in table), X
    key.a = 3
    yield
    key.a = 1
    yield AS_BEFORE
    table[Point(3)] = 1.0
    yield
