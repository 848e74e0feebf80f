"""``_version`` counts the program's writes, and what a write of itself to itself is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def several(x):
    x.add_(1)
    x.mul_(2)
    x[0] = 3
    return x


def assigned_again(x):
    x[0] += 1
    return x * 2


def unchanged(x):
    x[0] = x[0]
    return x


def through_data(x):
    x.data.add_(1)
    x.add_(2)
    return x


def through_a_view(x):
    part = x[1:]
    part.add_(1)
    part.mul_(2)
    return part


def without_grad(x):
    with torch.no_grad():
        x.add_(1)
        x.add_(1)
    return x * 2


def at_indices(x):
    x[torch.tensor([0, 1])] = 5.0
    x.index_add_(0, torch.tensor([2]), torch.ones(1))
    return x + 1


def between_breaks(x):
    x.add_(1)
    first = x._version
    x.add_(1)
    return first, x._version


def made_inside(x):
    y = x.detach() * 2
    y.add_(1)
    y[1:].relu_()
    return y, y[1:]


FUNCTIONS = [
    several, assigned_again, unchanged, through_data, through_a_view, without_grad, at_indices, between_breaks, made_inside,
]  # fmt: skip
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(3.0),
    "leaf": lambda: torch.arange(3.0).requires_grad_(),
    "inner": lambda: torch.arange(3.0).requires_grad_() * 1,
}


def counted(fn: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    try:
        made = fn(x)
    except RuntimeError as error:
        return [str(error)]
    several = made if isinstance(made, tuple) else (made,)
    return [x._version, *(m._version if isinstance(m, torch.Tensor) else m for m in several)]


# (a graph with a backward saves its results as new ones)
CASES = [(f, kind) for f in FUNCTIONS for kind in INPUTS if f is not made_inside or kind == "plain"]


@pytest.mark.parametrize("backend", ["cpp", "aot_eager", "eager"])
@pytest.mark.parametrize(("fn", "kind"), CASES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_as_eager_counts(fn: Callable[..., Any], kind: str, backend: str) -> None:
    compiled = tinycompile.compile(fn, backend=backend)
    for _ in range(2):
        assert counted(compiled, INPUTS[kind]()) == counted(fn, INPUTS[kind]())


def test_a_constant_that_takes_a_gradient_over_is_written_again() -> None:
    def f(buffer, w):
        buffer[1:3] = w * 2
        buffer.t().mul_(3)
        buffer.add_(w.sum())
        return buffer * 2

    found = []
    for fn in (tinycompile.compile(f, fullgraph=True), f):
        w, buffer = torch.ones(2, 4, requires_grad=True), torch.zeros(4, 4)
        (fn(buffer, w).sum() + buffer.sum()).backward()
        found.append((buffer.detach(), w.grad, torch.tensor(buffer._version)))
    torch.testing.assert_close(*found)


# --- which tensors share a counter -----------------------------------------------------------------------------------------


def its_data(x):
    return x.data


def its_data_and_what_is_cut_off(x):
    return x.data, x.detach()


def a_result_and_its_data(x):
    y = x * 2
    return y, y.data, y.detach()


def behind_a_break(x):
    y = x * 2
    data, cut = y.data, y.detach()
    tinycompile.graph_break()
    return y, data, cut


def data_of_what_is_cut_off(x):
    y = x * 2
    return y, y.detach().data, y.data.detach()


def data_of_a_part(x):
    return x[1:].data, x[1:].detach()


SHARING = [
    its_data,
    its_data_and_what_is_cut_off,
    a_result_and_its_data,
    behind_a_break,
    data_of_what_is_cut_off,
    data_of_a_part,
]


@pytest.mark.parametrize("backend", ["cpp", "aot_eager", "eager"])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("fn", SHARING, ids=lambda f: f.__name__)
def test_counters_are_shared_as_in_eager(fn: Callable[..., Any], kind: str, backend: str) -> None:
    def told(fn: Callable[..., Any]) -> list[Any]:
        x = INPUTS[kind]()
        made = fn(x)
        tensors = [x, *(made if isinstance(made, tuple) else (made,))]
        counts = []
        for t in tensors:
            with torch.no_grad():
                t.add_(1)
            counts.append([other._version for other in tensors])
        return [*counts, *(t.tolist() for t in tensors)]

    compiled = tinycompile.compile(fn, backend=backend)
    for _ in range(2):
        assert told(compiled) == told(fn)


def test_writes_to_data_outside_are_no_edits() -> None:
    def fn(x):
        y = x.exp()
        return y, y.data

    for call in (tinycompile.compile(fn), fn):
        x = torch.ones(3, requires_grad=True)
        y, data = call(x)
        data.mul_(2)
        y.sum().backward()  # of what lies there now
        torch.testing.assert_close(x.grad, 2 * torch.ones(3).exp())


# --- under vmap ----------------------------------------------------------------------------------------------------------


def each_adds(x, held):
    def one(row):
        held.add_(row)
        return row * 2

    return torch.vmap(one)(x)


def made_by_each(x, held):
    def one(row):
        own = torch.zeros(3)
        own += row
        return own

    return torch.vmap(one)(x)


def same_for_all(x, held):
    def one(row):
        held[0] = 5.0
        held.data.mul_(2)
        return row + held

    return torch.vmap(one)(x), held


def own_rows(x, held):
    def one(row):
        row.add_(1)
        row[0] = row[1]
        return row * 2

    return torch.vmap(one)(x), x


@pytest.mark.parametrize("fn", [each_adds, made_by_each, same_for_all, own_rows], ids=lambda f: f.__name__)
def test_writes_under_vmap(fn: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(fn)
    found: list[Any] = []
    for run in (compiled, fn):
        x, held = torch.arange(6.0).view(2, 3), torch.ones(3)
        try:
            made: Any = run(x, held)
        except RuntimeError as error:
            made = str(error)
        found.append((str(made), held.tolist()))
    assert found[0] == found[1]
