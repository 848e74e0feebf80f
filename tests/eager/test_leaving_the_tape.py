"""``detach_()`` and ``requires_grad_(False)``: what was computed before, and what the leaf keeps. As torch, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure


def saved_inputs(p: Any, q: Any) -> Any:
    x = p * 1
    v = x * x
    x.detach_()
    v.sum().backward()


def saved_inputs_that_are_results(p: Any, q: Any) -> Any:
    x = (p * 1).exp()
    v = x * q
    x.detach_().requires_grad_()
    v.sum().backward()


def what_is_not_read(p: Any, q: Any) -> Any:
    x = (p * 1).exp()
    v = x * 1
    x.detach_()
    v.sum().backward()


def of_its_own_node(p: Any, q: Any) -> Any:
    x = p.exp()
    y = x * 2
    x.detach_()
    y.sum().backward()


def a_leaf(p: Any, q: Any) -> Any:
    v = p * q
    p.detach_()
    v.sum().backward()


def a_leaf_that_is_frozen(p: Any, q: Any) -> Any:
    v = p * q
    p.requires_grad_(False)
    v.sum().backward(retain_graph=True)
    p.requires_grad_()
    v.sum().backward()


def a_gradient_that_stays(p: Any, q: Any) -> Any:
    v = (p * p).sum()
    v.backward(retain_graph=True)
    p.requires_grad_(False)
    before = p.grad
    v.backward()
    p.requires_grad_()
    (p * 1).sum().backward()
    return before


def hooks_that_stay(p: Any, q: Any) -> Any:
    p.register_hook(lambda g: g * 7)
    v = p * 2
    p.requires_grad_(False)
    p.requires_grad_(True)
    (v + p).sum().backward()


def a_gradient_that_is_given(p: Any, q: Any) -> Any:
    p.detach_()
    p.grad = q.detach() * 3
    found = p.grad
    p.requires_grad_()
    (p * q).sum().backward()
    return found


def written_to_then(p: Any, q: Any) -> Any:
    v = p * 2
    p.requires_grad_(False)
    p.add_(1)
    (v + p * q).sum().backward()


CASES: list[Callable[[Any, Any], Any]] = [
    saved_inputs, saved_inputs_that_are_results, what_is_not_read, of_its_own_node, a_leaf, a_leaf_that_is_frozen,
    a_gradient_that_stays, hooks_that_stay, a_gradient_that_is_given, written_to_then,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_as_torchs(case: Callable[[Any, Any], Any]) -> None:
    def outcome(p: Any, q: Any) -> list[Any]:
        p.requires_grad_()
        q.requires_grad_()
        try:
            found = case(p, q)
        except RuntimeError as error:
            return [str(error)]
        told = [found, p.grad, q.grad]
        return [p.requires_grad, *(t if t is None else t.tolist() for t in told)]

    assert outcome(tc.ones(3), tc.full((3,), 2.0)) == outcome(torch.ones(3), torch.full((3,), 2.0))
