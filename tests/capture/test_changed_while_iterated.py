"""Containers whose keys are changed while they are iterated: what comes next is Python's own, over graph breaks, too."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile import graph_break
from tinycompile.api import CompiledFunction
from tinycompile.capture.bytecode import decode
from tinycompile.options import Options

pytestmark = pytest.mark.pure
ITERATED: dict[str, Callable[[Any], Any]] = {
    "dict": lambda d: d,
    "iter": iter,
    "keys": lambda d: d.keys(),
    "values": lambda d: d.values(),
    "items": lambda d: d.items(),
    "enumerate": enumerate,
    "reversed": reversed,
    "reversed items": lambda d: reversed(d.items()),
}


def last_replaced(d, n):
    if n < 3:
        del d[list(d)[-1]]
        d[f"n{n}"] = n


def first_replaced(d, n):
    if n < 6:
        d.pop(next(iter(d)))
        d[f"n{n}"] = n


def only_at_the_end(d, n):
    if n == 3:
        del d["a"]
        d["z"] = 1


def put_back(d, n):
    if n < 3:
        d["b"] = d.pop("b")


def emptied(d, n):
    if n == 1:
        d.clear()
        d.update(x1=1, y1=2, z1=3)


def last_taken(d, n):
    if n < 4:
        k, v = d.popitem()
        d[k * 2] = v


def grown(d, n):
    d["q"] = 1


def shrunk(d, n):
    d.pop("c", None)


def grown_and_shrunk(d, n):
    d["q"] = 1
    d.pop("q")


def only_set(d, n):
    d["a"] = n


def laid_out_anew(d, n):
    if n < 2:
        for k in range(20):
            d[k] = k
        for k in range(20):
            del d[k]


def moved(d, n):
    if n == 1 and hasattr(d, "move_to_end"):
        d.move_to_end("b", last=False)
        d.move_to_end("a")


CHANGES = [
    last_replaced, first_replaced, only_at_the_end, put_back, emptied, last_taken, grown, shrunk, grown_and_shrunk, only_set,
    laid_out_anew, moved,
]  # fmt: skip


def loop(x, d, iterated, change, breaks):
    out = []
    for k in iterated(d):
        out.append(k)
        if breaks:
            graph_break()
        change(d, len(out))
        if len(out) > 9:
            break
    return x + len(out), out, d


def half_way(x, d, iterated, change, breaks):
    it = iter(iterated(d))
    out = [next(it)]
    change(d, 1)
    if breaks:
        graph_break()
    change(d, 2)
    out += it
    return x, out, d


def observed(fn: Callable[..., Any], d: Any, *args: Any) -> Any:
    try:
        return repr(fn(torch.ones(2), d, *args))
    except RuntimeError as error:
        return str(error), repr(d)


@pytest.mark.parametrize("change", CHANGES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("iterated", ITERATED)
def test_dicts(iterated: str, change: Callable[..., Any]) -> None:
    for fn in (loop, half_way):
        compiled = CompiledFunction(fn, Options(backend="eager", resume=True))
        for kind in (dict, OrderedDict):
            for breaks in (False, True):
                args = ITERATED[iterated], change, breaks
                want = observed(fn, kind(a=1, b=2, c=3), *args)
                assert observed(compiled, kind(a=1, b=2, c=3), *args) == want, (fn.__name__, kind, breaks)


@pytest.mark.parametrize("fn", [loop, half_way], ids=lambda fn: fn.__name__)
def test_with_a_break_before_each_instruction(fn: Callable[..., Any]) -> None:
    code = fn.__code__
    for at in range(len(decode(code))):
        compiled = CompiledFunction(fn, Options(backend="eager", resume=True, force=lambda c, i: c is code and i == at))
        for change in (put_back, first_replaced, last_taken):
            args = ITERATED["dict"], change, False
            assert observed(compiled, dict(a=1, b=2, c=3), *args) == observed(fn, dict(a=1, b=2, c=3), *args), (at, change)


def test_sets() -> None:
    def replaced(x, s, again):
        out = []
        for k in s:
            out.append(k)
            s.discard(k)
            s.add(k if again else k + 10)
            if len(out) > 5:
                break
        return x, out, s

    compiled = CompiledFunction(replaced, Options(backend="eager", resume=True))
    for again in (False, True):
        assert observed(compiled, {1, 2, 3}, again) == observed(replaced, {1, 2, 3}, again)


# --- once it was changed ---

AGAIN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (lambda: {1: 1, 2: 2}, iter, lambda d: d.update({3: 3})),
    "keys": (lambda: {1: 1, 2: 2}, lambda d: iter(d.keys()), lambda d: d.pop(2)),
    "values": (lambda: {1: 1, 2: 2}, lambda d: iter(d.values()), lambda d: d.clear()),
    "items": (lambda: {1: 1, 2: 2}, lambda d: iter(d.items()), lambda d: d.update({3: 3})),
    "reversed": (lambda: {1: 1, 2: 2}, reversed, lambda d: d.pop(1)),
    "enumerate": (lambda: {1: 1, 2: 2}, enumerate, lambda d: d.pop(1)),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), iter, lambda d: d.update(c=3)),
    "set": (lambda: {1}, iter, lambda s: s.add(2)),
    "deque": (lambda: deque([1, 2]), iter, lambda q: q.append(3)),
    "deque rotated": (lambda: deque([1, 2]), iter, lambda q: q.rotate(1)),
    "deque replaced": (lambda: deque([1, 2]), iter, lambda q: q.__setitem__(1, 5)),
    "deque reversed": (lambda: deque([1, 2]), iter, lambda q: q.reverse()),
    "list": (lambda: [1, 2], iter, lambda q: q.append(3)),
}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("begun", [0, 1, 3])
def test_it_is_said_each_time(name: str, begun: int) -> None:
    make, iterate, change = AGAIN[name]

    def program(x: torch.Tensor) -> Any:
        held = make()
        steps, seen = iterate(held), []
        for n in range(7):
            if n == begun:
                change(held)
            try:
                seen.append(next(steps))
            except (RuntimeError, StopIteration) as error:
                seen.append((type(error).__name__, str(error)))
        return x + 1, seen

    assert CompiledFunction(program, Options(backend="eager"))(torch.ones(2))[1] == program(torch.ones(2))[1]


def test_a_loop_over_a_deque_ends_when_it_grows() -> None:
    def program(x: torch.Tensor) -> Any:
        queue = deque([x, x + 1])
        try:
            for t in queue:
                queue.append(t * 2)
        except RuntimeError as error:
            return str(error), len(queue), x + 1

    assert CompiledFunction(program, Options(backend="eager"))(torch.ones(2))[:2] == program(torch.ones(2))[:2]
