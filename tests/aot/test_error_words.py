"""Errors of autograd around compiled functions: torch's exception type and words, warnings too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinycompile

pytestmark = pytest.mark.cpu
Fn = Callable[..., Any]


def leaf(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (5,), generator=generator).requires_grad_(grad)


# Each takes ``wrap``: the identity, or tinycompile.compile.


def in_place_on_a_leaf(wrap: Callable[[Fn], Fn]) -> Any:
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    return wrap(f)(leaf())


def in_place_on_a_view_of_a_leaf(wrap: Callable[[Fn], Fn]) -> Any:
    def f(x: Tensor) -> Tensor:
        x[1:].mul_(2)
        return x * 2

    return wrap(f)(leaf())


def in_place_on_a_view_that_is_given(wrap: Callable[[Fn], Fn]) -> Any:
    def f(x: Tensor) -> Tensor:
        return x.mul_(2)

    return wrap(f)(leaf()[1:])


def in_place_on_one_of_several_views(wrap: Callable[[Fn], Fn]) -> Any:
    def f(x: Tensor) -> Tensor:
        a, b = (x * 1).split(2)
        return a.mul_(2) + b

    return wrap(f)(leaf(4))


def index_write_to_a_leaf(wrap: Callable[[Fn], Fn]) -> Any:
    def f(x: Tensor) -> Tensor:
        x[0] = 1.0
        return x * 2

    return wrap(f)(leaf())


def out_argument(wrap: Callable[[Fn], Fn]) -> Any:
    def f(x: Tensor, out: Tensor) -> Tensor:
        return torch.mul(x, 2, out=out)

    return wrap(f)(leaf(), leaf(grad=False))


def second_backward(wrap: Callable[[Fn], Fn]) -> Any:
    loss = wrap(lambda x: (x * x).sum())(leaf())
    loss.backward()
    loss.backward()


def backward_of_a_vector(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x: x * x)(leaf()).backward()


def backward_of_what_has_no_history(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x: (x * x).sum())(leaf(grad=False)).backward()


def backward_of_a_detached_result(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x: (x * x).sum().detach())(leaf()).backward()


def gradient_of_another_shape(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x: x * x)(leaf()).backward(torch.ones(3))


def unused_input(wrap: Callable[[Fn], Fn]) -> Any:
    x, y = leaf(), leaf(seed=1)
    return torch.autograd.grad(wrap(lambda x, y: (x * x).sum() + y.detach().sum())(x, y), (x, y))


def unused_input_allowed(wrap: Callable[[Fn], Fn]) -> Any:
    x, y = leaf(), leaf(seed=1)
    return torch.autograd.grad(wrap(lambda x, y: (x * x).sum() + y.detach().sum())(x, y), (x, y), allow_unused=True)


def input_without_grad(wrap: Callable[[Fn], Fn]) -> Any:
    x, y = leaf(), leaf(grad=False)
    return torch.autograd.grad(wrap(lambda x, y: (x * y).sum())(x, y), y)


def grad_of_a_result(wrap: Callable[[Fn], Fn]) -> Any:
    return wrap(lambda x: x * 2)(leaf()).grad


def a_result_written_to_by_the_caller(wrap: Callable[[Fn], Fn]) -> Any:
    """exp's result is what its backward reads."""
    y = wrap(lambda x: x.exp())(leaf())
    y.mul_(2)
    y.sum().backward()


def a_result_that_nothing_reads_is_written_to(wrap: Callable[[Fn], Fn]) -> Any:
    x = leaf()
    y = wrap(lambda x: x + 1)(x)
    y.mul_(2)
    y.sum().backward()
    return x.grad


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class WrongShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g[:2]


def function_with_too_few_gradients(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x, y: (TooFew.apply(x, y) * x).sum())(leaf(), leaf(seed=1)).backward()


def function_with_a_wrong_shape(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x: (WrongShape.apply(x) * x).sum())(leaf()).backward()


def requires_grad_of_integers(wrap: Callable[[Fn], Fn]) -> Any:
    return wrap(lambda x: x.long().requires_grad_())(leaf(grad=False))


def numpy_of_what_requires_grad(wrap: Callable[[Fn], Fn]) -> Any:
    return wrap(lambda x: (x * 2).numpy())(leaf())


def a_loss_that_is_complex(wrap: Callable[[Fn], Fn]) -> Any:
    wrap(lambda x: torch.complex(x, x).sum())(leaf()).backward()


def complex_inputs(wrap: Callable[[Fn], Fn]) -> Any:
    z = torch.complex(leaf(grad=False), leaf(seed=1, grad=False)).requires_grad_()
    wrap(lambda z: (z * z.conj() * z).abs().sum())(z).backward()
    return z.grad


PROGRAMS = [
    in_place_on_a_leaf, in_place_on_a_view_of_a_leaf, in_place_on_a_view_that_is_given, in_place_on_one_of_several_views,
    index_write_to_a_leaf, out_argument, second_backward, backward_of_a_vector, backward_of_what_has_no_history,
    backward_of_a_detached_result, gradient_of_another_shape, unused_input, unused_input_allowed, input_without_grad,
    grad_of_a_result, a_result_written_to_by_the_caller, a_result_that_nothing_reads_is_written_to,
    function_with_too_few_gradients, function_with_a_wrong_shape, requires_grad_of_integers, numpy_of_what_requires_grad,
    a_loss_that_is_complex, complex_inputs,
]  # fmt: skip


def outcome(program: Callable[..., Any], wrap: Callable[[Fn], Fn]) -> tuple[Any, Any, list[str]]:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            result, error = program(wrap), None
        except Exception as caught:
            result, error = None, (type(caught), str(caught))
    return result, error, [str(w.message).split(" (Triggered")[0] for w in noted if "grad" in str(w.message)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_eager(program: Callable[..., Any]) -> None:
    theirs, mine = outcome(program, lambda f: f), outcome(program, tinycompile.compile)
    assert mine[1] == theirs[1]
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-5, atol=1e-6)
    assert mine[2] == theirs[2]
