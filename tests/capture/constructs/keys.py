"""Objects as keys of dicts and members of sets, whose hash and equality the program defines."""

from __future__ import annotations

import collections
import dataclasses

import torch
from torch import nn

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


@dataclasses.dataclass(frozen=True)
class Point:
    a: int
    b: str = "q"
    note: object = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Nested:
    point: Point
    shape: tuple = ()


@dataclasses.dataclass(unsafe_hash=True)
class Changing:
    a: int


@dataclasses.dataclass
class NoHash:
    a: int


class Mod:
    """Numbers that are equal modulo three; every other pair collides."""

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return self.n % 3 % 2

    def __eq__(self, other):
        return isinstance(other, Mod) and (self.n - other.n) % 3 == 0


class Loud:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        log(("hash", self.n))
        return 1

    def __eq__(self, other):
        log(("eq", self.n, other.n))
        return self.n == other.n


class Failing:
    def __hash__(self):
        raise ValueError("no hash")


POINT, TABLE = Point(2), {nn.Linear: 2, nn.ReLU: 3, int: 4, len: 5, ("a", dict): 6}


@case
def frozen_dataclasses(x):
    d = {Point(1): x, Point(2): x + 1}
    d[Point(1)] = x * 3
    d[Point(1, "z")] = x * 4
    found = d[Point(1)], d.get(Point(3)), Point(2) in d, Point(1, "q", [1]) in d, d.pop(Point(2)), d.setdefault(Point(5), 7)
    return found, len(d), {Point(1), Point(1), Point(2)} == {Point(2), Point(1)}, hash(Point(1)) == hash(Point(1))


@case
def frozen_dataclasses_leave(x):
    key = Point(1, "k")
    d = {key: x, Point(2): [key]}
    d[Point(1, "k", "another")] = x + 1
    return d, key, next(iter(d)) is key, {key}, {Nested(key, (1, 2)): 3}


@case(args=lambda: (r(4), POINT, Point(2)))
def frozen_dataclasses_from_outside(x, a, b):
    d = {a: x}
    return d[b], b in {a}, a is b, d[POINT], len({a, b, Point(2), Point(3)})


@case
def classes_with_a_hash(x):
    d = {Mod(0): "zero", Mod(1): "one", Mod(2): "two"}
    d[Mod(4)] = "four"
    return d[Mod(3)], d[Mod(7)], len(d), Mod(5) in d, [k.n for k in d], Mod(5) in {Mod(2)}, len({Mod(n) for n in range(9)}), x


@case
def missing_keys(x):
    errors = []
    for look in (lambda: {Mod(0): 1}[Mod(1)], lambda: {Mod(0)}.remove(Mod(2)), lambda: {}.pop(Point(9)), lambda: {1: 2}[(3,)]):
        try:
            look()
        except KeyError as error:
            errors.append((type(error.args[0]).__name__, len(error.args)))
    return errors, x


@case
def methods_as_keys(x):
    a, b = Mod(0), Mod(3)
    calls = {a.__eq__: 1, b.__eq__: 2}
    return len(calls), a == b, calls[a.__eq__], x


@case
def defaults_and_counts(x):
    d = collections.defaultdict(list)
    for n in range(5):
        d[Mod(n)].append(n)
    counts = collections.Counter(Point(n % 2) for n in range(5))
    return [*d.values()], counts[Point(0)], counts[Point(1)], d.keys() == {Mod(0): 1, Mod(1): 1, Mod(2): 1}.keys(), x


@case
def dispatch_tables(x):
    kinds = [TABLE[cls] for cls in (nn.ReLU, type(3))]
    return x * kinds[0], kinds, TABLE.get(float), TABLE[len], TABLE["a", dict], nn.Linear in TABLE


@breaks
def unhashable(x):
    return {NoHash(1): x}


@breaks
def hash_that_fails(x):
    return {Failing(): x}


@breaks
def hash_that_is_seen(x):
    d = {Loud(1): x, Loud(2): 2}
    return d[Loud(2)], Loud(1) in d, Loud(3) in d


@breaks
def key_that_changes(x):
    key = Changing(1)
    d = {key: x}
    found = key in d
    key.a = 2
    return found, key in d, Changing(2) in d, Changing(1) in d, list(d) == [key]


@case(args=lambda: (r(4), {Point(1): 2, Point(3): 4}), whole=False)  # others in each call
def keys_in_dicts_from_outside(x, d):
    d[Point(1)] = x
    return d[Point(3)], d[Point(1)], list(d)


POINTS = {Point(1): 2.0, Point(3): 4.0, Mod(2): 5.0}
MOVED = Changing(1)
BY_CHANGING = {MOVED: 3.0, Changing(2): 4.0}


@case
def keys_in_dicts_that_stay(x):
    found = POINTS[Point(3)], POINTS.get(Point(2)), Point(1, "other") in POINTS, POINTS[Mod(5)], POINTS.get(Mod(0), 7)
    return x * POINTS[Point(1)], found, len(POINTS), [key.b for key in POINTS if isinstance(key, Point)]


@breaks
def key_that_has_changed(x):
    MOVED.a = 2
    try:
        return BY_CHANGING.get(MOVED), Changing(1) in BY_CHANGING, BY_CHANGING[Changing(2)], x
    finally:
        MOVED.a = 1


@breaks(args=lambda: (r(4), {Loud(1): 2.0}))
def keys_whose_hash_is_seen(x, d):
    return x * d[Loud(1)]


@breaks
def keys_over_a_break(x):
    d, s = {Point(1): x, Mod(4): x + 1}, {Mod(2), Mod(5)}
    print("break")
    d[Mod(1)] = x * 2
    return d[Point(1)], d[Mod(7)], len(s), Mod(8) in s, torch.stack([*d.values()])


# --- objects that are equal to themselves alone, in dicts from outside ---


class Node:
    def __init__(self, n):
        self.n = n


FIRST, SECOND, LAYER = Node(1), Node(2), nn.Linear(4, 4)
WEIGHT = nn.Parameter(torch.ones(4))
BY_OBJECT = {FIRST: 2.0, SECOND: [3.0], LAYER: "layer", "name": 5, WEIGHT: 6.0, print: 7}


def _objects():
    a, b = Node(3), Node(4)
    return r(4), {a: 1.0, b: 2.0}, a, b


@case
def objects_as_keys(x):
    return x * BY_OBJECT[FIRST] + BY_OBJECT[SECOND][0], BY_OBJECT[LAYER], BY_OBJECT["name"], BY_OBJECT[WEIGHT], BY_OBJECT[print]


@case
def objects_as_keys_in_a_loop(x):
    for key, value in BY_OBJECT.items():
        if isinstance(key, Node):
            x = x * key.n + (value if isinstance(value, float) else value[0])
    return x, len(BY_OBJECT), [key is FIRST for key in BY_OBJECT], list(BY_OBJECT)[1] is SECOND


@case
def objects_that_are_no_keys(x):
    return x, Node(1) in BY_OBJECT, BY_OBJECT.get(Node(2), 3), FIRST in BY_OBJECT, "other" in BY_OBJECT


@case
def missing_objects(x):
    try:
        return BY_OBJECT[Node(1)]
    except KeyError as error:
        return x, type(error.args[0]).__name__


@case(args=_objects, whole=False)
def objects_of_the_call_as_keys(x, d, a, b):
    d[a] = x
    d[Node(5)] = d.pop(b)
    return d[a] * 2, b in d, len(d), [key.n for key in d]


@case(args=lambda: (r(4), {FIRST: 1, SECOND: 2}))
def entries_of_objects_change(x, d):
    d[FIRST] += 5
    d[LAYER] = x
    del d[SECOND]
    return d[FIRST], d[LAYER], list(d) == [FIRST, LAYER], d
