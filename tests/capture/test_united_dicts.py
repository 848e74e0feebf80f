"""``a | b`` of dicts of all classes: whose class and whose default factory the result has, and who is asked."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.pure


class Derived(dict):
    pass


class Ordered(OrderedDict):
    pass


class FromTheRight(dict):
    def __ror__(self, other: Any) -> Any:
        return "right", [*self], [*other]


class FromTheLeft(dict):
    def __or__(self, other: Any) -> Any:
        return "left", [*self], [*other]


MAKERS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda d: defaultdict(list, d),
    "another defaultdict": lambda d: defaultdict(int, d),
    "defaultdict of nothing": lambda d: defaultdict(None, d),
    "Counter": Counter,
    "MappingProxyType": MappingProxyType,
    "Derived": Derived,
    "Ordered": Ordered,
    "FromTheRight": FromTheRight,
    "FromTheLeft": FromTheLeft,
    "pairs": lambda d: [*d.items()],
}


def in_place(a: Any, b: Any) -> Any:
    c = a
    c |= b
    return c, c is a


def asked_for_more(a: Any, b: Any) -> Any:
    made = a | b
    return made, made["new"] if isinstance(made, defaultdict) and made.default_factory else 0, made


OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (lambda a, b: a | b, operator.or_, in_place, operator.ior, asked_for_more)


def told(value: Any) -> Any:
    if isinstance(value, tuple):
        return [told(v) for v in value]
    items = [*value.items()] if hasattr(value, "items") else repr(value)
    return type(value), getattr(value, "default_factory", None), items


def answer(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return told(fn(*args))
    except (TypeError, AttributeError) as error:
        return str(error)


@pytest.mark.parametrize("right", MAKERS)
@pytest.mark.parametrize("left", MAKERS)
def test_united(left: str, right: str) -> None:
    make, other = MAKERS[left], MAKERS[right]
    for unite in OPERATORS:

        def given(x: Any, a: Any, b: Any, unite: Any = unite) -> Any:
            return x + 1, unite(a, b)

        def made(x: Any, unite: Any = unite) -> Any:
            return x + 1, unite(make({"x": 1, "y": 2}), other({"y": 3, "z": 4}))

        for fn, args in ((given, lambda: (make({"x": 1, "y": 2}), other({"y": 3, "z": 4}))), (made, lambda: ())):
            compiled = tinycompile.compile(fn, backend="eager")
            for _ in range(2):
                assert answer(compiled, torch.ones(2), *args()) == answer(fn, torch.ones(2), *args())
