"""How deep a program may call: what Python still does goes on, though capture takes several frames for one of the program's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.api import CompiledFunction
from tinycompile.base import stack_room
from tinycompile.base.errors import GraphBreakError
from tinycompile.base.stack_room import has_room
from tinycompile.capture.provenance import is_the_programs, natively
from tinycompile.options import Options

pytestmark = pytest.mark.pure
X = torch.ones(2)
LIMIT = sys.getrecursionlimit()


def in_a_thread(fn: Callable[[], Any]) -> Any:
    """What a function gives on a stack of its own, whatever the tests' runner has used of this one."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(fn())
        except Exception as error:  # noqa: BLE001  # it is raised here
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def at_depth(depth: int, fn: Callable[[], Any]) -> Any:
    return fn() if depth == 0 else at_depth(depth - 1, fn)


class Link:
    """A list whose every question is asked of the next link."""

    def __init__(self, rest: Link | None) -> None:
        self.rest = rest

    @property
    def length(self) -> int:
        return 1 if self.rest is None else self.rest.length + 1

    def __len__(self) -> int:
        return 1 if self.rest is None else len(self.rest) + 1

    def __getattr__(self, name: str) -> Any:
        if self.rest is None:
            return 5
        return getattr(self.rest, name)

    def __call__(self, x: Any) -> Any:
        return x if self.rest is None else self.rest(x + 1)

    def __add__(self, other: Any) -> Any:
        return other if self.rest is None else self.rest + other

    def __iter__(self) -> Iterator[Link]:
        yield self
        if self.rest is not None:
            yield from self.rest


def links(count: int) -> Link:
    made = Link(None)
    for _ in range(count - 1):
        made = Link(made)
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = [1]
    for _ in range(depth):
        made = [made]
    return made


def deep(x, n):
    return x if n == 0 else deep(x + 1, n - 1)


def to_and(x, n):
    return x if n == 0 else fro(x + 1, n - 1)


def fro(x, n):
    return x if n == 0 else to_and(x * 2, n - 1)


def walk(x, link):
    return x if link.rest is None else walk(x + 1, link.rest)


def breaks_at_the_end(x, n):
    if n == 0:
        tinycompile.graph_break()
        return x
    return breaks_at_the_end(x, n - 1) + 1


def caught(x, n):
    try:
        return deep(x, n)
    except RecursionError:
        return "caught"


def chained(x, n):
    f: Callable[[Any], Any] = torch.neg
    for _ in range(n):
        f = (lambda g: lambda y: g(y) + 1)(f)
    return f(x)


def makes_nested(x, n):
    made = None
    for _ in range(n):
        made = [made]
    count = 0
    while made is not None:
        made, count = made[0], count + 1
    return x + count


def compares(x, n):
    return x + (nested(n) == nested(n))


DEEP: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    **{f.__name__: (f, int) for f in (deep, to_and, breaks_at_the_end, caught, chained, makes_nested, compares)},
    "walk": (walk, links),
    "property": (lambda x, p: x + p.length, links),
    "special method": (lambda x, p: x + len(p), links),
    "attribute": (lambda x, p: x + p.missing, links),
    "call": (lambda x, p: p(x), links),
    "operator": (lambda x, p: p + x, links),
    "generator": (lambda x, p: x + sum(1 for _ in p), links),
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("share", (0.15, 0.3, 0.45))
def test_what_python_does_goes_on(name, share):
    fn, make = DEEP[name]
    given = make(int(LIMIT * share))
    compiled = CompiledFunction(fn, Options(backend="eager"))
    eager = in_a_thread(lambda: fn(X, given))
    for _ in range(2):
        assert torch.equal(in_a_thread(lambda: compiled(X, given)), eager)


def test_nearly_to_the_end_of_the_stack():
    compiled = CompiledFunction(caught, Options(backend="eager"))
    assert torch.equal(in_a_thread(lambda: compiled(X, LIMIT - 50)), X + LIMIT - 50)
    assert {b.id for b in compiled.breaks} == {"recursion"}
    assert in_a_thread(lambda: compiled(X, LIMIT + 50)) == "caught"


@tinycompile.compile(backend="eager")
def compiled_deep(x, n):
    return x if n == 0 else compiled_deep(x + 1, n - 1)


@tinycompile.compile(backend="eager")
def compiled_to(x, n):
    return x if n == 0 else compiled_fro(x + 1, n - 1)


@tinycompile.compile(backend="eager")
def compiled_fro(x, n):
    return x if n == 0 else compiled_to(x + 1, n - 1)


class Deep:
    @tinycompile.compile(backend="eager")
    def go(self, x, n):
        return x if n == 0 else self.go(x + 1, n - 1)


class Called:
    @tinycompile.compile(backend="eager")
    def __call__(self, x, n):
        return x if n == 0 else self(x + 1, n - 1)


class Module(torch.nn.Module):
    """Calls itself, by way of what is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Callable[..., Any]] = [self]

    def forward(self, x, n):
        return x if n == 0 else self.called[0](x + 1, n - 1)


def compiled_module() -> Any:
    module = Module()
    compiled = tinycompile.compile(module, backend="eager")
    module.called[0] = compiled
    return compiled


@tinycompile.compile(backend="eager")
def compiled_and_breaks(x, n):
    tinycompile.graph_break()
    return x if n == 0 else compiled_and_breaks(x + 1, n - 1)


@tinycompile.compile(backend="eager")
def compiled_and_not(x, n):
    return x if n == 0 else not_compiled(x + 1, n - 1)


def not_compiled(x, n):
    return compiled_and_not(x, n)


@tinycompile.disable
def around_compiled(x, n):
    return compiled_deep(x, n)


def goes(fn: Callable[..., Any], depth: int) -> bool:
    """Whether a function calls itself so often."""
    try:
        found = in_a_thread(lambda: fn(X, depth))
    except RecursionError:
        return False
    assert torch.equal(found, X + depth)
    return True


def deepest(fn: Callable[..., Any]) -> int:
    low, high = 1, LIMIT
    while high - low > 5:
        middle = (low + high) // 2
        low, high = (middle, high) if goes(fn, middle) else (low, middle)
    return low


class Plain:
    def __call__(self, x, n):
        return x if n == 0 else self(x + 1, n - 1)


def plain_by_way(x, n):
    return x if n == 0 else plain_way(x + 1, n - 1)


def plain_way(x, n):
    return plain_by_way(x, n)


RECURSIVE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "itself": (lambda: compiled_deep, lambda: deep),
    "another": (lambda: compiled_to, lambda: deep),
    "method": (lambda: Deep().go, lambda: deep),
    "breaks": (lambda: compiled_and_breaks, lambda: deep),
    "by way of another": (lambda: compiled_and_not, lambda: plain_by_way),
    "disabled": (lambda: around_compiled, lambda: deep),
    "object": (Called, Plain),
    "module": (compiled_module, Module),
}
# Python 3.12 has a limit of its own, which nothing raises, for calls from C, such as those of objects.
SHARE = 0.9 if sys.version_info[:2] != (3, 12) else 0.35


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", RECURSIVE)
def test_compiled_functions_call_themselves_as_deep_as_python_does(name):
    make, plain = RECURSIVE[name]
    fn, most = make(), deepest(plain())
    for share in (0.2, 0.6, 0.97, 0.6):
        assert goes(fn, int(most * share * SHARE)), (share, most)
    assert not goes(fn, int(most * 1.1) + 10)
    assert sys.getrecursionlimit() == LIMIT


@pytest.mark.parametrize("name", RECURSIVE)
def test_what_has_no_end_is_told_as_python_tells_it(name):
    fn = RECURSIVE[name][0]()
    for _ in range(2):
        with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
            in_a_thread(lambda: fn(X, -1))
        assert sys.getrecursionlimit() == LIMIT
    assert goes(fn, 10)


@tinycompile.compile(backend="eager")
def sets_the_limit(x, n, to):
    if n == 0:
        sys.setrecursionlimit(to)
        return x
    return sets_the_limit(x + 1, n - 1, to)


@pytest.mark.parametrize("to", (LIMIT * 3, LIMIT * 5))
def test_the_limit_that_the_program_sets_stays(to):
    try:
        assert torch.equal(in_a_thread(lambda: sets_the_limit(X, int(LIMIT * SHARE * 0.8), to)), X + int(LIMIT * SHARE * 0.8))
        assert sys.getrecursionlimit() == to
    finally:
        sys.setrecursionlimit(LIMIT)


def test_threads_that_go_deep_at_once_leave_the_limit_as_it_was():
    found: list[bool] = []
    depth = int(LIMIT * SHARE * 0.9)
    threads = [threading.Thread(target=lambda: found.append(torch.equal(compiled_deep(X, depth), X + depth))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6 and sys.getrecursionlimit() == LIMIT


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python itself has an end to it")
def test_where_python_sets_no_limit_the_stack_has_an_end():
    sys.setrecursionlimit(10**6)
    try:
        assert goes(compiled_deep, 2000)
        assert not goes(compiled_deep, 100_000)
    finally:
        sys.setrecursionlimit(LIMIT)


@pytest.mark.parametrize("depth", range(LIMIT // 2, LIMIT - 60, LIMIT // 20))
def test_called_from_deep_down(depth):
    """A function is captured while there is room, or runs in plain Python this time; it calls others or doesn't."""
    for calls in (0, 30):
        compiled = CompiledFunction(lambda x, n: deep(x + 1, n), Options(backend="eager"))
        assert torch.equal(in_a_thread(lambda c=compiled, n=calls: at_depth(depth - n, lambda: c(X, n))), X + calls + 1)
        assert torch.equal(in_a_thread(lambda c=compiled, n=calls: c(X, n)), X + calls + 1)
        assert len(compiled.graphs) > 0


def test_fullgraph_says_that_there_is_no_room():
    compiled = CompiledFunction(deep, Options(backend="eager", fullgraph=True))
    with pytest.raises(GraphBreakError, match="recursion"):
        in_a_thread(lambda: at_depth(LIMIT - 100, lambda: compiled(X, 0)))
    with pytest.raises(GraphBreakError, match="recursion"):
        in_a_thread(lambda: compiled(X, LIMIT // 2))
    assert torch.equal(compiled(X, 3), X + 3)


def test_no_handler_of_the_programs_sees_that_capture_used_the_stack_up():
    def compares_caught(x, a, b):
        try:
            return x + 1, a == b
        except RecursionError:
            return "caught"

    for depth, shown in ((LIMIT // 2, True), (LIMIT * 20, "caught")):
        a, b = nested(depth), nested(depth)
        eager = compares_caught(X, a, b)
        compiled = CompiledFunction(compares_caught, Options(backend="eager"))
        for _ in range(2):
            result = in_a_thread(lambda c=compiled, a=a, b=b: c(X, a, b))
            assert (result if shown == "caught" else result[1]) == (eager if shown == "caught" else eager[1]) == shown


def test_whose_it_is_where_the_stack_ends_in_pythons_own_functions_is_not_known():
    with pytest.raises(RecursionError) as found:
        natively(at_depth, 10 * LIMIT, int)
    assert not is_the_programs(found.value)


def test_a_recursion_error_that_the_program_raises_is_its_own():
    def raises(x):
        try:
            raise RecursionError("mine")
        except RecursionError as error:
            return x + 1, str(error)

    compiled = CompiledFunction(raises, Options(backend="eager"))
    assert compiled(X)[1] == "mine" and not compiled.breaks


def test_room_is_what_is_left_of_the_limit():
    assert in_a_thread(has_room) and in_a_thread(lambda: at_depth(LIMIT // 2, has_room))
    assert not in_a_thread(lambda: at_depth(LIMIT - 100, has_room))


def test_what_the_interpreter_counts_is_what_a_look_at_the_stack_finds() -> None:
    assert stack_room._thread.left is not None
    for depth in range(0, LIMIT - 60, 50):
        told = in_a_thread(lambda depth=depth: at_depth(depth, lambda: (has_room(), stack_room._has_room_by_frames())))
        assert told[0] == told[1]
