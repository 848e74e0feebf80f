# ruff: noqa: F601, PLR0124, SIM201
"""What classes say about comparisons and operators; keys by identity; the order of sets; attributes with odd names."""

from __future__ import annotations

import torch

from tests.capture.constructs.registry import case, log
from tests.capture.corpus import r


class Talks:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        log("eq")
        return ["eq", self.v]

    def __ne__(self, other):
        log("ne")
        return ("ne", self.v)

    def __lt__(self, other):
        return None


class TalksLouder(Talks):
    def __eq__(self, other):
        log("louder")
        return "louder"


class Never:
    def __eq__(self, other):
        log("never")
        return False


class Undecided:
    def __eq__(self, other):
        log("undecided")
        return NotImplemented

    def __add__(self, other):
        log("add")
        return NotImplemented

    def __radd__(self, other):
        log("radd")
        return ("radd", other)


class Specific(Undecided):
    def __radd__(self, other):
        log("specific")
        return "specific"


class Bag:
    pass


@case
def comparisons_give_what_they_like(x):
    return x, Talks(1) == Talks(2), Talks(1) != Talks(2), Talks(1) < Talks(2), 3 == Talks(1), Talks(1) != 3, x == Talks(4)


@case
def a_subclass_is_asked_first(x):
    return x, Talks(1) == TalksLouder(2), TalksLouder(1) == Talks(2), Undecided() + Specific(), 1 + Undecided()


@case
def operators_of_one_kind_are_asked_once(x):
    try:
        return Undecided() + Undecided()
    except TypeError as error:
        return x, str(error)


@case
def equal_to_nothing(x):
    n, a = Never(), float("nan")
    return (
        x,
        n == n,
        n != n,
        n in [n],
        [n] == [n],
        n is n,
        a == a,
        a != a,
        a in [a],
        [a] == [a],
        (a,).count(a),
        {1: a} == {1: a},
    )


@case
def undecided_about_itself(x):
    u = Undecided()
    return x, u == u, u != u, u == Undecided(), u == 3, x == u, u != x


@case(args=lambda: (lambda t: (t, t, r(2)))(r(4)))
def one_tensor_under_two_names_is_one_key(x, y, z):
    d = {x: 1, z: 2}
    d[y] = 3
    return y in d, len(d), d[x], len({x, y, z}), z in {x: 0}


@case(args=lambda: (lambda b: (b, b, Bag(), r(4)))(Bag()))
def one_object_under_two_names_is_one_key(a, b, c, x):
    d = {a: 1}
    return x, b in d, c in d, len({a, b, c})


@case(args=lambda: (set([0, 8]), r(4)))
def order_of_a_set_from_outside(s, x):
    return x, list(s), min(s), sorted(s | {3})


@case(args=lambda: (Bag(), r(4)))
def attributes_with_odd_names(b, x):
    setattr(b, "not a name", x)
    setattr(b, "class", 1)
    c = Bag()
    setattr(c, "for", 2)
    return getattr(b, "not a name") + 1, getattr(b, "class"), c, hasattr(b, "no such name"), torch.is_tensor(x)
