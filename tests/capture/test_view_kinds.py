"""Views that leave a compiled function: torch lets them be written to, or refuses, as if it had made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def without_grad(x):
    with torch.no_grad():
        return x[1:]


def further(x):
    with torch.no_grad():
        part = x.view(3, 1)
    return part[1:]


def several(x):
    with torch.no_grad():
        _, part = x.split([1, 2])
    return part


def of_a_result(x):
    y = x * 2
    with torch.no_grad():
        part = y[1:]
    return part, y


def of_a_view(x):
    part = x[1:]
    with torch.no_grad():
        return part.view(-1, 1)


def held(x, box):
    with torch.no_grad():
        box.append(x[1:])
    return x + 1


def several_of_a_written(x):
    y = x * 1
    if not x.is_leaf:  # torch writes to no leaf that requires grad
        x.add_(y.sum())
    _, part = x.split([1, 2])
    return part * 1, part


def detached(x):
    return x.detach()[1:]


def ordinary(x):
    return x[1:].view(-1, 1)


def said(fn: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    box: list[Any] = []
    made = fn(x, box) if fn.__code__.co_argcount == 2 else fn(x)
    part = box[0] if box else made[0] if isinstance(made, tuple) else made
    found: list[Any] = [part.requires_grad]
    for value in (torch.ones(1, requires_grad=True), 2):
        try:
            part.mul_(value)
            found.append("written")
        except RuntimeError as error:
            found.append(str(error))
    return [*found, x.detach().tolist(), x._version]


LEAVES: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(3.0),
    "leaf": lambda: torch.arange(3.0).requires_grad_(),
    "inner": lambda: torch.arange(3.0).requires_grad_() * 1,
}
FUNCTIONS = [without_grad, further, several, of_a_result, of_a_view, held, detached, several_of_a_written, ordinary]


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_writes_outside(fn: Callable[..., Any], kind: str) -> None:
    compiled = tinycompile.compile(fn, fullgraph=fn is not several_of_a_written)
    compiled.__code__ = fn.__code__
    assert said(compiled, LEAVES[kind]()) == said(fn, LEAVES[kind]())


def write_all(a: Any) -> None:
    a.mul_(2)


def write_in_order(a: Any) -> None:
    a.cumsum_(0)


def write_an_element(a: Any) -> None:
    a[0] = 7.0


def write_another_part(a: Any) -> None:
    a.detach()[1:].mul_(2)


WAYS: dict[str, Callable[[Any], Any]] = {
    "chunk": lambda a: a.chunk(2)[1],
    "split": lambda a: a.split(2)[1],
    "unbind": lambda a: a.unbind()[1],
    "part_of_a_part": lambda a: a.chunk(2)[1][:1],
    "each_on_its_own": lambda a: a.tensor_split(2)[1],  # to torch these are plain views
    "slice": lambda a: a[2:],
    "without_grad": torch.no_grad()(lambda a: a[2:]),
}


def used(fn: Callable[..., Any]) -> str:
    """The gradient, or what torch says."""
    x = torch.arange(1.0, 5.0, dtype=torch.float64, requires_grad=True)
    try:
        sum((t.square().sum() for t in fn(x)), x.sum()).backward()
    except RuntimeError as error:
        return str(error)
    assert x.grad is not None
    return str(x.grad.tolist())


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("write", [write_all, write_in_order, write_an_element, write_another_part])
@pytest.mark.parametrize("way", list(WAYS))
def test_views_whose_base_was_written(way: str, write: Callable[[Any], None], beside: bool) -> None:
    def fn(x: Any) -> Any:
        a = x * 1
        view = WAYS[way](a)
        write(a)
        return (view, a) if beside else (view,)

    def before(x: Any) -> Any:
        a = x * 1
        write(a)
        view = WAYS[way](a)
        return (view, a) if beside else (view,)

    for program in (fn, before):
        assert used(tinycompile.compile(program)) == used(program)
