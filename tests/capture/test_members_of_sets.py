"""Which objects the members of sets are: ``is``, and what a function gives back, tell equal ones apart, and each call may have
others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu
X = torch.ones(2)


class Plain:
    """Equal to itself alone."""

    def __init__(self) -> None:
        self.seen = 0


class Valued:
    """Equal to others."""

    def __init__(self) -> None:
        self.seen = 0

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Valued)


class Own(set):
    """A set of the program's own class."""


def text(*parts: str) -> str:
    return "".join(parts)


# Makes equal ones, each time others where there may be others.
MEMBERS: dict[str, Callable[[], Any]] = {
    "int": lambda: int("100000000000000000000"),
    "float": lambda: float("1.5"),
    "complex": lambda: complex("1+2j"),
    "text": lambda: text("ab", "cde fg"),
    "bytes": lambda: bytes([97, 98, 99]),
    "range": lambda: range(int("300"), 400),
    "tuple": lambda: (1, text("ab", "cde fg")),
    "nested": lambda: ((1, float("2.5")), text("x", "y z")),
    "object": Plain,
    "valued": Valued,
    "function": lambda: lambda y: y + 1,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "module": lambda: torch.nn.Linear(2, 2),
    "frozenset": lambda: frozenset([int("1000"), int("2000")]),
    "class": lambda: Plain,
}
HELD: dict[str, Any] = {}


def first(s, a, b):
    return next(iter(s)), next(iter(s)) is a


def listed(s, a, b):
    return list(s), [m is a for m in s], tuple(s), [*s]


def looped(s, a, b):
    found = []
    for m in s:
        found.append(m)
    return found


def copied(s, a, b):
    return set(s), frozenset(s), s.copy(), dict.fromkeys(s)


def united(s, a, b):
    return s | {b}, {b} | s, s.union([b]), {b}.union(s), {*s, b}, {b, *s}


def met(s, a, b):
    return s & {b}, {b} & s, s.intersection([b]), {b, 0, 1} & s, s & frozenset([b, 0, 1])


def parted(s, a, b):
    return s - {0}, {b, 0} - {0}, s ^ {0}, {0} ^ s, s.difference([1])


def popped(s, a, b):
    t = set(s)
    taken = t.pop()
    return taken, taken is a, len(t)


def built(s, a, b):
    t = {b}
    t.add(a)
    t.update(s)
    u = set()
    u |= s
    u.add(b)
    u.discard(0)
    return t, u


def found_in(s, a, b):
    return [m for m in s if m is a], b in s, a in s


def least(s, a, b):
    return min(s, key=id), max(s, key=id), sorted(s, key=id)


def behind_a_break(s, a, b):
    m = next(iter(s))
    t = s | {b}
    tinycompile.graph_break()
    return m, m is a, t, next(iter(s)) is a


def as_a_key(s, a, b):
    m = next(iter(s))
    return {m: 1}, {b: 1, m: 2}, m


def parts(s, a, b):
    m = next(iter(s))
    return (m[0], m[-1], m[-1] is a[-1]) if isinstance(m, tuple) else m


def counts(s, a, b):
    for m in s:
        if hasattr(m, "seen"):
            m.seen += 1
    return getattr(a, "seen", 0), getattr(next(iter(s)), "seen", 0)


def of_a_global(s, a, b):
    held = HELD["s"]
    return next(iter(held)), next(iter(held)) is a, [m is b for m in held], held | {b}


def given_by_two_ways(s, a, b):
    return a, next(iter(s)), a is next(iter(s)), b


CONSTRUCTS = (
    first, listed, looped, copied, united, met, parted, popped, built, found_in, least, behind_a_break, as_a_key, parts,
    counts, of_a_global, given_by_two_ways,
)  # fmt: skip


def shape_of(found: Any, known: dict[int, str]) -> Any:
    """What a result is made of: objects that came with the call by name, containers by their parts."""
    name = known.get(id(found))
    if name is not None:
        return name
    if type(found) in (list, tuple):
        return type(found).__name__, [shape_of(f, known) for f in found]
    if isinstance(found, (set, frozenset)):
        return type(found).__name__, [shape_of(f, known) for f in found]
    if isinstance(found, dict):
        return "dict", [(shape_of(k, known), v) for k, v in found.items()]
    return found


def named(a: Any, b: Any) -> dict[int, str]:
    known = {id(a): "a", id(b): "b"}
    for name, whole in (("a", a), ("b", b)):
        for at, part in enumerate(whole if isinstance(whole, tuple) else ()):
            if not isinstance(part, int):
                known.setdefault(id(part), f"{name}[{at}]")
    return known


@pytest.mark.parametrize("kind", (set, frozenset, Own), ids=lambda k: k.__name__)
@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("fn", CONSTRUCTS, ids=lambda f: f.__name__)
def test_members_are_the_objects_that_they_are(fn: Callable[..., Any], member: str, kind: type) -> None:
    """``a`` is the member in every other call, else it only equals it; ``b`` is another."""
    make = MEMBERS[member]
    compiled = tinycompile.compile(lambda x, s, a, b: (x + 1, fn(s, a, b)), backend="eager")
    for is_member in (True, False, True, False):
        a, b = make(), make()
        s = kind([a])
        HELD["s"] = s
        if not is_member:
            s = kind([make()])
        known = named(a, b)
        known.setdefault(id(next(iter(s))), "member")
        expected = shape_of(fn(s, a, b), known)
        if hasattr(next(iter(s)), "seen"):
            for m in s:
                m.seen = 0
        found = compiled(X, s, a, b)
        assert torch.equal(found[0], X + 1)
        assert shape_of(found[1], known) == expected


def changed(s, a, b):
    s.add(b)
    s.discard(0)
    s |= {a}
    return len(s)


@pytest.mark.parametrize("member", MEMBERS)
def test_what_is_added_to_a_set_from_outside(member: str) -> None:
    make = MEMBERS[member]
    compiled = tinycompile.compile(lambda x, s, a, b: (x + 1, changed(s, a, b)), backend="eager")
    for begins in ([], [0], ["a"]):
        for _ in range(3):
            a, b = make(), make()
            first_, second = ({a if m == "a" else m for m in begins} for _ in range(2))
            assert changed(first_, a, b) == compiled(X, second, a, b)[1]
            assert list(map(id, first_)) == list(map(id, second))


def several(s, x):
    return list(s), tuple(s), s | {3.25}, [m for m in s if m != 0]


@pytest.mark.parametrize("kind", (set, frozenset))
def test_many_members_in_their_order(kind: type) -> None:
    compiled = tinycompile.compile(lambda x, s: (x + 1, several(s, x)), backend="eager")
    for _ in range(3):
        members = [float("1.5"), text("ab", "cde fg"), int("100000000000000000000"), 0, (2, float("2.5"))]
        s = kind(members)
        known = {id(m): str(i) for i, m in enumerate(members)}
        assert shape_of(compiled(X, s)[1], known) == shape_of(several(s, X), known)


NAN = float("nan")


def test_a_nan_is_a_member_by_its_identity() -> None:
    compiled = tinycompile.compile(lambda x, s, a: (x + 1, a in s, next(iter(s)), next(iter(s)) is a), backend="eager")
    for other in (NAN, float("nan"), NAN):
        s = {NAN}
        found = compiled(X, s, other)
        assert found[1] is (other is NAN) and found[2] is NAN and found[3] is (other is NAN)


@pytest.mark.parametrize("order", (sorted, list, lambda s: [k for k in s]), ids=("sorted", "list", "loop"))
def test_a_number_that_became_an_input_is_a_member_in_order(order: Any) -> None:
    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, list[int]]:
        seen = {1, 2}
        seen.add((1 + n) % 7)
        return x + 1, len(seen & {0, 1, 2, n}), order(seen)

    compiled = tinycompile.compile(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 3, 3, 5, 6, 0):
            assert compiled(torch.ones(2), n)[1:] == function(torch.ones(2), n)[1:]
