"""Random Python functions, compiled with and without breaks, do what eager does.

With ``TINYCOMPILE_TESTS=full`` 5,000 are tried, by default a few; ``TINYCOMPILE_RANDOM_FUNCTIONS`` says how many else."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
from typing import Any, NamedTuple

import pytest
import torch

from tests.capture.breaking import Box
from tests.capture.test_corpus import same
from tinycompile.api import CompiledFunction
from tinycompile.options import Options

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.pure
FULL = os.environ.get("TINYCOMPILE_TESTS") == "full"
COUNT = int(os.environ.get("TINYCOMPILE_RANDOM_FUNCTIONS", "5000" if FULL else "40"))
TENSORS = ("a", "b", "c")
NUMBERS = ("m", "n")
LOG: list[Any] = []


class Writer:
    """Draws the statements of one function. Every variable is bound from the start, so any statement may use any."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.loops = 0

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, depth: int = 2) -> str:
        simple = [*NUMBERS, *map(str, range(-1, 4)), "len(xs)", "box.count", "d['k']"]
        if depth == 0:
            return self.pick(*simple)
        kind = self.draw(st.integers(0, 5))
        if kind == 0:
            return f"({self.number(depth - 1)} {self.pick('+', '-', '*')} {self.number(depth - 1)}) % 7"
        if kind == 1:
            return f"int({self.tensor(depth - 1)}.sum()) % 5"
        if kind == 2:
            return f"({self.number(0)} if {self.condition(depth - 1)} else {self.number(0)})"
        if kind == 3:
            return f"add({self.number(0)})"
        return self.pick(*simple)

    def tensor(self, depth: int = 2) -> str:
        if depth == 0:
            return self.pick(*TENSORS, "box.value", "xs[0]", "xs[-1]")
        kind = self.draw(st.integers(0, 6))
        if kind == 0:
            return f"({self.tensor(depth - 1)} {self.pick('+', '-', '*')} {self.tensor(depth - 1)}).clamp(-9, 9)"
        if kind == 1:
            return f"({self.tensor(depth - 1)} {self.pick('+', '*')} {self.number(0)}).clamp(-9, 9)"
        if kind == 2:
            return f"torch.{self.pick('sin', 'abs', 'neg', 'relu')}({self.tensor(depth - 1)})"
        if kind == 3:
            return f"helper({self.tensor(0)}, {self.number(0)})"
        if kind == 4:
            return f"{self.tensor(0)}.{self.pick('flip(0)', 'view(4)', 'clone()', 'roll(1)')}"
        return self.pick(*TENSORS)

    def condition(self, depth: int = 1) -> str:
        kind = self.draw(st.integers(0, 4))
        if kind == 0:
            return f"{self.tensor(1)}.sum() > {self.number(0)}"
        if kind == 1 and depth:
            return f"({self.condition(0)} {self.pick('and', 'or')} {self.condition(0)})"
        if kind == 2:
            return f"{self.pick(*TENSORS)} is {self.pick(*TENSORS, 'xs[0]')}"
        return f"{self.number(depth)} {self.pick('<', '==', '>=', '!=')} {self.number(0)}"

    def block(self, indent: int, depth: int) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(indent, depth)

    def emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, indent: int, depth: int) -> None:
        kind = self.draw(st.integers(0, 17 if depth else 11))
        simple = {
            0: lambda: f"{self.pick(*TENSORS)} = {self.tensor()}",
            1: lambda: f"{self.pick(*NUMBERS)} = {self.number()}",
            2: lambda: f"{self.pick(*TENSORS)} {self.pick('+', '*')}= {self.tensor(0)}.clamp(-2, 2)",
            3: lambda: f"xs.append({self.tensor(1)})",
            4: lambda: f"box.value = {self.tensor(1)}",
            5: lambda: f"d[{self.pick(repr('k'), repr('z'))}] = {self.number(1)}",
            6: lambda: f"log({self.number(1)})",
            7: lambda: f"box.bump({self.tensor(0)})",
            8: lambda: f"{self.pick(*TENSORS)}, {self.pick(*NUMBERS)} = {self.tensor(1)}, {self.number(1)}",
            9: lambda: f"{self.pick(*TENSORS)} = {self.pick(*TENSORS)}",
            10: lambda: f"xs[{self.pick('0', '-1')}] = {self.tensor(1)}",
            11: lambda: f"{self.pick(*TENSORS)}[{self.pick('0', '1:')}] = {self.number(0)}",
        }
        if self.draw(st.integers(0, 3)) == 0:
            for line in self.richer().split("; "):
                self.emit(indent, line)
        elif kind in simple:
            self.emit(indent, simple[kind]())
        elif kind in (12, 13):
            self.emit(indent, f"if {self.condition()}:")
            self.block(indent + 1, depth - 1)
            if self.draw(st.booleans()):
                self.emit(indent, "else:")
                self.block(indent + 1, depth - 1)
        elif kind in (14, 15):
            self.loop(indent, depth)
        elif kind == 16:
            self.emit(indent, "try:")
            self.block(indent + 1, depth - 1)
            self.emit(indent + 1, self.pick("raise ValueError(n)", "d['missing']", "a + torch.ones(9)", "log('fine')"))
            self.emit(
                indent, f"except {self.pick('ValueError', 'KeyError', '(KeyError, RuntimeError)', 'Exception')} as error:"
            )
            self.emit(indent + 1, "log(type(error).__name__)")
            self.block(indent + 1, depth - 1)
            if self.draw(st.booleans()):
                self.emit(indent, "finally:")
                self.block(indent + 1, depth - 1)
        else:
            self.emit(indent, self.pick("with torch.no_grad():", "with Noted():"))
            self.block(indent + 1, depth - 1)

    def richer(self) -> str:
        """A statement about sets, queues, generators, objects of several kinds, or numbers that change."""
        n, m = self.pick(*NUMBERS), self.number(1)
        t, u = self.pick(*TENSORS), self.tensor(0)
        return self.pick(
            f"seen.add({m}); {n} = len(seen & {{0, 1, 2, n}})",
            f"seen {self.pick('|', '-', '^', '&')}= {{{m}, 3}}; {n} = sum(sorted(seen)) % 7",
            f"queue.append({u}); {t} = queue[0]",
            f"queue.appendleft({u}); {n} = len(queue)",
            f"stack.push({m}); {n} = stack.top % 7",
            f"stack.append({m}); {n} = sum(stack) % 7",
            f"{t} = sum(steps({u}, {n} % 3), {u}).clamp(-9, 9)",
            f"g = echo({u}); next(g); {t} = g.send({m})",
            f"{n} = kind({m}, {u})",
            f"{n} = kind([{m}, {n}], {{'k': 1}}, (1, {n}))",
            f"{t} = pair({m}, {u}).right",
            f"{n} = caught({m})",
            f"box.rate *= 0.5; {t} = {t} * box.rate",
            f"box.rate += {m}; {n} = int(box.rate) % 5",
            f"{t} = scaled({m})({u})",
            f"point.x = {m}; {n} = (point.x + point.twice) % 7",
            f"point += {m}; {n} = point.x % 7",
            f"counts['k'] += {m}; {n} = counts['q' if n else 'k'] % 5",
            f"{t} = dict(a={u}, **{{'b': {t}}})[{self.pick(repr('a'), repr('b'))}]",
            f"m, *rest, n = {m}, 1, *stack[:1], {n}; m, n = m % 7, n % 7",
            f"del xs[1:]; {n} = len(xs)",
            f"with noted({m}) as {n}: {t} = {t} + 1",
            f"{n} = [k for k in range(4) if k != n][m % 3] if xs else 0",
            f"queue = collections.deque(reversed(queue), maxlen=3); {n} = len([v for v in queue if v is {t}])",
        )

    def loop(self, indent: int, depth: int) -> None:
        self.loops += 1
        i = f"i{self.loops}"
        heads = (f"for {i} in range({self.draw(st.integers(0, 3))}):", f"for {i}, _ in zip(range(3), list(xs)):",
                 f"for {i}, _ in enumerate([a, b]):", f"for {i} in [1, 2]:")  # fmt: skip
        self.emit(indent, self.pick(*heads))
        self.emit(indent + 1, f"n = (n + {i}) % 7")
        self.block(indent + 1, depth - 1)
        if self.draw(st.booleans()):
            self.emit(indent + 1, f"if {self.condition()}:")
            self.emit(indent + 2, self.pick("break", "continue", "return a, n"))

    def source(self) -> str:
        self.emit(0, "def function(a, b, xs, d, box, n):")
        for line in (
            "c, m = a * 1, 1",
            "total = 0",
            "seen, queue, stack = {1, 2}, collections.deque([a], maxlen=3), Stack([n])",
            "point, counts = Point(n), collections.defaultdict(int)",
            "def add(k):",
            "    nonlocal total",
            "    total += k",
            "    return total % 5",
        ):
            self.emit(1, line)
        for _ in range(3):
            self.block(1, 2)
        self.emit(
            1,
            "return a, b, c, m, n, total, xs, a is c, sorted(seen), list(queue), list(stack), point.x, dict(counts), box.rate",
        )
        return "\n".join(self.lines) + "\n"


class Noted:
    def __enter__(self) -> None:
        LOG.append("enter")

    def __exit__(self, *error: Any) -> None:
        LOG.append("exit")


class Pair(NamedTuple):
    left: Any
    right: Any


HELPERS = """
def helper(x, k):
    if k == 2:
        log("two")
    y = x + k
    return y.clamp(-5, 5)


class Stack(list):
    def push(self, value):
        self.append(value)

    @property
    def top(self):
        return self[-1]


class Point:
    def __init__(self, x):
        self.x = x

    @property
    def twice(self):
        return self.x * 2

    def __iadd__(self, other):
        self.x += other
        return self


class Problem(Exception):
    def __init__(self, code):
        super().__init__(code, "bad")
        self.code = code


def steps(x, n):
    for i in range(n):
        if i == 1:
            log("step")
        yield x + i


def echo(x):
    got = yield x
    yield x * got


def kind(*values):
    match values:
        case [0 | 1, _]:
            return 1
        case [int(k), torch.Tensor()] if k > 3:
            return k % 7
        case [[a, b], {"k": c}, (1, *rest)]:
            return (a + b + c + len(rest)) % 7
        case [first, *_]:
            return 2
    return 3


def pair(k, x):
    return Pair(k, x)._replace(right=x * k) if k % 2 else Pair(right=x, left=k)


def caught(k):
    try:
        if k % 2:
            raise Problem(k)
        return {0: 5}[k]
    except Problem as problem:
        return problem.code + len(problem.args)
    except KeyError as error:
        return error.args[0]
    finally:
        log("finally")


def scaled(k):
    @functools.wraps(helper)
    def inner(x):
        inner.calls = getattr(inner, "calls", 0) + k
        return x * inner.calls

    return inner


@contextlib.contextmanager
def noted(k):
    try:
        yield (k + 1) % 7
    finally:
        log("left")
"""


def log(value: Any) -> None:
    LOG.append(value)


log._tinycompile_mark = "disable"  # type: ignore[attr-defined]  # what prints, breaks


def observed(run: Any, seed: int, n: int) -> Any:
    LOG.clear()
    generator = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(4, generator=generator) for _ in range(3))
    xs, d, box = [c, c + 1], {"k": 1}, Box(a + 1)
    box.rate = 1.5 + seed  # type: ignore[attr-defined]
    grad = torch.is_grad_enabled()
    try:
        result = run(a, b, xs, d, box, n)
    except Exception as error:  # noqa: BLE001
        result = type(error), str(error)
    assert torch.is_grad_enabled() == grad
    return [result, a, b, xs, d, vars(box), list(LOG)]


def compare(source: str, force: Any = None) -> None:
    space: dict[str, Any] = {"torch": torch, "log": log, "Noted": Noted, "Pair": Pair, "__name__": "random_function"}
    space.update(collections=collections, contextlib=contextlib, functools=functools)
    exec(compile(HELPERS + source, "<random>", "exec"), space)
    fn = space["function"]
    compiled = CompiledFunction(fn, Options(backend="eager", force=force))
    for seed, n in ((0, 1), (0, 1), (1, 3), (2, 0)):
        same(observed(compiled, seed, n), observed(fn, seed, n), f"seed {seed}, n {n}\n{source}")


@st.composite
def sources(draw: Any) -> str:
    return Writer(draw).source()


@hypothesis.settings(max_examples=COUNT, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), database=None)
@hypothesis.given(sources())
@pytest.mark.filterwarnings("ignore::tinycompile.base.errors.RecompileLimitWarning")
def test_a_random_function(source: str) -> None:
    compare(source)


@hypothesis.settings(max_examples=COUNT // 4, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), database=None)
@hypothesis.given(sources(), st.integers(2, 11))
@pytest.mark.filterwarnings("ignore::tinycompile.base.errors.RecompileLimitWarning")
def test_a_random_function_with_more_breaks(source: str, every: int) -> None:
    compare(source, lambda code, at: code.co_name == "function" and at % every == 0)
