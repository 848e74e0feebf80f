"""What a call was given dies when the program lets go of it, also in the call that compiles: capture leaves no cycle of references
behind, which only the collector would find."""

from __future__ import annotations

import collections
import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.base.errors import GraphBreakError

pytestmark = pytest.mark.pure


def loop(x):
    for i in (1, 2):
        x = x + i
    return x


def loops_over_iterators(x):
    for i, row in enumerate(zip(x, reversed([1, 2]), strict=True)):
        x = x + row[0] * i
    return x, list(map(lambda k: k + 1, filter(None, (0, 1)))), sum(k for k in (1, 2))


def comprehension(x):
    return x + 1, [q for q in (1, 2)], {q: x for q in "ab"}


def rows(x):
    return [row + 1 for row in x]


def end_of_an_iterator(x):
    steps = iter((x,))
    try:
        return next(steps) + next(steps)
    except StopIteration as end:
        return x, end.value


class Countdown:
    def __init__(self, n, x):
        self.n, self.x = n, x

    def __iter__(self):
        return self

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration(self.x)
        return self.n


def own_iterator(x):
    return x + sum(Countdown(3, x)), [*zip(Countdown(2, x), (1, 2, 3), strict=False)]


def delegating(x):
    def inner():
        got = yield x
        return got

    def outer():
        yield (yield from inner())

    steps = outer()
    return next(steps), steps.send(3)


def asleep(x):
    steps = (x + i for i in range(3))
    return next(steps)


@contextlib.contextmanager
def region(x):
    try:
        yield x + 1
    finally:
        len("closed")


def managed(x):
    with region(x) as y, contextlib.suppress(KeyError):
        raise KeyError(y.shape)
    return y


def caught(x):
    try:
        raise ValueError(x.dim())
    except ValueError as error:
        return x, error.args


class Bag(list):
    pass


class Registry(collections.OrderedDict):
    pass


def containers(x):
    bag, registry, count = Bag([x]), Registry(x=x), collections.Counter("aab")
    bag.name = "bag"
    registry.name = bag
    return bag[0] + count["a"], registry["x"]


def breaks(x):
    y = [x + i for i in (1, 2)]
    tinycompile.graph_break()
    return [x + i for i in y]


def breaks_inside(x):
    def inner():
        for i in (1, 2):
            tinycompile.graph_break()
            yield x + i

    return list(inner())


def raises(x):
    for i in (1, 0):
        x = x + 1 // i
    return x


def lacks(x):
    return x.lacks


FUNCTIONS = [loop, loops_over_iterators, comprehension, rows, end_of_an_iterator, own_iterator, delegating, asleep, managed, caught,
             containers, breaks, breaks_inside, raises, lacks]  # fmt: skip


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def lives_on(run: Callable[..., Any], *makes: Callable[[], Any]) -> bool:
    """Whether an argument is alive when a call is over. ``makes``: make more of them."""
    x = torch.ones(2, 2)
    alive = weakref.ref(x)
    with warnings.catch_warnings(), contextlib.suppress(ArithmeticError, AttributeError, GraphBreakError):
        warnings.simplefilter("error")
        run(x, *(make() for make in makes))
    del x
    return alive() is not None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_arguments_die_with_the_call_that_compiles(fn: Any, backend: str) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    with without_collector():
        assert not lives_on(fn)
        assert not lives_on(compiled)
        assert not lives_on(compiled)


@pytest.mark.parametrize("fn", [breaks, breaks_inside, raises], ids=lambda fn: fn.__name__)
def test_arguments_die_where_a_break_is_an_error(fn: Any) -> None:
    with without_collector():
        assert not lives_on(tinycompile.compile(fn, backend="eager", fullgraph=True))


@pytest.mark.parametrize("make", [Bag, Registry, collections.Counter, collections.deque, lambda: Countdown(2, 1)])
def test_containers_of_the_programs_die(make: Any) -> None:
    def run(x, given):
        if not isinstance(given, collections.deque):  # which has no attributes
            given.name = x
        return x + len(given) if hasattr(given, "__len__") else x + sum(given)

    compiled = tinycompile.compile(run, backend="eager")
    with without_collector():
        for _ in range(2):
            assert not lives_on(compiled, make)


def test_a_generator_ends_where_it_ends_in_eager() -> None:
    """The finding that showed it: its ``finally`` ran at the next collection."""
    log: list[str] = []

    def steps():
        try:
            yield 1
        finally:
            log.append("closed")

    def run(x, make):
        next(make())
        tinycompile.graph_break()
        log.append("behind")
        return x, [-1 for _ in (1, 2)]

    with without_collector():
        for call in (run, tinycompile.compile(run, backend="eager")):
            log.clear()
            call(torch.ones(2), steps)
            assert log == ["closed", "behind"]
