"""Which constants, tuples, numbers and texts are one object: those of the code are, what is computed is not."""

from __future__ import annotations

from tests.capture.constructs.registry import breaks, case
from tests.capture.corpus import r

PAIR = (1, "b")


def one(a, b):
    return a is b


def pair():
    return (1, 2.5)


def default(a=(7, 8)):
    return a


def collected(*args):
    return args


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
def tuples_are_made_anew(x):
    a, b = 1, 2
    s, t = (a, b), (a, b)
    return s is t, collected(a, b) is collected(a, b), collected(*s) is s, one(collected(), ()), (*s,) is s, one(s, (1, 2)), x


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


@case
def numbers_and_texts_are_computed_anew(x):
    n, a, s = 1000, 0.1, "text"
    pairs = (
        (n * n, n * n), (a * 3, a * 3), (s + str(n), s + str(n)), (f"{s}{n}", f"{s}{n}"), (s.upper(), s.upper()),
        (b"ab" + b"c", b"ab" + b"c"), (range(n), range(n)), (divmod(n * n, 3)[0], divmod(n * n, 3)[0]), (len(range(n)), n),
        (sum([n, n]), sum([n, n])), (frozenset([n]), frozenset([n])), (s.split("x")[0], s.split("x")[0]), (1j + n, 1j + n),
    )  # fmt: skip
    return [p is q for p, q in pairs], x


@case
def what_is_given_back_is_the_same(x):
    s, i, f = "hello world", 123456, 2.5
    given = (
        (str(s), s), (s[:], s), (s + "", s), (f"{s}", s), ("".join([s]), s), (s.strip(), s), (s.replace("zz", "y"), s),
        (int(i), i), (+i, i), (abs(i), i), (max(i, 2), i), (round(i), i), (float(f), f), (frozenset(frozenset()), frozenset()),
    )  # fmt: skip
    return [p is q for p, q in given], x


@breaks(args=lambda: (r(2), "".join(["some", " text"]), 10**10 + 1))
def what_is_given_back_of_arguments(x, s, n):
    found = [str(s) is s, int(n) is n, f"{s}" is s, "".join([s]) is s, s.strip() is s, s.upper() is s]
    print("break")
    return found, str(s) is s, x


@breaks
def computed_over_a_break(x):
    n = 300
    s, t, i, j = "a b" + str(n), "a b" + str(n), n * n, n * n
    same = s
    print("break")
    return s is t, same is s, i is j, x


@case
def odd_numbers_computed(x):
    zero, infinite = 0.0, float("inf")
    return -zero, infinite - infinite, infinite * 1, complex(-0.0, 1) * 1, 10**20 * 3, -(10**20), "\u0416" * 3, x
