"""When objects end whose end is noticed, and in which order: as in eager, at a function's end, in it, and over breaks."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.capture.endings import ends_quietly

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("no_collector")]
LOG: list[str] = []


class Noisy:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(self.name)


class Plain:
    pass


class NoisyList(list):
    def __del__(self) -> None:
        LOG.append("list")


class NoisyTuple(tuple):
    def __del__(self) -> None:
        LOG.append("tuple")


class NoisyDict(dict):
    def __del__(self) -> None:
        LOG.append("dict")


class NoisySet(set):
    def __del__(self) -> None:
        LOG.append("set")


class NoisyError(Exception):
    def __del__(self) -> None:
        LOG.append("error")


class NoisyModule(torch.nn.Module):
    def __del__(self) -> None:
        LOG.append("module")


@dataclasses.dataclass
class NoisyData:
    name: str

    def __del__(self) -> None:
        LOG.append(self.name)


class Giving:
    def __enter__(self) -> Noisy:
        return Noisy("given")

    def __exit__(self, *_: Any) -> None:
        LOG.append("exit")


def calls(name: str) -> Callable[[Any], None]:
    return lambda ref: LOG.append(name)


def variables(x):
    a, b, c = Noisy("a"), Noisy("b"), Noisy("c")
    LOG.append("end")
    return x + 1


def variables_bound_the_other_way(x):
    if x is None:
        a = b = None
    b = Noisy("b")
    a = Noisy("a")
    LOG.append("end")
    return x + 1


def variables_over_a_break(x):
    a = Noisy("a")
    y = x + 1
    tinycompile.graph_break()
    b = Noisy("b")
    c = y * 2
    d = Noisy("d")
    tinycompile.graph_break()
    LOG.append("end")
    return c


def shared_variables(x):
    a = Noisy("a")
    b = Noisy("b")

    def inner():
        return b.name

    c = Noisy(inner() + "c")
    LOG.append("end")
    return x + 1


def in_containers(x):
    a = [Noisy("1"), Noisy("2")]
    b = {"k": Noisy("3"), "l": Noisy("4")}
    c = (Noisy("5"), Noisy("6"))
    LOG.append("end")
    return x + 1


def in_an_attribute(x):
    a, b = Plain(), Noisy("b")
    a.held = Noisy("a")
    LOG.append("end")
    return x + 1


def of_a_callee(x):
    def inner(x):
        a, b = Noisy("a"), Noisy("b")
        return x + 1

    y = inner(x)
    LOG.append("out")
    return y


def behind_an_error(x):
    def inner(x):
        a, b = Noisy("a"), Noisy("b")
        raise ValueError("v")

    c = Noisy("c")
    try:
        d = Noisy("d")
        inner(x)
    except ValueError:
        LOG.append("caught")
    LOG.append("end")
    return x + 1


def temporaries(x):
    y = (Noisy("t").name, x + 1, LOG.append("mid"))[1]
    Noisy("u")
    LOG.append("end")
    return y


def bound_again(x):
    a = Noisy("a1")
    a = Noisy("a2")
    LOG.append("mid")
    del a
    LOG.append("end")
    return x + 1


def returned(x):
    a, b, c = Noisy("a"), Noisy("b"), Noisy("c")
    LOG.append("end")
    return x + 1, b


def containers_of_the_program(x):
    a, b, c, d = NoisyList([1]), NoisyTuple((1, 2)), NoisyDict(k=1), NoisySet([1])
    a.append(2)
    d.add(3)
    LOG.append("end")
    return x + len(a) + len(b) + len(c) + len(d)


def containers_that_go(x):
    for kind in (NoisyList, NoisyTuple, NoisySet):
        a = kind([1, 2])
        x = x + len(a)
        LOG.append("round")
    del a
    LOG.append("end")
    return x


def errors(x):
    try:
        raise NoisyError("e")
    except NoisyError:
        LOG.append("caught")
    LOG.append("end")
    return x + 1


def data(x):
    a = dataclasses.replace(NoisyData("a"), name="b")
    LOG.append("end")
    return x + 1


def copies(x):
    a = Noisy("a")
    b = copy.copy(a)
    b.name = "b"
    LOG.append("end")
    return x + 1


def managers(x):
    with Giving() as d:
        LOG.append("body")
    LOG.append("end")
    return x + 1


def generators(x):
    def values():
        a, b = Noisy("a"), Noisy("b")
        yield 1
        yield 2

    for v in values():
        break
    LOG.append("end")
    return x + v


def watched_object(x):
    a = Plain()
    r = weakref.ref(a, calls("gone"))
    f = weakref.finalize(a, LOG.append, "finalised")
    LOG.append("mid")
    del a
    LOG.append("end")
    return x + 1, r() is None, f.alive


def watched_tensor(x):
    y = x + 1
    r = weakref.ref(y, calls("gone"))
    LOG.append("mid")
    del y
    LOG.append("end")
    return x + 1, r() is None


def watched_tensor_that_is_used(x):
    y = x + 1
    r = weakref.ref(y, calls("gone"))
    z = y * 2
    del y
    LOG.append("end")
    return z, r() is None


def watched_function(x):
    def f():
        return 1

    r = weakref.ref(f, calls("gone"))
    z = x + f()
    del f
    LOG.append("end")
    return z, r() is None


def watched_variables(x):
    a, b = Plain(), Plain()
    r, s = weakref.ref(b, calls("b")), weakref.ref(a, calls("a"))
    kept.extend((r, s))
    LOG.append("end")
    return x + 1


kept: list[Any] = []
FUNCTIONS = (
    variables, variables_bound_the_other_way, variables_over_a_break, shared_variables, in_containers, in_an_attribute,
    of_a_callee, behind_an_error, temporaries, bound_again, returned, containers_of_the_program, containers_that_go, errors,
    data, copies, managers, generators, watched_object, watched_tensor, watched_tensor_that_is_used, watched_function,
    watched_variables,
)  # fmt: skip


def told(fn: Callable[..., Any], x: torch.Tensor) -> tuple[list[str], list[Any]]:
    LOG.clear()
    found = fn(x)
    told_inside = [*LOG, "returned"]
    shown = [f.tolist() if isinstance(f, torch.Tensor) else f for f in found if not isinstance(f, Noisy)]
    del found
    told_inside += LOG[len(told_inside) - 1 :]
    kept.clear()
    return told_inside, shown


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_they_end_as_in_eager(fn: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(fn, backend="eager")
    for n in (1.0, 2.0, 3.0):
        x = torch.full((2,), n)
        assert told(compiled, x) == told(fn, x)


def test_nobody_waits_for_a_tensor_that_is_only_referred_to() -> None:
    x, f = torch.ones(2), variables
    refs = [weakref.ref(x), weakref.ref(f)]
    assert ends_quietly(x) and ends_quietly(f)
    refs += [weakref.ref(x, calls("x"))]
    assert not ends_quietly(x) and not ends_quietly([x])
    assert not ends_quietly(NoisyModule()) and ends_quietly(torch.nn.Linear(1, 1))
