"""Iterators of own classes: how often, and when, each is asked; delegation to them; where StopIteration comes from."""

from __future__ import annotations

import collections
import functools
import itertools
import math

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Own:
    """Gives 1 to ``n``, is at an end, and goes on."""

    def __init__(self, n=3, name="own"):
        self.i, self.n, self.name = 0, n, name

    def __iter__(self):
        log(("iter", self.name))
        return self

    def __next__(self):
        log(("next", self.name, self.i))
        self.i += 1
        if self.i % (self.n + 1) == 0:
            raise StopIteration(("value", self.i))
        return self.i


class Taking(Own):
    def send(self, value):
        log(("send", value))
        return "sent", value

    def throw(self, error):
        log(("throw", error if isinstance(error, type) else repr(error)))
        if self.n == 1:
            raise KeyError("other")
        if self.n == 2:
            raise StopIteration("thrown")
        return "thrown"


class Closing(Taking):
    def close(self):
        log("close")
        if self.n == 4:
            raise KeyError("close")


class Items:
    def __init__(self, n, fails=None):
        self.n, self.fails = n, fails

    def __getitem__(self, i):
        log(("item", i))
        if i == self.fails:
            self.fails = None
            raise ValueError("once")
        if i >= self.n:
            raise IndexError
        return i


class ByGenerator:
    def __iter__(self):
        log(("got", (yield 1)))
        try:
            yield 2
        except ValueError as error:
            log(repr(error))
        return "by generator"


def tried(fn, *args):
    try:
        return fn(*args)
    except StopIteration as error:
        return "stop", error.value
    except Exception as error:  # noqa: BLE001
        return repr(error), repr(error.__cause__), repr(error.__context__)


def delegating(iterator):
    try:
        result = yield from iterator
    except KeyError as error:
        result = "caught", repr(error), repr(error.__context__)
    yield "result", result
    yield "more"


# --- yield from ---


@case
def yield_from_own_iterators(x):
    return [list(delegating(o)) for o in (Own(), Taking(), ByGenerator(), [1, 2], enumerate(Own()), Items(2))], x


@case
def values_sent_to_own_iterators(x):
    a, b, c = delegating(Taking()), delegating(Own()), delegating(ByGenerator())
    first = [next(a), a.send(5), a.send(None), a.send("z")]
    second = [next(b), tried(b.send, 5)]
    return first, second, [next(c), c.send(7), tried(next, c)], x


@case
def errors_thrown_into_own_iterators(x):
    found = []
    for n in (1, 2, 3):
        for error in (ValueError("x"), ValueError):
            a = delegating(Taking(n))
            next(a)
            found.append([tried(a.throw, error), tried(next, a)])
    for error in (ValueError("y"), KeyError("y")):
        a = delegating(Own())
        next(a)
        found.append([tried(a.throw, error), tried(next, a)])
    a = delegating(ByGenerator())
    return found, next(a), next(a), tried(a.throw, ValueError("z")), tried(next, a), x


@case
def own_iterators_closed(x):
    def closing(iterator):
        try:
            yield from iterator
        except GeneratorExit:
            log("exit")
            raise
        finally:
            log("finally")

    found = []
    for iterator in (Closing(), Closing(4), Taking(), ByGenerator()):
        a = closing(iterator)
        next(a)
        found.append(tried(a.close))
    return found, x


@case
def own_iterators_deep_inside(x):
    def inner(iterator):
        return (yield from iterator)

    def outer(iterator):
        yield "result", (yield from inner(iterator))

    a = outer(Closing())
    found = [next(a), a.send(3), tried(a.throw, ValueError("x"))]
    a.close()
    return found, x


@breaks
def own_iterators_dropped(x):
    a = delegating(Closing())
    next(a)
    log("before")
    a = delegating(Own())
    log("after")
    return next(a), x


# --- behind an end ---


@case
def own_iterator_is_its_iterator(x):
    own = Own(2)
    it = iter(own)
    return it is own, [next(it), next(it), next(it, "end"), next(it), next(it), next(it, "end")], x


WRAPPERS = (
    enumerate, iter, itertools.accumulate, itertools.pairwise, itertools.cycle,
    lambda own: map(lambda v: v * 2, own), lambda own: zip(own, itertools.count(5)), lambda own: zip([7, 8, 9, 10, 11], own),
    lambda own: filter(None, own), lambda own: filter(lambda v: v > 0, own), lambda own: itertools.islice(own, 10),
    lambda own: itertools.takewhile(lambda v: True, own), lambda own: itertools.dropwhile(lambda v: False, own),
    lambda own: itertools.starmap(max, zip(own, own)), lambda own: itertools.compress(own, [1] * 10),
    lambda own: itertools.compress("abcdefg", own), lambda own: itertools.filterfalse(lambda v: False, own),
    lambda own: itertools.chain(own, [5]), lambda own: itertools.chain.from_iterable([own, [5]]),
    lambda own: itertools.zip_longest(own, [1]), lambda own: itertools.tee(own)[1], lambda own: (v for v in own), lambda own: zip(own, range(9), strict=True),
)  # fmt: skip


@case
def own_iterators_asked_behind_their_end(x):
    found = []
    for wrapper in WRAPPERS:
        log("next one")
        it = wrapper(Own(2))
        found.append([tried(next, it) for _ in range(8)])
    return found, x


@case(args=lambda: (Own(2), r(2)))
def own_iterator_in_many_loops(own, x):
    it, found = map(lambda v: v + 1, own), []
    for v in own:
        x = x + v
    for v in own:
        found.append(v)
        break
    return found, [*it], [*it], list(own), x


@case
def items_until_an_error(x):
    a, b = iter(Items(2)), iter(Items(3, fails=1))
    return [tried(next, a) for _ in range(4)], [tried(next, b) for _ in range(6)], x


@case
def calls_until_a_sentinel(x):
    values = [1, 2, 3, 4, 5]

    def pop():
        log(len(values))
        v = values.pop(0)
        if v == 2:
            raise ValueError("two")
        if v == 4:
            raise StopIteration("four")
        return v

    it = iter(pop, 99)
    return [tried(next, it) for _ in range(6)], x


# --- StopIteration inside generators ---


@case
def stop_thrown_into_generators(x):
    def plain():
        yield 1

    def cleaning():
        try:
            yield 1
        finally:
            log("finally")

    def catching():
        try:
            yield 1
        except StopIteration as error:
            yield "caught", error.value

    found = []
    for make in (plain, cleaning, catching):
        for asked in range(3):
            for error in (StopIteration(3), StopIteration):
                made = make()
                given = [next(made, "end") for _ in range(asked)]
                found.append([given, tried(made.throw, error), tried(next, made)])
    return found, x


@case
def stop_thrown_through_yield_from(x):
    def inner():
        yield 1

    a, b = delegating(inner()), delegating([1, 2])
    return next(a), tried(a.throw, StopIteration(3)), tried(next, a), next(b), tried(b.throw, StopIteration(4)), x


@case
def what_close_gives(x):
    def made():
        try:
            yield 1
        except GeneratorExit:
            return 7

    a, b = made(), made()
    next(a)
    return a.close(), a.close(), b.close(), x


@case
def generator_throws_into_itself(x):
    box = []

    def made():
        for ask in (lambda: next(box[0]), lambda: box[0].throw(KeyError("a"))):
            yield tried(ask)

    box.append(made())
    return list(box[0]), x


# --- how often ---


CONSUMERS = (
    min, max, sum, tuple, list, set, any, all, sorted, frozenset, dict.fromkeys, collections.Counter, collections.deque, math.prod,
    lambda own: [*own], lambda own: (*own,), lambda own: {*own}, lambda own: 2 in own, lambda own: 9 in own,
    lambda own: functools.reduce(max, own), lambda own: "".join(map(str, own)), lambda own: [v for v in own],
    lambda own: list(zip(own, own)), lambda own: list(zip(own, [1])), lambda own: list(zip([1], own)),
    lambda own: list(zip(own, Own(2, "other"))), lambda own: list(zip(Own(4, "other"), own)), lambda own: sum(own, 10),
    lambda own: min(own, default=3), lambda own: max(own, key=lambda v: -v), lambda own: list(itertools.product(own, own)),
    lambda own: list(itertools.zip_longest(own, Own(5, "other"))), lambda own: [].extend(own), lambda own: dict(zip(own, own)),
    lambda own: list(itertools.islice(own, 2)), lambda own: list(itertools.islice(own, 1, 3)),
    lambda own: list(itertools.islice(own, 5)), lambda own: list(itertools.chain(own, Own(1, "other"))),
    lambda own: list(map(max, own, Own(1, "other"))), lambda own: list(map(max, Own(1, "other"), own)),
    lambda own: next(itertools.groupby(own))[0], lambda own: list(itertools.combinations(own, 2)),
    lambda own: list(itertools.tee(own)[1]),
)  # fmt: skip


@case
def how_often_own_iterators_are_asked(x):
    found = []
    for consumer in CONSUMERS:
        log("next one")
        found.append(tried(consumer, Own(3)))
    return found, x


def two(own):
    a, b = own
    return a, b


def two_at_least(own):
    a, b, *c = own
    return a, b, c


def three(own):
    a, b, c = own
    return a, b, c


def four_at_least(own):
    *a, b, c, d, e = own
    return a, b, c, d, e


@case
def how_often_own_iterators_are_unpacked(x):
    found = []
    for unpack in (two, two_at_least, three, four_at_least, lambda own: max(*own)):
        log("next one")
        found.append(tried(unpack, Own(3)))
    return found, x


@case
def own_iterators_put_into_lists(x):
    values, members = [1, 2, 3], {1}
    values[1:2] = Own(2)
    values += Own(2)
    values.extend(Own(1))
    members.update(Own(2))
    return values, members, x


@case
def groups_of_own_iterators(x):
    it = itertools.groupby(Own(2), lambda v: v > 3)
    key, group = next(it)
    found = [tried(next, group) for _ in range(4)]
    other, second = next(it)
    return key, found, other, tried(next, group), [tried(next, second) for _ in range(4)], tried(lambda: next(it)[0]), x


class Equal:
    def __init__(self, v, then=None):
        self.v, self.then = v, then

    def __eq__(self, other):
        log((self.v, getattr(other, "v", other)))
        if self.then is not None:
            self.then()
        return self.v == getattr(other, "v", other)

    __hash__ = None


@case
def which_keys_of_groups_are_compared(x):
    found = [(key.v, [v.v for v in group]) for key, group in itertools.groupby(map(Equal, [1, 1, 2, 3, 3]))]
    return found, [key.v for key, _ in itertools.groupby(map(Equal, [1, 1, 2]))], x


@case
def lists_changed_while_looked_through(x):
    grows, shrinks, empties = ([Equal(1), Equal(2), Equal(3)] for _ in range(3))
    grows[0].then, shrinks[1].then, empties[1].then = lambda: grows.append(Equal(7)), lambda: shrinks.pop(0), empties.clear
    found = [tried(grows.index, 7), tried(grows.count, 7), tried(grows.index, 2, 1, 2), tried(grows.index, 1, -9, -1)]
    shrinks.remove(2)
    empties.remove(2)
    return found, [[v.v for v in values] for values in (grows, shrinks, empties)], x
