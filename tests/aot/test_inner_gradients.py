"""Gradients of values on the way, asked for within a compiled function by a backward that torch's engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

grad = torch.autograd.grad


def _returned_beside_it(x: Any, w: Any) -> Any:
    h = x @ w
    return h, grad(h.sin().sum(), h)[0]


def _loss_leaves(x: Any, w: Any) -> Any:
    h = x @ w
    loss = h.sin().sum()
    return loss, grad(loss, h, retain_graph=True)[0]


def _penalty(x: Any, w: Any) -> Any:
    h = (x @ w).tanh()
    score = (h * h).sum()
    (slope,) = grad(score, h, create_graph=True)
    return score + (slope.norm() - 1) ** 2


def _penalty_of_two(x: Any, w: Any) -> Any:
    first = x.exp()
    second = first @ w
    slopes = grad(second.sigmoid().sum(), [first, second, w], create_graph=True)
    return sum((s * s).sum() for s in slopes)


def _one_is_unused(x: Any, w: Any) -> Any:
    h, other = x @ w, x.sin()
    slopes = grad(h.exp().sum(), [other, h], create_graph=True, allow_unused=True)
    return slopes[1].sum() * other.sum()


def _backward_to_it(x: Any, w: Any) -> Any:
    h = (x @ w).tanh()
    loss = (h * h).sum()
    loss.backward(inputs=[h, w], retain_graph=True)
    return loss + h.grad.sum()


def _of_a_view(x: Any, w: Any) -> Any:
    h = (x @ w)[0]
    return h, grad((h * h).sum(), h, create_graph=True)[0]


def _behind_a_write(x: Any, w: Any) -> Any:
    h = x @ w
    h[0] = w[1]
    loss = h.exp().sum()
    return loss, grad(loss, h, retain_graph=True)[0]


def _beside_a_write_to_an_input(x: Any, w: Any) -> Any:
    h = (x.detach() * 1) @ w
    with torch.no_grad():
        x.mul_(2)
    loss = h.exp().sum()
    return loss, grad(loss, h, create_graph=True)[0]


def _of_a_view_and_its_base(x: Any, w: Any) -> Any:
    h = x @ w
    row = h[0]
    return h, grad((row * x).sum(), [row, x], create_graph=True)


def _of_one_of_several_views(x: Any, w: Any) -> Any:
    h = (x @ w).unbind(0)[1]
    return h, grad((h * h).sum(), h, create_graph=True)[0]


def _of_an_argument_that_was_written(x: Any, w: Any) -> Any:
    x = x * 1
    return tinycompile.graph_break() or _written(x, w)


def _written(h: Any, w: Any) -> Any:
    h.sin_()
    return grad((h * w).sum(), h)[0]


def _written_and_differentiated_again(x: Any, w: Any) -> Any:
    h = x * 1
    tinycompile.graph_break()
    h.sin_()
    return h, grad((h * h * w).sum(), h, create_graph=True)[0]


def _view_of_what_was_written(x: Any, w: Any) -> Any:
    h = x * 1
    tinycompile.graph_break()
    row = h[1]
    row[0] = w[0, 0]
    return grad((row * row).sum(), h)[0]


def _cut_off(x: Any, w: Any) -> Any:
    h = x.detach() @ w
    with torch.no_grad():
        scale = h.norm()
    return grad((h * scale).exp().sum(), h, create_graph=True)[0]


def _unused_is_torchs_error(x: Any, w: Any) -> Any:
    h, other = x @ w, x.sin()
    return other, grad(h.exp().sum(), other, create_graph=True)


def _spent_is_torchs_error(x: Any, w: Any) -> Any:
    h = (x @ w).exp()
    loss = h.sin().sum()
    grad(loss, h)
    loss.backward()
    return h


PROGRAMS = [
    _returned_beside_it,
    _loss_leaves,
    _penalty,
    _penalty_of_two,
    _one_is_unused,
    _backward_to_it,
    _of_a_view,
    _behind_a_write,
    _beside_a_write_to_an_input,
    _of_a_view_and_its_base,
    _of_one_of_several_views,
    _of_an_argument_that_was_written,
    _written_and_differentiated_again,
    _view_of_what_was_written,
    _cut_off,
    _unused_is_torchs_error,
    _spent_is_torchs_error,
]


def _outcome(fn: Callable[..., Any]) -> Any:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    try:
        results = fn(x, w)
    except RuntimeError as error:
        return str(error)
    results = tuple(_tensors(results))
    torch.autograd.backward([r.sum() for r in results if r.requires_grad])
    return [r.detach() for r in results], x.grad, w.grad, x.detach().clone()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_eager(fn: Callable[..., Any]) -> None:
    compiled, expected = tinycompile.compile(fn), _outcome(fn)
    for _ in range(2):
        got = _outcome(compiled)
        if isinstance(expected, str):
            assert got == expected
        else:
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fn", [_loss_leaves, _penalty, _backward_to_it, _of_a_view_and_its_base])
def test_the_break_says_so(fn: Callable[..., Any]) -> None:
    compiled = tinycompile.compile(fn)
    _outcome(compiled)
    assert compiled.breaks[0].id == "inner-gradient"


def test_gradients_of_arguments_leave_the_graph_compiled() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (slope,) = grad((x @ w).sin().sum(), x, create_graph=True)
        return (slope * slope).sum()

    compiled = tinycompile.compile(fn)
    torch.testing.assert_close(_outcome(compiled), _outcome(fn), rtol=1e-9, atol=1e-9)
    assert [b.id for b in compiled.breaks] == ["backward"]
    assert compiled.kernels
