"""What the program overwrites outside goes at once where its end is noticed (``__del__``, a weak reference that calls): as in
eager, among whatever else the function does."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile
from tinycompile.api import CompiledFunction
from tinycompile.options import Options

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("no_collector")]
LOG: list[str] = []
KEPT: list[Any] = []
GLOBAL: Any = None
TABLE: dict[str, Any] = {}


class Noisy:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(self.name)


class Box:
    at_class: Any = None


class Slots:
    __slots__ = ("held",)


def helper() -> None:
    pass


def cell_of(value: Any) -> Callable[[Any], None]:
    def put(new: Any) -> None:
        nonlocal value
        value = new

    return put


class World:
    """Everything that holds something, made anew for each call. ``make``: what it holds, by name."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        global GLOBAL
        self.box, self.slots, self.module = Box(), Slots(), torch.nn.Module()
        self.box.a, self.box.b = make("a"), make("b")  # type: ignore[attr-defined]
        self.slots.held = make("slot")
        self.module.held = make("module")
        self.module.register_buffer("buffer", torch.zeros(2))
        KEPT.append(weakref.ref(self.module.buffer, lambda _: LOG.append("buffer")))
        self.tensors, self.named = [torch.zeros(2)], {"t": torch.zeros(2)}
        for held in (self.tensors[0], self.named["t"]):
            KEPT.append(weakref.ref(held, lambda _: LOG.append("tensor")))
        GLOBAL, TABLE["k"], Box.at_class = make("global"), make("item"), make("class")
        helper.held = make("function")  # type: ignore[attr-defined]
        self.put = cell_of(make("cell"))
        self.list, self.deque = [make("0"), make("1")], collections.deque([make("left"), make("right")])


def attribute(x, w):
    LOG.append("before")
    w.box.a = None
    LOG.append("after")
    return x + 1


def deleted(x, w):
    LOG.append("before")
    del w.box.a
    LOG.append("after")
    return x + 1


def exchanged(x, w):
    w.box.a, w.box.b = w.box.b, None
    LOG.append("after")
    return x + 1


def by_name(x, w):
    LOG.append("before")
    setattr(w.box, "a", x)
    LOG.append("after")
    return w.box.a + 1


def twice(x, w):
    w.box.b = 1
    w.box.a = None
    w.box.b = None
    LOG.append("after")
    return x + 1


def in_a_slot(x, w):
    LOG.append("before")
    w.slots.held = None
    LOG.append("after")
    return x + 1


def of_a_module(x, w):
    LOG.append("before")
    w.module.held = None
    LOG.append("after")
    return x + 1


def buffer(x, w):
    LOG.append("before")
    w.module.buffer = x + 1
    LOG.append("after")
    return w.module.buffer


def global_variable(x, w):
    global GLOBAL
    LOG.append("before")
    GLOBAL = None
    LOG.append("after")
    return x + 1


def of_a_class(x, w):
    LOG.append("before")
    Box.at_class = None
    LOG.append("after")
    return x + 1


def of_a_function(x, w):
    LOG.append("before")
    helper.held = None
    LOG.append("after")
    return x + 1


def item(x, w):
    LOG.append("before")
    TABLE["k"] = x
    LOG.append("after")
    return x + 1


def item_of_a_list(x, w):
    LOG.append("before")
    w.list[0] = None
    LOG.append("after")
    return x + 1


def tensor_of_a_list(x, w):
    LOG.append("before")
    y = w.tensors[0] + x
    w.tensors[0] = y
    LOG.append("after")
    return y


def tensor_of_a_dict(x, w):
    LOG.append("before")
    y = w.named.pop("t") + x
    LOG.append("after")
    return y


def taken_from_a_deque(x, w):
    LOG.append("before")
    w.deque.popleft()
    LOG.append("after")
    return x + 1


def closure_variable(x, w):
    LOG.append("before")
    w.put(None)
    LOG.append("after")
    return x + 1


def held_by_a_variable(x, w):
    held = w.box.a
    w.box.a = None
    LOG.append("middle")
    del held
    LOG.append("after")
    return x + 1


def held_until_the_end(x, w):
    held = w.box.a
    w.box.a = None
    LOG.append("after")
    return x + len(held.name if held else "")


def in_a_callee(x, w):
    def inner(box):
        box.a = None
        LOG.append("inside")

    LOG.append("before")
    inner(w.box)
    LOG.append("after")
    return x + 1


def in_a_loop(x, w):
    for i in range(3):
        w.box.a = x * i
        LOG.append(str(i))
    return w.box.a


def behind_a_break(x, w):
    y = x + 1
    tinycompile.graph_break()
    w.box.a = y
    LOG.append("after")
    return y + 1


FUNCTIONS = (
    attribute, deleted, exchanged, by_name, twice, in_a_slot, of_a_module, buffer, global_variable, of_a_class, of_a_function,
    item, item_of_a_list, tensor_of_a_list, tensor_of_a_dict, taken_from_a_deque, closure_variable, held_by_a_variable, held_until_the_end, in_a_callee, in_a_loop,
    behind_a_break,
)  # fmt: skip


class Plain:
    name = "plain"


def watched(name: str) -> Any:
    made = Plain()
    KEPT.append(weakref.ref(made, lambda _: LOG.append(name)))
    return made


def told(fn: Callable[..., Any], make: Callable[[str], Any], x: torch.Tensor) -> Any:
    w = World(make)
    LOG.clear()
    result = fn(x, w).tolist()
    found = [*LOG, "returned"]
    del w
    World(lambda _: None)
    KEPT.clear()
    return found, result


@pytest.mark.parametrize("make", [Noisy, watched], ids=["del", "watched"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_it_goes_at_once(fn: Callable[..., Any], make: Callable[[str], Any]) -> None:
    compiled = CompiledFunction(fn, Options(backend="eager"))
    for n in (1.0, 2.0):
        x = torch.full((2,), n)
        assert told(compiled, make, x) == told(fn, make, x)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_there_may_change(fn: Callable[..., Any]) -> None:
    """What was compiled where nobody notices is not used where somebody does."""
    compiled = CompiledFunction(fn, Options(backend="eager"))
    for make in (lambda name: None, Noisy, lambda name: None, watched):
        x = torch.ones(2)
        assert told(compiled, make, x) == told(fn, make, x)


def test_what_nobody_notices_stays_in_the_graph() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count, self.last, self.seen = 0, None, [1, 2]

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.last = x * self.count
            self.seen = [self.count]
            return self.last

    compiled, counter = CompiledFunction(Counter.step, Options(backend="eager", fullgraph=True)), Counter()
    for n in range(1, 4):
        assert compiled(counter, torch.ones(2)).tolist() == [n, n]
    assert counter.seen == [3]
