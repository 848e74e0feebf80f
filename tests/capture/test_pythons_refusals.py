"""What Python refuses, a handler of the program's gets as it would in Python; and what Python does not refuse, it never gets."""

from __future__ import annotations

import collections
import enum
import operator  # noqa: F401 (texts below)
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = pytest.mark.pure

Body = Callable[[torch.Tensor], Any]


def caught(body: Body) -> Body:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        try:
            return y, body(x)
        except Exception as e:
            return y, type(e).__name__, str(e), type(e.__cause__), type(e.__context__), e.__suppress_context__

    return fn


def agrees(fn: Body) -> None:
    """Compiled and eager give the same, and nothing fails in here."""
    compiled, x = CompiledFunction(fn, Options(backend="eager")), torch.arange(4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of numbers that are booleans
        want = repr(fn(x))
        assert [repr(compiled(x)) for _ in range(2)] == [want] * 2
    assert "internal-error" not in {b.id for b in compiled.breaks}


def said(text: str) -> Body:
    return eval(f"lambda x: {text}", globals())  # type: ignore[no-any-return]


# --- arguments ---

OD = collections.OrderedDict
MISSING = """
[1].__getitem__() | 'a'.join() | OD().pop() | x.shape.index() | x.shape.numel(1) | OD().clear(1) | OD().keys(1) | OD().items(1)
list.append([]) | dict.get({}) | set.add(set()) | {}.__contains__() | {}.keys().isdisjoint() | {}.keys().__contains__()
{1}.__contains__() | (1,).__getitem__() | {}.__setitem__(1) | b'a'.join() | {}.items().__len__(1) | list.pop([1], 9) | [1].pop(9)
"""


@pytest.mark.parametrize("text", [t.strip() for line in MISSING.split("\n") for t in line.split("|") if t.strip()])
def test_what_methods_of_builtins_refuse(text: str) -> None:
    agrees(caught(said(text)))


class Number(enum.IntEnum):
    ONE = 1
    MANY = 7


def written(x: torch.Tensor, at: Any) -> torch.Tensor:
    made = x.clone()
    made[at] = 5
    return made


@pytest.mark.parametrize(
    "text",
    ["x[Number.ONE]", "x[Number.MANY]", "x[Number.ONE:]", "written(x, Number.ONE)", "x[None].sum(Number.ONE) * Number.MANY"],
)
def test_members_of_an_int_enum_are_numbers(text: str) -> None:
    agrees(caught(said(text)))


# --- imports ---


def optional(x: torch.Tensor) -> Any:
    try:
        import nosuch_module_of_ours as found  # type: ignore[import-not-found]
    except ImportError:
        found = None
    return x + 1, found


def misnamed(x: torch.Tensor) -> Any:
    from math import nosuch  # type: ignore[attr-defined]

    return x + nosuch


def inside_a_module(x: torch.Tensor) -> Any:
    import math.nosuch as found  # type: ignore[import-not-found]

    return x, found


@pytest.mark.parametrize("fn", [optional, misnamed, inside_a_module])
def test_imports_of_what_is_not_there(fn: Body) -> None:
    agrees(caught(fn))


def test_a_module_that_comes_later_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = CompiledFunction(optional, Options(backend="eager", fullgraph=True)), torch.ones(2)
    assert f(x)[1] is None
    (tmp_path / "nosuch_module_of_ours.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert f(x)[1].__name__ == "nosuch_module_of_ours"
    monkeypatch.delitem(__import__("sys").modules, "nosuch_module_of_ours")


# --- classes derived from containers ---


class Pair(tuple[int, ...]):
    def __new__(cls, a: int, b: int) -> Any:
        return super().__new__(cls, (a, b))


class Frozen(frozenset[int]):
    def __new__(cls, a: int, b: int) -> Any:
        return super().__new__(cls, (a, b))


class Listed(list[int]):
    def __new__(cls, a: int, b: int) -> Any:
        return super().__new__(cls)

    def __init__(self, a: int, b: int) -> None:
        super().__init__((a, b))


class Unfilled(list[int]):
    def __new__(cls, a: int, b: int) -> Any:
        return super().__new__(cls)


@pytest.mark.parametrize("kind", [Pair, Frozen, Listed, Unfilled])
def test_containers_with_a_new_of_their_own(kind: Any) -> None:
    agrees(caught(lambda x: (x + len(kind(1, 2)), kind(3, 4))))


# --- groups ---


def two_clauses(x: torch.Tensor) -> Any:
    seen = []
    try:
        raise ValueError
    except* ValueError as e:
        seen.append((repr(e), type(e.__context__)))
    except* TypeError:
        seen.append("no")
    return x + 1, seen


def left_over(x: torch.Tensor) -> Any:
    try:
        raise ExceptionGroup("g", [TypeError(1), ValueError(2)])
    except* TypeError:
        pass
    return x


def raised_in_a_handler(x: torch.Tensor) -> Any:
    try:
        raise ExceptionGroup("g", [TypeError(1)])
    except* TypeError:
        raise ValueError("v") from None


def raised_again(x: torch.Tensor) -> Any:
    try:
        raise TypeError("t")
    except* TypeError:
        raise


def groups_of_groups(x: torch.Tensor) -> Any:
    try:
        raise ValueError
    except* ExceptionGroup:  # type: ignore[misc]
        pass
    return x


@pytest.mark.parametrize("fn", [two_clauses, left_over, raised_in_a_handler, raised_again, groups_of_groups])
def test_groups(fn: Body) -> None:
    agrees(caught(fn))


# --- what Python does not refuse ---


class Shown:
    def __str__(self) -> str:
        return "shown"

    def __divmod__(self, other: Any) -> Any:
        return "divmod", other

    def __rdivmod__(self, other: Any) -> Any:
        return "rdivmod", other

    def __rmod__(self, other: Any) -> Any:
        return "not asked"


class Counted(collections.defaultdict[Any, Any]):
    pass


class Filled(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return "missing", key

    def above(self, key: Any) -> Any:
        return super().__getitem__(key)


class Vector(NamedTuple):
    a: int
    b: int

    def __add__(self, other: Any) -> Any:
        return "sum"

    def __rmul__(self, other: Any) -> Any:  # type: ignore[override]
        return "product"

    def __bool__(self) -> bool:
        return False

    def __contains__(self, item: Any) -> bool:
        return True

    def __lt__(self, other: Any) -> Any:
        return "less"


LIVELY = """
'got %s' % Shown() ; '%s, %r' % (Shown(), 'a') ; '%5s|%%' % Shown() ; '%d' % Shown() ; '%s %s' % Shown() ; '%s' % x.shape
b'%s' % Shown() ; '%(a)s' % {'a': Shown()} ; '%(e)s' % Filled() ; '%s' % Filled() ; '%s' % ValueError('v') ; '%s' % x ; '%s' % len
divmod(Shown(), 2) ; divmod(2, Shown()) ; divmod(x, 2) ; divmod(2, x) ; divmod('a', 1) ; divmod(7.5, 2) ; divmod([1], 2)
Filled().above('q') ; dict.__getitem__(Filled(), 'k') ; operator.getitem(Filled(), 'k') ; operator.itemgetter('k')(Filled())
Filled().get('k') ; Filled().pop('k') ; Filled(a=1)['a'] ; Counted(int)['q'] ; Counted(None)['q'] ; len(Counted(int, a=1))
[1] + Shown() ; Shown() + [1] ; 'a' + Shown() ; 'a' * Shown() ; Shown() * 'a' ; Shown() - 1 ; None + Shown() ; [1] + x.shape
Vector(1, 2) + (1,) ; 3 * Vector(1, 2) ; bool(Vector(1, 2)) ; 9 in Vector(1, 2) ; Vector(1, 2) < (0,) ; len(Vector(1, 2))
"""


@pytest.mark.parametrize("text", [t.strip() for line in LIVELY.split("\n") for t in line.split(";") if t.strip()])
def test_what_python_finds_a_way_for(text: str) -> None:
    agrees(caught(said(text)))


# --- what special methods return ---


class Giving:
    """Its special methods give what it is made with."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def _give(self, *args: Any) -> Any:
        return self.given

    __len__ = __hash__ = __str__ = __repr__ = __format__ = __int__ = __float__ = __index__ = _give  # type: ignore[assignment]


class Truth(Giving):
    def __bool__(self) -> Any:
        return self.given


class Indexed:
    def __index__(self) -> int:
        return 2


class Returning:
    def __init__(self, given: Any) -> None:
        return given  # type: ignore[no-any-return]  # noqa: PLE0101


ASKED = {
    "not {}": "0 None -1 2**70 'a'", "all([{}])": "None", "len({})": "2 -1 'a' 1.5 2**70 True", "hash({})": "1.5 'a' True",
    "str({})": "'a' None", "repr({})": "1.5", "format({})": "'a' 1", "int({})": "2 'a' True", "float({})": "1.5 'a' True",
    "[1, 2, 3][{}]": "1 'a' 2**70 True",
}  # fmt: skip


@pytest.mark.parametrize(("asked", "given"), [(a, g) for a, gs in ASKED.items() for g in gs.split()])
def test_what_special_methods_return_is_checked(asked: str, given: str) -> None:
    agrees(caught(said(f"({asked.format(f'Giving({given})')}, {asked.format(f'Truth({given})')})")))


@pytest.mark.parametrize("text", ["float(Indexed())", "int(Indexed())", "Returning(3)", "Returning(None) is None"])
def test_conversions(text: str) -> None:
    agrees(caught(said(text)))


# --- protocols that something lacks ---


def entered(manager: Any) -> Any:
    with manager:
        return 1


class Unordered:
    def __iter__(self) -> Any:
        return [1]


LACKING = """
x.names | entered(3) | entered(Shown()) | getattr(x, 3) | hasattr([], 3) | setattr(Shown(), 3, 1) | 1 in Shown() | list(Unordered())
[*Unordered()] | iter(Unordered()) | 1 in Unordered() | collections.deque().remove(1) | collections.deque([2]).index(1)
"""


@pytest.mark.parametrize("text", [t.strip() for line in LACKING.split("\n") for t in line.split("|") if t.strip()])
def test_protocols_that_something_lacks(text: str) -> None:
    agrees(caught(said(text)))
