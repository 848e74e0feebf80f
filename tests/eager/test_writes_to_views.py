"""Writes to views and to what they view, on our tape. As torch, line by line: gradients, or the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure


def outcome(lib: Any, case: Callable[[Any, Any], Any]) -> list[Any]:
    """Of a leaf of 2 x 3."""
    x = lib.full((2, 3), 2.0)
    x.requires_grad_()
    try:
        found = case(lib, x)
        if found.requires_grad:
            found.backward()
    except RuntimeError as error:
        return [str(error)]
    return [found.tolist(), found.requires_grad, None if x.grad is None else (x.grad.tolist(), tuple(x.grad.stride()))]


# Name -> (a view of what is 2 x 3 that is written to, what lays the gradient out otherwise).
LAID_OUT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "flat": (lambda y: y.view(6), lambda y: y.t()),
    "other rows": (lambda y: y.view(3, 2)[1:], lambda y: y.t()),
    "flattened": (lambda y: y.flatten(), lambda y: y.t().contiguous()),
    "reshaped": (lambda y: y.reshape(-1)[::2], lambda y: y.t()),
    "of two dims": (lambda y: y.unsqueeze(0).view(2, 3, 1), lambda y: y.t()),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_gradients_laid_out_otherwise_than_what_is_written_to(name: str) -> None:
    """A view that the base's strides allow, and the gradient's own strides may not."""
    view, other = LAID_OUT[name]

    def by_number(lib: Any, x: Any) -> Any:
        y = x * 1
        view(y).mul_(3)
        return (other(y) * lib.arange(6.0).reshape(3, 2)).sum()

    def by_itself(lib: Any, x: Any) -> Any:
        y = x * 1
        view(y).copy_(view(x) * x.sum())
        return (other(y) * lib.arange(6.0).reshape(3, 2)).sum()

    def of_columns(lib: Any, x: Any) -> Any:
        y = (x * 1).t().clone()
        view(y.t()).mul_(3)
        return (y.t().contiguous() * lib.arange(6.0).reshape(2, 3)).sum()

    for case in (by_number, by_itself, of_columns):
        assert outcome(tc, case) == outcome(torch, case)
    rows = torch.arange(12.0).reshape(2, 2, 3)
    got = tc.vmap(tc.func.grad(lambda x: by_number(tc, x)))(tc.from_torch(rows))
    assert got.tolist() == torch.vmap(torch.func.grad(lambda x: by_number(torch, x)))(rows).tolist()
