"""Assignments to all of a tensor: its new value has the old one in its history, which torch gives zeros for, and whose saved
values it looks at. And a tensor that is assigned to itself, which torch counts as a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

ALL = (
    slice(None), ..., (...,), (slice(None),), slice(None, None, 1), slice(0, 3), slice(-3, None), slice(None, 9), None,
    (None, ...), (None, slice(None)),
)  # fmt: skip
WRITTEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a_tensor": lambda x, y, a: y,
    "another_dtype": lambda x, y, a: y.float(),
    "a_row": lambda x, y, a: y[None],
    "an_element": lambda x, y, a: y[1],
    "a_number": lambda x, y, a: 2.0,
    "a_whole_number": lambda x, y, a: 2,
    "what_it_was_made_of": lambda x, y, a: x,
    "itself": lambda x, y, a: a,
    "of_its_own_values": lambda x, y, a: a * y,
}


def leaf(*numbers: float, followed: bool = True) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=followed)


def outcome(fn: Callable[..., Any], followed: bool) -> tuple[Any, Any]:
    """The results and the gradients; and which results require grad, and what torch raises."""
    inputs = leaf(0.5, -1.0, 2.0), leaf(3.0, 4.0, 5.0, followed=followed)
    results = fn(*inputs)
    flags = [r.requires_grad for r in results]
    asked = [t for t in inputs if t.requires_grad]
    try:
        grads = torch.autograd.grad(sum(r.sum() for r in results if r.requires_grad), asked, allow_unused=True)
    except RuntimeError as error:
        return [r.detach() for r in results], (flags, str(error))
    return [[r.detach() for r in results], grads], flags


def check(fn: Callable[..., Any], backend: Any = None) -> None:
    for followed in (True, False):
        tinycompile.reset()
        expected = outcome(fn, followed)
        found = outcome(tinycompile.compile(fn, backend=backend), followed)
        assert found[1] == expected[1]
        torch.testing.assert_close(found[0], expected[0])


@pytest.mark.parametrize("value", list(WRITTEN))
@pytest.mark.parametrize("at", ALL, ids=str)
def test_the_old_value_stays_in_the_history(at: Any, value: str) -> None:
    def fn(x: Any, y: Any) -> Any:
        a = x * 1
        a[at] = WRITTEN[value](x, y, a)
        return a, a * y

    check(fn)


@pytest.mark.parametrize("value", ["a_tensor", "a_number", "itself"])
@pytest.mark.parametrize("at", ALL, ids=str)
@pytest.mark.parametrize("backend", [None, "eager"])
def test_what_was_saved_before_is_edited(at: Any, value: str, backend: Any) -> None:
    def by_its_maker(x: Any, y: Any) -> Any:
        a = x.exp()
        a[at] = WRITTEN[value](x, y, a)
        return (a,)

    def by_a_reader(x: Any, y: Any) -> Any:
        a = x * 1
        saved = a * a
        a[at] = WRITTEN[value](x, y, a)
        return a, saved

    check(by_its_maker, backend)
    check(by_a_reader, backend)


def through_a_view(x: Any, y: Any) -> Any:
    a = x * 1
    b = a.view(1, 3)
    b[:] = y
    return a, b


def a_part_of_a_view(x: Any, y: Any) -> Any:
    a = x * 1
    a[:2][:] = y[:2]
    return (a,)


def a_part_itself(x: Any, y: Any) -> Any:
    a = x * 1
    saved = a * a
    a[0] = a[0]
    return (saved,)


def part_after_part(x: Any, y: Any) -> Any:
    a = x * 1
    a[0] += y[0]
    a[0] *= y[1]
    a[1] **= 2
    return a * a, a


def again_and_again(x: Any, y: Any) -> Any:
    a = x * 1
    a[:] = 3
    a[:] = y
    a[:] = a
    a.mul_(x)
    return (a,)


def a_constant_that_was_saved(x: Any, y: Any) -> Any:
    a = y.detach() * 1
    product = a * x
    a[:] = a
    return (product,)


def by_what_is_cut_off(x: Any, y: Any) -> Any:
    a = x * 1
    cut = a.detach()
    saved = a * a
    cut[:] = cut
    return (saved,)


def without_gradients(x: Any, y: Any) -> Any:
    a = x * 1
    with torch.no_grad():
        a[:] = 2
        a[:] = a
    return (a * a,)


@pytest.mark.parametrize(
    "fn",
    [
        through_a_view, a_part_of_a_view, a_part_itself, part_after_part, again_and_again, a_constant_that_was_saved,
        by_what_is_cut_off, without_gradients,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_other_ways_to_it(fn: Any) -> None:
    check(fn)


def test_a_parameter_that_was_written_over_is_stepped() -> None:
    """A zero gradient is one: weight decay acts."""

    def stepped(compiled: bool) -> torch.Tensor:
        p, y = torch.nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=0.1, weight_decay=0.5)

        def step() -> None:
            optimizer.zero_grad()
            a = p * 1
            a[:] = y
            a.sum().backward()
            optimizer.step()

        (tinycompile.compile(step) if compiled else step)()
        return p.detach()

    torch.testing.assert_close(stepped(compiled=True), stepped(compiled=False))


def test_what_is_written_over_is_not_computed() -> None:
    def fn(x: Any, y: Any) -> Any:
        a = x.exp()
        a[:] = y * 2
        return a + 1

    compiled = tinycompile.compile(fn)
    compiled(torch.ones(3), torch.ones(3))
    assert "exp(" not in compiled.source("plan") and "copy" not in compiled.source("optimized")
