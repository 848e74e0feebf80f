"""``retain_grad()``: what it keeps is nobody else's memory, and goes with a tensor through writes in place. As torch, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure


def retained(t: Any) -> Any:
    t.retain_grad()
    return t


def neighbours(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    u = retained(t + 0)
    (u * z).sum().backward()
    t.grad.zero_()
    return t, u, z


def a_given_gradient(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.backward(z)
    t.grad.zero_()
    return t, z


def as_an_input(x: Any, z: Any) -> Any:
    t, u = x + 0, retained(x + 0)
    for v in (t, u):
        v.backward(z, retain_graph=True, inputs=[v])
        v.backward(z, inputs=[v])
    t.grad.zero_()
    return t, u, z


def an_expanded_one(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.sum().backward()
    t.grad.add_(1)
    return t, t.grad


def a_write(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.mul_(z)
    t.mul_(2)
    retained(t).sum().backward()
    return (t,)


def a_write_after_backward(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.sum().backward()
    t.mul_(z)
    return (t,)


def a_fill(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.zero_()
    (x.sum() + t.sum()).backward()
    return (t,)


def a_write_through_a_view(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.view(3, 1).mul_(3)
    (t * z).sum().backward()
    return (t,)


def a_view_of_what_is_written_to(x: Any, z: Any) -> Any:
    t = x * 1
    v = retained(t[:2])
    t.mul_(z)
    v.sum().backward()
    return (v,)


def a_view_that_is_written_to(x: Any, z: Any) -> Any:
    t = x * 1
    v = retained(t[:2])
    v.mul_(2)
    t.sum().backward()
    return (v,)


def hooks_beside_it(x: Any, z: Any) -> Any:
    t = x + 0
    seen: list[Any] = []
    t.register_hook(lambda g: seen.append(g * 1))
    retained(t).mul_(z)
    t.register_hook(lambda g: g * 5)
    t.sum().backward()
    return t, *seen


def twice(x: Any, z: Any) -> Any:
    t = retained(x + 0)
    t.sum().backward(retain_graph=True)
    first = t.grad
    t.sum().backward()
    return t, first


def differentiable(x: Any, z: Any) -> Any:
    t = retained(x * 1)
    torch.autograd.grad((t * t * z).sum(), x, create_graph=True)
    (t.grad * t.grad).sum().backward()
    return (t,)


CASES: list[Callable[[Any, Any], Any]] = [
    neighbours, a_given_gradient, as_an_input, an_expanded_one, a_write, a_write_after_backward, a_fill, a_write_through_a_view,
    a_view_of_what_is_written_to, a_view_that_is_written_to, hooks_beside_it, twice, differentiable,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_as_torchs(case: Callable[[Any, Any], Any]) -> None:
    def outcome(x: Any, z: Any) -> list[Any]:
        x.requires_grad_()
        told: list[Any] = []
        for t in (*case(x, z), x):
            grad = t.grad if t.requires_grad else t
            told.append(None if grad is None else (grad.tolist(), tuple(grad.stride()), grad.requires_grad))
            told.append(t.retains_grad)
        return told

    assert outcome(tc.ones(3), tc.full((3,), 2.0)) == outcome(torch.ones(3), torch.full((3,), 2.0))
