"""The integer algebra against brute force: every claim is checked at every point of small ranges."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from tinycompile.base import expr as ex
from tinycompile.base.atoms import numeric_range

pytestmark = pytest.mark.pure
hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")
check = hypothesis.settings(max_examples=150, deadline=None, derandomize=True)

N, M = ex.sym("n", 2), ex.sym("m", 2)
I, J, K = ex.sym("i", 0, 5), ex.sym("j", 0, N), ex.sym("k", -3, 4)
SYMBOLS = {"n": N, "m": M, "i": I, "j": J, "k": K}


def points() -> list[dict[str, int]]:
    """Values inside the symbols' ranges (sizes, which have no upper bound, by a sample)."""
    found = []
    for n, m in itertools.product((2, 3, 7), (2, 5)):
        for i, j, k in itertools.product(range(5), range(n), range(-3, 4)):
            found.append({"n": n, "m": m, "i": i, "j": j, "k": k})
    return found


POINTS = points()[::3]  # a step that is coprime to the sizes, so no corner is missed throughout


@dataclass(frozen=True)
class Term:
    """An expression beside the Python text that says what it means."""

    dim: Any
    text: str

    def at(self, point: dict[str, int]) -> int:
        return eval(self.text, {"min": min, "max": max}, dict(point))


def leaf() -> Any:
    numbers = st.integers(-6, 9).map(lambda v: Term(v, f"({v})"))
    return st.one_of(numbers, st.sampled_from([Term(s, name) for name, s in SYMBOLS.items()]))


def divisor() -> Any:
    numbers = st.integers(1, 8).map(lambda v: Term(v, str(v)))
    sizes = st.sampled_from([Term(N, "n"), Term(M, "m"), Term(N * M, "(n*m)"), Term(N * 4, "(n*4)"), Term(N + 1, "(n+1)")])
    return st.one_of(numbers, sizes)


def grow(inner: Any) -> Any:
    def binary(op: str, build: Any, right: Any = inner) -> Any:
        return st.tuples(inner, right).map(lambda p: Term(build(p[0].dim, p[1].dim), f"({p[0].text} {op} {p[1].text})"))

    def call(name: str, build: Any) -> Any:
        return st.tuples(inner, inner).map(lambda p: Term(build(p[0].dim, p[1].dim), f"{name}({p[0].text}, {p[1].text})"))

    return st.one_of(
        binary("+", lambda a, b: a + b),
        binary("-", lambda a, b: a - b),
        binary("*", lambda a, b: a * b),
        binary("//", ex.floordiv, divisor()),
        binary("%", ex.mod, divisor()),
        call("min", ex.minimum),
        call("max", ex.maximum),
    )


terms = st.recursive(leaf(), grow, max_leaves=6)


@check
@hypothesis.given(terms)
def test_value(term: Term) -> None:
    for point in POINTS:
        assert ex.evaluate(term.dim, point) == term.at(point), (term, str(term.dim), point)


@check
@hypothesis.given(terms)
def test_printed_text_is_python_for_the_same_value(term: Term) -> None:
    for point in POINTS[::7]:
        assert eval(str(term.dim), {"min": min, "max": max}, dict(point)) == term.at(point)


@check
@hypothesis.given(terms)
def test_numeric_range_holds(term: Term) -> None:
    low, high = numeric_range(term.dim)
    for point in POINTS:
        value = term.at(point)
        assert (low is None or low <= value) and (high is None or value <= high), (str(term.dim), point, low, high)


@check
@hypothesis.given(terms, st.integers(-8, 8))
def test_at_least_is_sound(term: Term, bound: int) -> None:
    if ex.at_least(term.dim, bound):
        for point in POINTS:
            assert term.at(point) >= bound, (str(term.dim), bound, point)


@check
@hypothesis.given(terms, terms)
def test_substitute_is_simultaneous(term: Term, value: Term) -> None:
    swapped = ex.substitute(term.dim, {"i": value.dim, "m": N})
    for point in POINTS[::5]:
        inner = {**point, "i": value.at(point), "m": point["n"]}
        if 0 <= inner["i"] < 5:  # a value outside the symbol's range breaks what was decided by the range
            assert ex.evaluate(swapped, point) == term.at(inner)


@check
@hypothesis.given(terms, terms, terms)
def test_one_value_is_one_object(a: Term, b: Term, c: Term) -> None:
    assert a.dim + b.dim == b.dim + a.dim
    assert a.dim * b.dim == b.dim * a.dim
    assert (a.dim + b.dim) + c.dim == a.dim + (b.dim + c.dim)
    assert (a.dim * b.dim) * c.dim == a.dim * (b.dim * c.dim)
    assert a.dim * (b.dim + c.dim) == a.dim * b.dim + a.dim * c.dim
    assert a.dim - a.dim == 0
    assert ex.minimum(a.dim, b.dim) == ex.minimum(b.dim, a.dim)
    assert ex.maximum(a.dim, b.dim) == ex.maximum(b.dim, a.dim)


@check
@hypothesis.given(terms, st.sampled_from(sorted(SYMBOLS)))
def test_coefficient(term: Term, name: str) -> None:
    slope = ex.coefficient(term.dim, name)
    if slope is None:
        return
    for point in POINTS[::5]:
        step = {**point, name: point[name] + 1}
        rise = ex.evaluate(term.dim, step) - ex.evaluate(term.dim, point)
        assert rise == ex.evaluate(slope, point), (str(term.dim), name, str(slope), point)


@check
@hypothesis.given(terms, st.integers(1, 6))
def test_divisible_by_is_sound(term: Term, k: int) -> None:
    if ex.divisible_by(term.dim, k):
        assert all(term.at(point) % k == 0 for point in POINTS)


@check
@hypothesis.given(terms)
def test_symbols_are_those_of_the_printed_text(term: Term) -> None:
    names = {s.name for s in ex.symbols(term.dim)}
    assert names == set(compile(str(term.dim), "", "eval").co_names) - {"min", "max"}


# --- identities that index maps live from ---


def test_flatten_then_unflatten_is_identity() -> None:
    a, b = ex.sym("a", 0, N), ex.sym("b", 0, M)
    flat = a * M + b
    assert ex.floordiv(flat, M) == a
    assert ex.mod(flat, M) == b


def test_flatten_then_unflatten_three_dims() -> None:
    a, b, c = ex.sym("a", 0, 4), ex.sym("b", 0, N), ex.sym("c", 0, M)
    flat = (a * N + b) * M + c
    assert ex.floordiv(flat, N * M) == a
    assert ex.mod(ex.floordiv(flat, M), N) == b
    assert ex.mod(flat, M) == c


@pytest.mark.parametrize("den", [4, 12, N, N * M], ids=str)
def test_unflatten_then_flatten_is_identity(den: Any) -> None:
    x = ex.sym("x", 0, N * M * 12)
    assert ex.floordiv(x, den) * den + ex.mod(x, den) == x
    assert ex.floordiv(x, den) * den * 3 + ex.mod(x, den) * 3 + 1 == x * 3 + 1
    assert ex.floordiv(x, den) * den * N + ex.mod(x, den) * N == x * N


def test_unflatten_then_flatten_three_dims() -> None:
    x = ex.sym("x", 0, N * 12)
    a, b, c = ex.floordiv(x, 12), ex.mod(ex.floordiv(x, 4), 3), ex.mod(x, 4)
    assert (a * 3 + b) * 4 + c == x


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (ex.floordiv(I * 4 + 2, 8), ex.floordiv(I * 2 + 1, 4)),
        (ex.mod(I * 4, 8), ex.mod(I, 2) * 4),
        (ex.floordiv(N * 4 + ex.mod(M, 4), 8), ex.floordiv(N, 2)),
        (ex.mod(N * 4 + ex.mod(M, 4), 8), ex.mod(N, 2) * 4 + ex.mod(M, 4)),
        (ex.floordiv(M * N + J, N * 4), ex.floordiv(M, 4)),
        (ex.floordiv(I * 8 + J * 0 + 3, 4), I * 2),
        (ex.floordiv(ex.floordiv(N, 2), 3), ex.floordiv(N, 6)),
        (ex.mod(ex.mod(N, 6), 3), ex.mod(N, 3)),
        (ex.floordiv(I, 5), 0),
        (ex.mod(I, 5), I),
        (ex.ceildiv(N * 4, 4), N),
        (ex.minimum(I, 4), I),
        (ex.maximum(J, 0), J),
        (ex.minimum(J, N), J),
        (ex.mod(N * 6 + 5, 3), 2),
    ],
    ids=str,
)
def test_simplifies(made: Any, expected: Any) -> None:
    assert made == expected


def test_at_least_with_a_size_as_the_bound() -> None:
    assert ex.at_least(N - J, 1)
    assert ex.at_least(N * M - J * M - 1, 1)
    assert ex.at_least(I * J, 0)
    assert not ex.at_least(J - 1, 0)


def test_an_expression_has_no_truth_and_no_int() -> None:
    with pytest.raises(TypeError, match="not known"):
        bool(N)
    with pytest.raises(TypeError, match="symbolic"):
        int(N)


def test_evaluate_needs_every_symbol_and_a_divisor() -> None:
    with pytest.raises(KeyError):
        ex.evaluate(N + M, {"n": 3})
    with pytest.raises(ZeroDivisionError):
        ex.evaluate(ex.floordiv(N, M), {"n": 3, "m": 0})


def test_as_sym() -> None:
    symbol = ex.as_sym(N)
    assert symbol is not None and symbol.name == "n"
    assert ex.as_sym(N * 2) is None and ex.as_sym(3) is None
