"""Second derivatives, and backwards one after the other, behind writes to what a compiled function was given: the differentiable
backward computes the forward again, from its inputs as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def all_of_it(x: Any, y: Any) -> Any:
    x.mul_(3)
    return x.sin() * x * y


def twice(x: Any, y: Any) -> Any:
    x.add_(y)
    x.mul_(y)
    return x**3


def a_part(x: Any, y: Any) -> Any:
    x[1:].mul_(3)
    return x**3 * y


def by_its_own_values(x: Any, y: Any) -> Any:
    x.mul_(x.exp())
    return x * y


def a_constant(x: Any, y: Any) -> Any:
    y.mul_(2)
    return x**3 * y


def a_constant_from_what_is_followed(x: Any, y: Any) -> Any:
    y.copy_(x.detach())
    return (x * y).sin()


def by_a_library(x: Any, y: Any) -> Any:
    x.mul_(y)
    return torch.special.i0e(x) * x


WRITING = (all_of_it, twice, a_part, by_its_own_values, a_constant, a_constant_from_what_is_followed, by_a_library)


def given(layout: str) -> tuple[Any, Any, Any]:
    """A leaf, what was made of it, and a constant."""
    torch.manual_seed(0)
    leaf = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    made = {"dense": lambda: leaf * 2, "gaps": lambda: (leaf * 2)[:, ::2], "transposed": lambda: (leaf * 2).t()}[layout]()
    return leaf, made, torch.rand(made.shape, dtype=torch.float64)


def second_derivative(fn: Callable[..., Any], layout: str) -> tuple[Any, ...]:
    leaf, x, y = given(layout)
    (first,) = torch.autograd.grad((fn(x, y) * x).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    return first.detach(), second


@pytest.mark.parametrize("layout", ["dense", "gaps", "transposed"])
@pytest.mark.parametrize("backend", [None, "aot_eager", "eager"])
@pytest.mark.parametrize("fn", WRITING, ids=lambda f: f.__name__)
def test_second_derivatives(fn: Any, backend: Any, layout: str) -> None:
    expected = second_derivative(fn, layout)
    compiled = tinycompile.compile(fn, backend=backend, fullgraph=True)
    torch.testing.assert_close(second_derivative(compiled, layout), expected)


@pytest.mark.parametrize("backend", [None, "aot_eager", "eager"])
@pytest.mark.parametrize("fn", WRITING, ids=lambda f: f.__name__)
def test_first_derivatives(fn: Any, backend: Any) -> None:
    def gradient(fn: Any) -> Any:
        leaf, x, y = given("dense")
        (fn(x, y) * x).sum().backward()
        return leaf.grad

    torch.testing.assert_close(gradient(tinycompile.compile(fn, backend=backend, fullgraph=True)), gradient(fn))


@pytest.mark.parametrize("backend", [None, "eager"])
def test_one_after_the_other(backend: Any) -> None:
    def both(x: Any, y: Any) -> Any:
        x.mul_(y)
        return x.sin(), (x * 2).cos()

    def gradients(fn: Any, keep: bool) -> Any:
        leaf, x, y = given("dense")
        a, b = fn(x, y)
        (first,) = torch.autograd.grad(a.sum(), leaf, retain_graph=keep)
        return first, *torch.autograd.grad(b.sum(), leaf)

    compiled = tinycompile.compile(both, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, True), gradients(both, True))
    for fn in (both, compiled):  # what both pass is freed
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            gradients(fn, False)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("fn", [torch.special.i0e, torch.logcumsumexp, torch.cumprod], ids=lambda f: f.__name__)
def test_what_only_torch_differentiates_on_our_tape(fn: Any, create_graph: bool) -> None:
    """It is not called again, with what its arguments hold by then."""
    dim = () if fn is torch.special.i0e else (0,)

    def words(leaf: Any, grad: Any) -> str:
        x = leaf * 2
        result = fn(x, *dim)
        x.add_(1)
        with pytest.raises(RuntimeError) as told:
            grad(result.sum(), leaf, create_graph=create_graph)
        return str(told.value)

    values = torch.rand(4)
    ours = words(tinycompile.from_torch(values.clone()).requires_grad_(), tinycompile.autograd.grad)
    theirs = words(values.clone().requires_grad_(), torch.autograd.grad)
    assert ours.replace(" at version", "").split("[")[0] == theirs.split("[")[0]


def test_values_that_are_not_read_may_be_edited_on_our_tape() -> None:
    def gradients(leaf: Any, grad: Any) -> Any:
        x = leaf * 2
        result = torch.linalg.inv(x + 3 * torch.eye(4)) ** 3
        x.add_(1)
        (first,) = grad(result.sum(), leaf, create_graph=True)
        return first, *grad(first.square().sum(), leaf)

    values = torch.rand(4, 4)
    ours = gradients(tinycompile.from_torch(values.clone()).requires_grad_(), tinycompile.autograd.grad)
    theirs = gradients(values.clone().requires_grad_(), torch.autograd.grad)
    torch.testing.assert_close([g.detach().torch() for g in ours], [g.detach() for g in theirs])
