"""``a is b`` for two arguments of any kind, whichever of the two answers was compiled first."""

from __future__ import annotations

import copy
import functools
from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinycompile
from tinycompile.base.config import config

pytestmark = pytest.mark.pure
Named = namedtuple("Named", "a b")
SENTINEL = ("missing", 1000.5)
WORD = "".join(["missing", " value"])


class Plain:
    pass


MAKERS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (1, torch.ones(1)),
    "tuple of floats": lambda: (float("1.5"), 2),
    "named tuple": lambda: Named(1, 2),
    "frozenset": lambda: frozenset([1, 2]),
    "list": lambda: [1],
    "dict": lambda: {1: 2},
    "set": lambda: {1},
    "deque": lambda: deque([1]),
    "bytearray": lambda: bytearray(b"a"),
    "float": lambda: float("1.5"),
    "int": lambda: int("12345678"),
    "complex": lambda: complex("1j"),
    "str": lambda: "".join(["a b", "c"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "range": lambda: range(3),
    "slice": lambda: slice(1, 2),
    "size": lambda: torch.ones(2, 2).shape,
    "function": lambda: lambda: 1,
    "built-in method": lambda: [].append,
    "bound method": lambda: Plain().__init__,
    "partial": lambda: functools.partial(int),
    "array": lambda: np.ones(2),
    "numpy scalar": lambda: np.float32(2),
    "tensor": lambda: torch.ones(2),
    "module": lambda: torch.nn.Linear(1, 1),
    "object": Plain,
}


def same(a: Any, b: Any, x: torch.Tensor) -> tuple[bool, torch.Tensor]:
    return a is b, x + 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", list(MAKERS))
def test_two_arguments(name: str, first: bool) -> None:
    make, compiled = MAKERS[name], tinycompile.compile(same, backend="eager")
    for one in (first, not first, first):
        a = make()
        assert compiled(a, a if one else make(), torch.ones(1))[0] is one


def is_missing(a: Any, x: torch.Tensor) -> tuple[Any, ...]:
    return a is SENTINEL, a is WORD, a is None, a is not SENTINEL, x + 1


@pytest.mark.parametrize("values", [(SENTINEL, ("missing", float("1000.5")), WORD, "".join(["missing ", "value"]), None)])
def test_sentinels(values: tuple[Any, ...]) -> None:
    for order in (values, values[::-1]):
        compiled = tinycompile.compile(is_missing, backend="eager")
        for value in order:
            assert compiled(value, torch.ones(1))[:4] == is_missing(value, torch.ones(1))[:4]


def over_a_break(x: torch.Tensor) -> tuple[Any, ...]:
    pair, half, word = (1, x), x.shape[0] / 3, "a" + str(x.shape[0])
    kept = [pair, half, word]
    tinycompile.graph_break()
    return pair is kept[0], half is kept[1], word is kept[2], x + 1


def test_over_a_break() -> None:
    assert tinycompile.compile(over_a_break, backend="eager")(torch.ones(3))[:3] == (True, True, True)


# --- numbers and strings that are made inside ---

ONE, FIVE, NAMES = 1, 5, ("x3", "b", "Tensor", "")


def of_sizes(x: torch.Tensor, y: torch.Tensor) -> tuple[bool, ...]:
    s = x.shape
    n, m = s[0], y.shape[0]
    return (
        *(n is m, n is s[0], n is tuple(s)[0], n is x.shape[0], n is x.size(0), n is not m, n is FIVE, len(x) is len(y)),
        *(x.numel() is y.numel(), n * 2 is m * 2, n - 10 is m - 10, n + 0 is n, -n is -m, int(n) is n, x.stride(0) is ONE),
    )


def of_numbers(x: torch.Tensor, a: Any, b: Any) -> tuple[bool, ...]:
    twice = a * 2
    return (
        *(a is b, twice is b * 2, a + 1 is b + 1, a is x.shape[0], float(a) is float(a), type(a)(a) is a, -a is -b),
        *(bool(a) is bool(b), a // 1 is b // 1, a * 1.0 is a, (twice, 1)[0] is twice, a is FIVE),
    )


def of_texts(x: torch.Tensor, s: str) -> tuple[bool, ...]:
    t, phrase = "ab", "a b"
    made = "a" + s
    return (
        *(t is made, made is made[:], "x%d" % 3 is NAMES[0], str(t) is t, s[0:1] is NAMES[1], t * 1 is t, s is NAMES[1]),
        *(type(x).__name__ is NAMES[2], "".join([t]) is t, t.upper() is t.upper(), t[2:] is NAMES[3], "a " + s is phrase),
    )


def of_size(n: int) -> torch.Tensor:
    return torch.ones(n)


INSIDE = [
    (of_sizes, [(of_size(n), of_size(m)) for n, m in ((5, 5), (6, 6), (7, 8), (300, 300), (256, 256), (257, 257), (300, 301))]),
    (of_numbers, [(of_size(3), n, n) for n in (3, 300, 100, 128, 129, -5, -6, 1.5, 2.5, 5)] + [(of_size(6), 7, 8)]),
    (of_numbers, [(of_size(300), int("300"), int("300")), (of_size(3), float("1.5"), float("1.5"))]),
    (of_texts, [(of_size(3), "b"), (of_size(4), "bb"), (of_size(3), "".join(["a", "b"])[1])]),
]


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize(("fn", "calls"), INSIDE)
def test_numbers_and_strings_made_inside(
    fn: Callable[..., Any], calls: list[Any], dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "recompile_limit", 64)
    compiled = tinycompile.compile(fn, backend="eager", dynamic=dynamic)
    for args in calls:
        assert compiled(*args) == fn(*args)


def kept_over_a_break(x: torch.Tensor, a: Any, s: str) -> tuple[Any, ...]:
    t, phrase, far = "ab", "a b", 12345.5
    made, third, n = "a" + s, a * 3, x.shape[0] * 100
    equal = float("12345.5"), "".join(["a", " ", "b"]), int("1000") + 1, int("1000") + 1
    tinycompile.graph_break()
    held = [third, n, a, s]
    tinycompile.graph_break()
    same = "a b"
    return (
        *(t is made, equal[0] is far, equal[1] is phrase, equal[2] is equal[3], phrase is same),
        *(held[0] is third, held[1] is n, held[2] is a, held[3] is s, held),
    )


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_which_numbers_and_strings_live_over_a_break(dynamic: bool | None) -> None:
    compiled = tinycompile.compile(kept_over_a_break, backend="eager", dynamic=dynamic)
    for n, a, s in ((3, 2, "b"), (4, 300, "b"), (5, 1.5, "b c"), (6, 2.5, "".join(["x", "y"]))):
        (*got, held), (*want, _) = compiled(of_size(n), a, s), kept_over_a_break(of_size(n), a, s)
        assert got == want
        assert held[2] is a
        assert held[3] is s


def test_arguments_that_are_given_back_are_themselves() -> None:
    compiled = tinycompile.compile(lambda x, *given: (x + 1, list(given)), backend="eager", dynamic=False)
    given = "".join(["a", " b"]), float("1.5"), int("12345678"), complex("1j"), bytes([1, 2, 3]), "name"
    assert all(a is b for a, b in zip(compiled(of_size(2), *given)[1], given, strict=True))


def computed(x: torch.Tensor) -> Any:
    a, n, infinite = 1, 700, float("inf")
    text = "a b" + str(n)
    return [
        (a, 2), (a, 2), (a, (a, 2)), text, (text, n + 1), text.upper(), n * n, 0.1 * n, 1j * n, range(n), frozenset([a, n]), b"ab" + b"c",
        -0.0 * n, infinite - infinite, -infinite, complex(-0.0, 1) * 1, 10**20 * n, "\u0416" * 3, range(n, 0, -7)
    ]  # fmt: skip


def constants(x: torch.Tensor) -> Any:
    return [(1, 2), (1, 2), ((1, 2), (1, "b c")), 1000, "b c", 2.5, (1, "b c"), ()]


def passed_on(x: torch.Tensor) -> Any:
    pair = (1, WORD)
    return [WORD, str(WORD), f"{WORD}", WORD.strip(), pair, pair[:], pair + (), SENTINEL, SENTINEL[:], SENTINEL[1] * 1]


def objects(found: Any, at: str = "") -> dict[str, Any]:
    """All objects in a nested result, by where they are."""
    parts = enumerate(found) if isinstance(found, (list, tuple)) else ()
    return {at: found, **{place: part for i, v in parts for place, part in objects(v, f"{at}[{i}]").items()}}


@pytest.mark.parametrize("fn", [computed, constants, passed_on])
def test_which_objects_of_three_calls_are_one(fn: Callable[..., Any]) -> None:
    def one(run: Callable[..., Any]) -> list[list[str]]:
        met = {f"{call}{at}": obj for call in range(3) for at, obj in objects(run(torch.ones(1))).items()}
        known = list(met.values())  # alive, so ids are theirs alone
        places: dict[int, list[str]] = {}
        for at, obj in met.items():
            places.setdefault(id(obj), []).append(at)
        return sorted(places.values()) if known else []

    def held(run: Callable[..., Any]) -> Any:
        kept: list[Any] = []
        return one(lambda x: kept.append(run(x)) or kept[-1])

    compiled = tinycompile.compile(fn, backend="eager")
    assert held(compiled) == held(fn)
    assert repr(compiled(torch.ones(1))) == repr(fn(torch.ones(1)))


def keys_of(given: dict[Any, Any], x: torch.Tensor) -> Any:
    return [key is SENTINEL for key in given], [key is WORD for key in given], list(given)[0] is SENTINEL, list(given), x + 1


def test_keys_of_dicts() -> None:
    compiled, x = tinycompile.compile(keys_of, backend="eager"), torch.ones(1)
    others = ("missing", float("1000.5")), "".join(["missing ", "value"])
    for tuple_, word in ((SENTINEL, WORD), others, (SENTINEL, others[1]), (others[0], WORD)):
        given = {tuple_: 1, word: 2}
        (*got, kept, _), (*want, _, _) = compiled(given, x), keys_of(given, x)
        assert got == want
        assert kept[0] is tuple_


# --- copies of what can't be changed -----------------------------------------------------------------------------------------


class Copied(Named):
    def __copy__(self) -> str:
        return "by the program"


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("given", [(1, 2), Named(1, 2), torch.Size([2, 3]), Copied(1, 2), Named((1,), 2)], ids=repr)
def test_copies_of_tuples(given: Any, make: Callable[..., Any]) -> None:
    def run(x: torch.Tensor, t: Any) -> Any:
        made = make(t)
        return made, made is t, make([t])[0] is t, make(x.shape) is x.shape, x + 1

    compiled = tinycompile.compile(run, backend="eager")
    for _ in range(2):
        got, want = compiled(torch.ones(2), given), run(torch.ones(2), given)
        assert type(got[0]) is type(want[0]) and got[:4] == want[:4] and (got[0] is given) is (want[0] is given)


# --- scalars of numpy's, devices and such: another object each time ----------------------------------------------------------

NUMBERS, NUMBER = np.arange(4.0), np.float32(5)
ANEW: dict[str, Callable[[torch.Tensor], Any]] = {
    "called": lambda x: np.float32(3),
    "multiplied": lambda x: np.float32(3) * 2,
    "of ints": lambda x: np.int8(1) + np.int8(1),
    "a function": lambda x: np.sqrt(2.0),
    "summed": lambda x: NUMBERS.sum(),
    "largest": lambda x: max(NUMBERS),
    "listed": lambda x: list(NUMBERS)[0],
    "taken": lambda x: NUMBERS[1],
    "of a size": lambda x: np.float64(3) * x.shape[0],
    "to Python": lambda x: NUMBERS[1:].sum().item() * 100,
    "a truth": lambda x: np.bool_(True),
    "nothing": lambda x: np.zeros(2).sort(),
    "a global": lambda x: NUMBER,
    "a global twice": lambda x: NUMBER is NUMBER,
    "device": lambda x: torch.device("cpu"),
    "device of a tensor": lambda x: x.device,
    "devices of a tensor": lambda x: x.device is x.device,
    "finfo": lambda x: torch.finfo(torch.float32),
    "dtype": lambda x: np.dtype("f4"),
}


@pytest.mark.parametrize("name", ANEW)
def test_which_scalars_of_two_calls_are_one(name: str) -> None:
    def twice(x: torch.Tensor) -> Any:
        found = ANEW[name](x)
        tinycompile.graph_break()
        return found, found, x + 1

    def alike(run: Callable[..., Any]) -> Any:
        a, b = run(torch.ones(2)), run(torch.ones(2))
        return type(a[0]), repr(a[0]), a[0] is a[1], a[0] is b[0]

    for run in (twice, lambda x: ((found := ANEW[name](x)), found, x + 1)):
        assert alike(tinycompile.compile(run, backend="eager")) == alike(run)


@pytest.mark.parametrize(
    "make", [lambda: np.float32(2), lambda: np.int64(5), lambda: np.complex64(2), lambda: torch.device("cpu")]
)
def test_scalars_that_are_given_back_are_themselves(make: Callable[[], Any]) -> None:
    compiled = tinycompile.compile(lambda x, s, held: (x + 1, s, [s], held[0]), backend="eager")
    for _ in range(2):
        given, held = make(), [make()]
        _, a, b, c = compiled(torch.ones(2), given, held)
        assert a is b[0] is given and c is held[0]


# --- parts of what does not change -------------------------------------------------------------------------------------------

PARTS = (int("900"), float("2.5"), "é a" * 2, b"ab" * 2, (int("901"), 3.5), complex("2j"))
NAMED = Named(int("902"), "b c" * 2)
RANGE = range(int("1000"), int("2000"), int("300"))
KEYS: tuple[Any, ...] = (
    int("3000"), 1.5 * 3, float("1.0"), "é a" * 2, b"ab" * 4, complex("3j"), (1, int("2000")), (float("1.0"),), Named(1, 2.5)[:],
)  # fmt: skip
READ_PARTS: dict[str, Callable[[], Any]] = {
    **{f"item {i}": lambda i=i: PARTS[i] for i in range(len(PARTS))},
    "nested": lambda: PARTS[4][0],
    "starred": lambda: [*PARTS][1],
    "all of them": lambda: [*PARTS],
    "named": lambda: NAMED.a,
    "starts": lambda: (RANGE.start, RANGE.stop, RANGE.step),
    "mro": lambda: Plain.__mro__,
    "bases": lambda: Plain.__bases__,
    "mro is mro": lambda: Plain.__mro__ is Plain.__mro__,
}


@pytest.mark.parametrize("name", READ_PARTS)
def test_parts_of_what_does_not_change_are_themselves(name: str) -> None:
    read = READ_PARTS[name]

    def over_a_break(x: torch.Tensor) -> Any:
        found = read()
        tinycompile.graph_break()
        return found, x + 1

    for run in (lambda x: (read(), x + 1), over_a_break):
        compiled = tinycompile.compile(run, backend="eager")
        for _ in range(2):
            got, want = compiled(torch.ones(2))[0], run(torch.ones(2))[0]
            if name in ("all of them", "starts"):  # which are in another list or tuple each time
                assert [*map(id, got)] == [*map(id, want)]
            else:
                assert got is want


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_a_key_that_is_taken_out_of_a_dict_is_itself(key: Any) -> None:
    ways: list[Callable[..., Any]] = [
        lambda x, d: (list(d)[0], x + 1),
        lambda x, d: ([q for q in d][0], x + 1),
        lambda x, d: (next(iter(dict(d))), x + 1),
        lambda x, d: ([*d.items()][0][0], x + 1),
        lambda x, d: (d.popitem()[0], x + 1),
        lambda x, d: (max(d, key=id), x + 1),
        lambda x, d: (list(dict.fromkeys(d))[0], x + 1),
    ]
    for way in ways:
        compiled = tinycompile.compile(way, backend="eager")
        for _ in range(2):
            assert compiled(torch.ones(2), {key: 3})[0] is key
        other = eval(repr(key), {"Named": Named})
        assert compiled(torch.ones(2), {other: 3})[0] is other
