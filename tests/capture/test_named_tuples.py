"""Named tuples whose classes change between calls: defaults, fields, what subclasses define."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure
X = torch.ones(2)


def both(fn: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> None:
    results = []
    for run in (fn, compiled):
        try:
            results.append(repr(run(X, *args)))
        except TypeError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_defaults_are_those_of_the_call() -> None:
    for pair in (namedtuple("P", "a b", defaults=[1]), namedtuple("Q", "a b")):

        def run(x: torch.Tensor, pair: Any = pair) -> Any:
            return pair(x), pair(b=2, a=x * 3)

        compiled = CompiledFunction(run, Options(backend="eager"))
        for defaults in (pair.__new__.__defaults__, (7,), (None,) * 2, None, (X,)):
            pair.__new__.__defaults__ = defaults  # type: ignore[attr-defined]
            both(run, compiled)
            both(lambda x, pair=pair: pair(), CompiledFunction(lambda x, pair=pair: pair(), Options(backend="eager")))


def test_another_new_is_called() -> None:
    pair = namedtuple("pair", "a b")

    def run(x: torch.Tensor) -> Any:
        return tuple(pair(x, 1)), pair(x, 1).b

    compiled = CompiledFunction(run, Options(backend="eager"))
    both(run, compiled)
    pair.__new__ = lambda cls, a, b: tuple.__new__(cls, (a, b + 1))  # type: ignore[method-assign,misc,assignment]
    both(run, compiled)


def subclass() -> Any:
    class Named(NamedTuple):
        a: int
        b: int

    class Sub(Named):
        k = 3

        @property
        def s(self) -> int:
            return self.a

        def m(self) -> int:
            return 1

        @classmethod
        def c(cls) -> int:
            return 2

    return Sub


MADE: dict[str, Callable[[Any], Any]] = {
    "s": lambda t: t.s,
    "m": lambda t: t.m(),
    "c": lambda t: t.c(),
    "k": lambda t: t.k,
    "a": lambda t: t.a,
    "count": lambda t: t.count(1),
    "_replace": lambda t: t._replace(a=5),
    "_asdict": lambda t: t._asdict(),
    "__len__": len,
    "__bool__": bool,
    "__getitem__": lambda t: t[0],
    "__contains__": lambda t: 1 in t,
    "__iter__": lambda t: ([*t], t.count(1), t + (1,)),
    "__eq__": lambda t: t == (1, 2),
    "__lt__": lambda t: t < (5,),
    "__hash__": hash,
    "__add__": lambda t: t + (1,),
    "__repr__": lambda t: [f"{t}", repr([t])],
    "__str__": str,
    "__format__": lambda t: f"{t}",
}
REPLACED: dict[str, Any] = {
    "__contains__": lambda self, item: False,
    "__eq__": lambda self, other: False,
    "__bool__": lambda self: False,
    "__iter__": lambda self: iter("abc"),
    "__len__": lambda self: 7,
    "__hash__": lambda self: 7,
    "_asdict": lambda self: 7,
    "_replace": lambda self, **changes: 7,
    "m": lambda self: 7,
    "c": classmethod(lambda cls: 7),
    "s": property(lambda self: 7),
}
TEXTS = dict.fromkeys(("__repr__", "__str__"), lambda self: "text") | {"__format__": lambda self, spec: "text"}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("given", [False, True])
def test_what_a_subclass_defines_is_that_of_the_call(name: str, given: bool) -> None:
    cls = subclass()

    def run(x: torch.Tensor, *given: Any) -> Any:
        return x, MADE[name](*given or [cls(1, 2)])

    compiled = CompiledFunction(run, Options(backend="eager"))
    other = {**REPLACED, **TEXTS}.get(name, lambda self, other: 7)
    for member in (None, other, *([] if name.startswith("__") else [5, property(lambda self: 9)])):
        if member is not None:
            setattr(cls, name, member)
        both(run, compiled, *([cls(1, 2)] * given))


def test_attributes_of_its_own_come_first() -> None:
    cls = subclass()

    def run(x: torch.Tensor, t: Any) -> Any:
        return x + t.m(), getattr(t, "more", None), hasattr(t, "z"), t.a

    compiled = CompiledFunction(run, Options(backend="eager"))
    given = cls(1, 2)
    for name, value in (("", None), ("more", 3), ("z", 1), ("m", lambda: 9)):
        if name:
            setattr(given, name, value)
        both(run, compiled, given)
        both(run, compiled, cls(1, 2))
    assert not CompiledFunction(run, Options(backend="eager", fullgraph=True))(X, cls(1, 2))[2]


def test_members_of_an_unchanged_class_break_no_graph() -> None:
    cls = subclass()

    def run(x: torch.Tensor, t: Any) -> Any:
        made = t._replace(a=x)
        return made.a + t.s + t.m() + t.c() + t.k + len(t) + t[1], f"{t}", t == (1, 2), [*t], t + (3,), t._asdict(), t.count(1)

    f = CompiledFunction(run, Options(backend="eager", fullgraph=True))
    for _ in range(2):
        both(run, f, cls(1, 2))
    assert len(f.all_entries) == 1


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize("name", ["_fields", "_make", "_replace", "values", "n_fields", "__match_args__", "a"])
def test_which_attributes_they_have(name: str) -> None:
    def run(x: torch.Tensor) -> Any:
        found = []
        for made in (x.max(1), Pair(1, 2), x.shape, (1, 2)):
            try:
                getattr(made, name)
            except AttributeError as error:
                found.append(str(error))
            found.append(hasattr(made, name))
        return found, x + 1

    compiled, x = CompiledFunction(run, Options(backend="eager")), torch.ones(2, 2)
    for _ in range(2):
        assert compiled(x)[0] == run(x)[0]
