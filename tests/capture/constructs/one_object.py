"""Which constants, tuples, numbers and texts are one object: those of the code are, what is computed is not."""

from __future__ import annotations

from tests.capture.constructs.registry import breaks, case

PAIR = (1, "b")


def one(a, b):
    return a is b


def pair():
    return (1, 2.5)


def default(a=(7, 8)):
    return a


@case
def constant_tuples_are_one(x):
    a, b = (1, 2.5), (1, 2.5)
    deep, deeper = ((1, 2), (3, 4.5)), ((1, 2), (3, 4.5))
    return a is b, deep is deeper, one(deep[0], (1, 2)), deep[1] is deeper[1], deep[1][1] is deeper[1][1], x


@case
def constant_tuples_of_a_loop(x):
    found = [(1, "b") for _ in range(3)]
    return found[0] is found[1], found[1] is found[2], PAIR is PAIR, found[0] is PAIR, x


@case
def constant_tuples_of_functions(x):
    def inner(a=(5, 6)):
        return a, (5, 7)

    return (
        pair() is pair(),
        default() is default(),
        inner()[0] is inner()[0],
        inner()[1] is inner()[1],
        one(inner()[0], (5, 6)),
        x,
    )


@breaks
def constant_tuples_over_a_break(x):
    a = (1, 2.5)
    print("break")
    return one(a, (1, 2.5)), pair() is pair(), a, x


@case
def constants_that_are_looked_for(x):
    known = (1, 2)
    return [known].index((1, 2)), known in [(1, 2)], [a is b for a in [known] for b in [(1, 2)]], x


@case
def all_of_a_tuple_is_itself(x):
    t, one = (1, 2.5), (1,)
    whole = t[:], t[0:5], t[::1], t + (), () + t, t * 1, 1 * t, tuple(t)
    return [w is t for w in whole], [w is t for w in (t[1:], t[::-1], t * 2)], one[::-1] is one, x


class Own(tuple):
    pass


@case
def all_of_an_own_tuple_is_another(x):
    t = Own((1, 2))
    return [(w is t, type(w).__name__) for w in (t[:], t + (), t * 1, () + t)], x
