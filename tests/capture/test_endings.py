"""Objects whose end is noticed: a generator asleep in a ``with`` or ``try``, an object with ``__del__``, one that is watched. Over
a graph break, too, they end where eager lets go of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.api import CompiledFunction
from tinycompile.capture.bytecode import decode
from tinycompile.capture.endings import ends_quietly
from tinycompile.options import Options

pytestmark = pytest.mark.pure
LOG: list[str] = []


def closing(count: int) -> Iterator[int]:
    try:
        yield from range(count)
    finally:
        LOG.append("closed")


def quiet(count: int) -> Iterator[int]:
    with torch.no_grad():
        yield from range(count)


def plain(count: int) -> Iterator[int]:
    yield from range(count)


class Noisy:
    def __init__(self, name: str = "it") -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(f"end of {self.name}")


class Holder:
    pass


def left_loop(x):
    for i in closing(3):
        x = x + i
        tinycompile.graph_break()
        if i == 1:
            break
    LOG.append("behind")
    return x * 2


def gradients_back_on(x):
    y = x * 0
    for i in quiet(3):
        y = y + i
        if i == 1:
            break
        tinycompile.graph_break()
    return (x * y).sum(), torch.is_grad_enabled()


def deleted(x):
    g = closing(3)
    next(g)
    tinycompile.graph_break()
    del g
    LOG.append("behind")
    return x + 1


def overwritten(x):
    g = closing(3)
    x = x + next(g)
    tinycompile.graph_break()
    g = None
    LOG.append("behind")
    return x + 1


def in_a_cell(x):
    g = closing(3)
    x = x + next(g)

    def forget():
        nonlocal g
        g = None

    tinycompile.graph_break()
    forget()
    LOG.append("behind")
    return x + 1


def handled(x):
    try:
        for i in closing(3):
            x = x + i
            tinycompile.graph_break()
            raise ValueError("left")
    except ValueError:
        LOG.append("handler")
    return x


def raised_out(x):
    for i in closing(3):
        x = x + i
        tinycompile.graph_break()
        raise KeyError(i)


def returned_from_the_loop(x):
    for i in closing(3):
        tinycompile.graph_break()
        return x + i


def kept_longer(x):
    g = closing(3)
    for i in g:
        x = x + i
        tinycompile.graph_break()
        break
    LOG.append("still there")
    return x + next(g)


def used_up(x):
    for i in closing(2):
        x = x + i
        tinycompile.graph_break()
    LOG.append("behind")
    return x


def behind_other_iterators(x):
    for i, (a, b) in enumerate(zip(closing(3), map(float, closing(3)))):
        x = x + i + a + b
        tinycompile.graph_break()
        break
    LOG.append("behind")
    return x


def unpacked(x):
    tinycompile.graph_break()
    a, *_ = closing(2)
    LOG.append("behind")
    return x + a


def nested(x):
    for i in closing(2):
        for j in closing(2):
            x = x + i * j
            tinycompile.graph_break()
            break
        LOG.append(f"inner {i}")
    LOG.append("behind")
    return x


def called(x):
    return left_loop(x) + deleted(x)


def made_and_deleted(x):
    d = Noisy()
    x = x + 1
    del d
    LOG.append("behind")
    return x + 1


def never_named(x):
    Noisy()
    LOG.append("behind")
    return x + 1


def renamed(x):
    d, e = Noisy("d"), Noisy("e")
    tinycompile.graph_break()
    d = e
    LOG.append("behind")
    return x + len(d.name)


def _reads(x, d):
    LOG.append("inside")
    return x + len(d.name)


def passed_on(x):
    x = _reads(x, Noisy())
    LOG.append("behind")
    return x + 1


def held_by_another(x):
    h = Holder()
    h.d = [Noisy()]
    tinycompile.graph_break()
    del h
    LOG.append("behind")
    return x + 1


def in_a_closure(x):
    def make(d):
        return lambda: d

    f = make(Noisy())
    tinycompile.graph_break()
    f = None
    LOG.append("behind")
    return x + 1


def two_names(x):
    d = Noisy()
    e = d
    tinycompile.graph_break()
    del d
    LOG.append("one is left")
    e = 1
    LOG.append("none is left")
    return x + e


def watched(x):
    h = Holder()
    weakref.finalize(h, LOG.append, "finalized")
    tinycompile.graph_break()
    h = None
    LOG.append("behind")
    return x + 1


def seen_through_a_reference(x):
    h = Holder()
    ref = weakref.ref(h)
    x = x * 2
    del h
    return x + 1, ref() is None


def in_turn(x):
    for name in "ab":
        d = Noisy(name)
        x = x + len(d.name)
        LOG.append(f"made {name}")
    return x


def taken_from_a_list(x):
    a = [Noisy("1"), Noisy("2")]
    b = a
    a = None
    LOG.append("held")
    b.pop()
    LOG.append("popped")
    b[0] = 3
    LOG.append("replaced")
    return x + b[0]


def taken_from_a_dict(x):
    d = {"a": closing(2), "b": closing(3)}
    x = x + next(d["a"]) + next(d["b"])
    tinycompile.graph_break()
    LOG.append("held")
    del d["a"]
    LOG.append("deleted")
    d.clear()
    LOG.append("cleared")
    return x


def file_closed(x):
    with open(__file__) as file:
        line = file.readline()
    LOG.append(str(file.closed))
    del file
    return x + len(line)


CASES: list[Callable[..., Any]] = [
    left_loop, gradients_back_on, deleted, overwritten, in_a_cell, handled, raised_out, returned_from_the_loop, kept_longer,
    used_up, behind_other_iterators, unpacked, nested, called, made_and_deleted, never_named, renamed, passed_on,
    held_by_another, taken_from_a_list, taken_from_a_dict, in_a_closure, two_names, watched, seen_through_a_reference, in_turn, file_closed,
]  # fmt: skip


def observed(fn: Callable[..., Any]) -> Any:
    LOG.clear()
    x = torch.ones(3, requires_grad=True)
    try:
        results: Any = fn(x)
    except KeyError as error:
        results = ("raised", error.args)
    LOG.append("over")
    for r in results if isinstance(results, tuple) else (results,):
        LOG.append(f"{r.tolist()} {r.requires_grad}" if isinstance(r, torch.Tensor) else repr(r))
    return list(LOG), torch.is_grad_enabled()


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_objects_end_where_eager_lets_go_of_them(fn: Callable[..., Any]) -> None:
    compiled = CompiledFunction(fn, Options(backend="eager", resume=True))
    for _ in range(2):
        assert observed(compiled) == observed(fn)


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_with_a_break_before_each_instruction(fn: Callable[..., Any]) -> None:
    code = fn.__code__
    for at in range(len(decode(code))):
        compiled = CompiledFunction(fn, Options(backend="eager", resume=True, force=lambda c, i: c is code and i == at))
        assert observed(compiled) == observed(fn), f"break before {at}: {decode(code)[at].op}"


def test_what_ends_quietly() -> None:
    asleep, done, unguarded = closing(2), closing(2), plain(2)
    assert all(next(g) == 0 for g in (asleep, done, unguarded))
    done.close()
    watched_one = Holder()
    watches = weakref.ref(watched_one)
    for noticed in (asleep, Noisy(), [Noisy()], {"a": (Noisy(),)}, zip(asleep), watched_one, lambda: asleep):
        assert not ends_quietly(noticed)
    for unnoticed in (1, "a", None, [1, "a"], {"a": torch.ones(1)}, done, unguarded, Holder(), torch.nn.Linear(1, 1), Noisy):
        assert ends_quietly(unnoticed)
    assert watches() is watched_one


def test_code_serves_both_kinds_of_objects() -> None:
    """What ends quietly in one call and not in the next has code for each."""

    def f(x, make):
        d = make()
        tinycompile.graph_break()
        d = None
        LOG.append("behind")
        return x + 1

    compiled = tinycompile.compile(f, backend="eager")
    for make in (list, Noisy, Holder, lambda: [Noisy()]):
        assert observed(lambda x: compiled(x, make)) == observed(lambda x: f(x, make))


def through_blocks() -> Iterator[str]:
    yield "before"
    try:
        yield "takes errors"
    except (ValueError, KeyError):
        LOG.append("taken")
    yield "between"
    try:
        yield "takes all"
    except:  # noqa: E722
        raise
    with torch.no_grad():
        yield "in a with"
    yield from plain(1)
    yield from quiet(1)
    try:
        yield "in a try"
    finally:
        LOG.append("finally")
    yield "behind"


def test_a_generator_is_noticed_where_it_sleeps_in_a_block() -> None:
    noticed, asleep = set(), through_blocks()
    assert ends_quietly(asleep)  # not begun: nothing runs
    for place in asleep:
        if not ends_quietly(asleep):
            noticed.add(place)
    assert noticed == {"takes all", "in a with", 0, "in a try"} and ends_quietly(asleep)  # 0: that of quiet()


@pytest.mark.parametrize(("steps", "breaks"), [(1, 0), (2, 0), (3, 0), (4, 1), (9, 0)])
def test_one_that_sleeps_between_blocks_needs_no_break(steps: int, breaks: int) -> None:
    def drops(x, asleep):
        tinycompile.graph_break()
        kept = [x, x + 1]
        del asleep
        return kept[0] * 2 + kept[1]

    compiled = CompiledFunction(drops, Options(backend="eager"))
    asleep = through_blocks()
    for _ in range(steps):
        next(asleep)
    assert torch.equal(compiled(torch.ones(2), asleep), torch.full((2,), 4.0))
    assert sum(b.id == "finalizer" for b in compiled.breaks) == breaks
