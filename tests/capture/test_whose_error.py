"""The program's errors and ours: no fault of capture's is taken for an answer, and what Python refuses is said in its words."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import warnings
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.api import CompiledFunction
from tinycompile.base.config import config
from tinycompile.base.errors import TinycompileWarning
from tinycompile.capture.rules.registry import RULES
from tinycompile.options import Options

pytestmark = pytest.mark.pure


def compiled(fn: Any) -> CompiledFunction:
    return CompiledFunction(fn, Options(backend="eager"))


# --- a fault of ours, in the middle of what answers a question ---

FAULTS: dict[str, Any] = {
    "type": lambda: len(5),  # type: ignore[arg-type]
    "attribute": lambda: None.missing,  # type: ignore[attr-defined]
    "index": lambda: list[int]()[0],
    "key": lambda: dict[int, int]()[0],
    "value": lambda: int("x"),
    "stop": lambda: next(iter([])),
    "assertion": lambda: (_ for _ in ()).throw(AssertionError),
}


def faulty(x: Any) -> Any:
    """A rule of ours that is wrong stands for it."""
    return x


class Asked:
    @property
    def attribute(self) -> Any:
        return faulty(1)

    def __getitem__(self, at: int) -> Any:
        return faulty(at)


class Endless:
    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return faulty(1)


def generator(x: Any) -> Any:
    try:
        yield faulty(x)
    finally:
        yield x


def in_a_handler(x: Any) -> Any:
    try:
        return faulty(x)
    except Exception as error:
        return type(error)


def in_getattr(x: Any) -> Any:
    return x + 1, getattr(Asked(), "attribute", 5)


def in_hasattr(x: Any) -> Any:
    return x + 1, hasattr(Asked(), "attribute")


def in_a_match(x: Any) -> Any:
    match Asked():
        case Asked(attribute=a):
            return x + a
    return x


def in_iteration(x: Any) -> Any:
    return x + 1, [v for _, v in zip(range(2), Endless())], [v for _, v in zip(range(2), Asked())]


def in_a_generator(x: Any) -> Any:
    g = generator(x)
    return next(g, 7), [*g]


ASKING = [in_a_handler, in_getattr, in_hasattr, in_a_match, in_iteration, in_a_generator]


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("fn", ASKING)
def test_a_fault_of_ours_is_no_answer(fn: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, faulty, lambda tr, args, kwargs: FAULTS[fault]())
    x = torch.ones(2)
    with pytest.raises(Exception):
        compiled(fn)(x)
    monkeypatch.setattr(config, "on_error", "eager")
    f, want = compiled(fn), fn(x)
    with pytest.warns(TinycompileWarning, match="internal|fault|failed|eager"):
        assert repr(f(x)) == repr(want)
    assert "internal-error" in {b.id for b in f.breaks}


# --- what is too large for the machine ---

HUGE = 10**13


def multiplied(x: Any, n: int) -> Any:
    return [0] * n


def caught(x: Any, n: int) -> Any:
    y = x + 1
    try:
        return "ab" * n
    except MemoryError as error:
        return y, str(error)


def changed(x: Any, n: int) -> Any:
    seen: list[Any] = [x + 1]
    try:
        seen *= n
    finally:
        x.add_(1)


def written_out(x: Any, n: int) -> Any:
    return f"{1:{n}}", b"a" * n, (0,) * n, collections.deque([1]) * n


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [multiplied, caught, changed, written_out])
def test_memory_that_runs_out_is_a_break(fn: Any, dynamic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def told_of(run: Any, n: int) -> Any:
        x = torch.ones(2)
        try:
            return repr(run(x, n)), x.tolist()
        except Exception as error:  # noqa: BLE001
            return type(error), str(error), getattr(error, "__notes__", None), x.tolist()

    for on_error in ("raise", "eager"):
        monkeypatch.setattr(config, "on_error", on_error)
        f = CompiledFunction(fn, Options(backend="eager", dynamic=dynamic))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [told_of(f, n) for n in (HUGE, HUGE + 1, HUGE)] == [told_of(fn, n) for n in (HUGE, HUGE + 1, HUGE)]


# --- what torch refuses of values, though nobody reads the result ---

FAR, TARGET, NONE_OF = torch.tensor([9]), torch.tensor([1, 9, 1, 1]), torch.zeros(2, dtype=torch.long)


def put(x: Any) -> None:
    x.clone()[FAR] = 1


def between_breaks(x: Any) -> None:
    tinycompile.graph_break()
    torch.linalg.cholesky(x - 5)
    tinycompile.graph_break()


SEEN: list[int] = []


def behind_a_change(x: Any) -> None:
    SEEN.append(1)
    x[FAR]


UNREAD: dict[str, Any] = {
    "index": lambda x: x[FAR],
    "put": put,
    "cholesky": lambda x: torch.linalg.cholesky(x - 5),
    "between breaks": between_breaks,
    "behind a change": behind_a_change,
    "embedding": lambda x: torch.nn.functional.embedding(FAR, x),
    "division": lambda x: NONE_OF // NONE_OF,
    "remainder": lambda x: NONE_OF % NONE_OF,
    "gather": lambda x: x.gather(0, TARGET[None]),
    "index_select": lambda x: x.index_select(0, FAR),
    "take": lambda x: x.take(FAR + 9),
    "scatter": lambda x: x.scatter(0, TARGET[None], x),
    "index_add": lambda x: x.index_add(0, FAR, x[:1]),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(x, TARGET),
    "nll_loss": lambda x: torch.nn.functional.nll_loss(x, TARGET),
    "binary_cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy(x + 5, x),
    "masked_scatter": lambda x: x.masked_scatter(x == 1, x[:0].view(-1)),
    "one_hot": lambda x: torch.nn.functional.one_hot(TARGET, 3),
    "bernoulli": lambda x: torch.bernoulli(x + 3),
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("gradient", [False, True])
def test_values_are_refused_though_nothing_is_read(name: str, gradient: bool) -> None:
    def program(x: Any) -> Any:
        UNREAD[name](x)
        return x

    def told_of(run: Any) -> Any:
        SEEN.clear()
        try:
            run(torch.ones(4, 4, requires_grad=gradient))
        except Exception as error:  # noqa: BLE001
            return type(error), str(error), [*SEEN]

    f, want = compiled(program), told_of(program)
    assert want is not None
    assert [told_of(f), told_of(f)] == [want, want]


def test_an_error_of_torchs_bears_no_trace_of_ours() -> None:
    f = compiled(lambda x: x.requires_grad_().add_(1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="leaf") as found:
            f(torch.ones(2))
        assert vars(found.value) == {}


# --- what Python refuses ---

NT = collections.namedtuple("NT", "a b")


class Plain:
    def method(self, a: Any) -> Any:
        return a


REFUSED = """
len([1], 2) | bool(1, 2) | str(1, 2, 3, 4) | slice() | [].append() | [].append(1, 2) | [].sort(5) | {}.setdefault() | {}.pop()
set().add() | set().add(1, 2) | collections.deque().append() | (1,).count() | getattr(5) | hasattr(5) | isinstance(5) | id()
callable() | enumerate() | list(map()) | list(filter(None)) | list(1, 2) | range('a') | range(1, 2, 0) | reversed(5) | reversed({1})
[1].insert('a', 1) | [1].pop('a') | [1, 2][::0] | [1, 2]['a':] | [1]['a'] | (1,)[5] | collections.deque()[0] | {}.update([1])
dict([1]) | NT(1) | NT(1, 2, 3) | NT(a=1, c=2) | Plain()[0] | len(Plain()) | next(Plain()) | Plain()() | Plain().method()
collections.deque([1], maxlen='a') | collections.defaultdict(5) | functools.partial() | functools.partial(5)
list(itertools.islice([1], -1)) | list(itertools.combinations([1], -1)) | list(itertools.permutations([1], 'a'))
list(itertools.repeat()) | abs('a') | round('a') | math.floor('a') | math.sqrt(-1) | bytes('a') | bytes(-1) | sum([1], 'a')
(lambda a, /: a)(a=1) | (lambda a: a)() | (lambda a: a)(1, 2) | (lambda *, k: k)() | max(*5) | max(**5) | max(**{1: 2}) | [*5]
{**5} | {*5} | super() | torch.Size('a') | torch.device('q') | torch.finfo(torch.int32) | torch.einsum('ij', x) | x['a'] | x[1.5]
torch.nn.functional.linear(x, 5) | x.index_select(0, 5) | torch.where(5, x, x) | x.view(3) | torch.cat(5) | x.sum(9) | x.shape.foo
collections.deque().foo | x.backward() | int('x') | float(None) | None.foo | 5() | 'a' + 1 | 1 / 0 | min() | sorted([1, 'a'])
"""
EXPRESSIONS = [e.strip() for line in REFUSED.split("\n") for e in line.split("|") if e.strip()]
SPACE = {
    "torch": torch, "math": math, "itertools": itertools, "functools": functools, "collections": collections, "NT": NT,
    "Plain": Plain,
}  # fmt: skip


def told(run: Any) -> Any:
    try:
        return run(torch.ones(4))
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_python_refuses_is_said_in_its_words(expression: str) -> None:
    space: dict[str, Any] = dict(SPACE)
    text = f"def alone(x):\n    return {expression}\n\ndef caught(x):\n    try:\n        return {expression}\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(f"{text}    except Exception as error:\n        return type(error), str(error)\n", space)
    for name in ("alone", "caught"):
        want, f = told(space[name]), compiled(space[name])
        assert isinstance(want[0], type) and issubclass(want[0], Exception)
        assert told(f) == told(f) == want
