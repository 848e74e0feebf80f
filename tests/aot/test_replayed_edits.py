"""Backwards that replay the graph, as those of complex values: an edit between forward and backward is refused where it would
change a gradient, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu


def z(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x)


AS_EAGER: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda x, v: torch.view_as_real(z(x) * 1j) * 1.0 + v.sum(),
    "squared": lambda x, v: torch.view_as_real(z(x) ** 2) + v.sum(),
    "both": lambda x, v: torch.view_as_real(z(x) * torch.complex(v, v)),
    "real_part": lambda x, v: z(x).real * 2 + v,
    "constant": lambda x, v: z(x.detach()).real * v,
}


def found(fn: Callable[..., Any], leaf: bool, edited: str) -> Any:
    x, v = torch.arange(6.0).view(3, 2).clone().requires_grad_(leaf), torch.ones(3, requires_grad=True)
    given = {"x": x * 1 if leaf else x, "v": v * 1}
    made = fn(*given.values())
    if edited:
        with torch.no_grad():
            given[edited].add_(1)
    try:
        made.sum().backward()
    except RuntimeError as error:
        return str(error).partition("]")[0].partition("[")[0]
    return [None if t.grad is None else t.grad.tolist() for t in (x, v)]


@pytest.mark.parametrize("name", AS_EAGER)
def test_edited_between(name: str) -> None:
    for leaf in (True, False):
        for edited in ("", "x", "v"):
            expected = found(AS_EAGER[name], leaf, edited)
            assert found(tinycompile.compile(AS_EAGER[name]), leaf, edited) == expected, (leaf, edited)


def test_what_is_computed_again_must_be_as_it_was() -> None:
    """Eager has saved the result of ``exp``; a replay computes it again."""
    compiled = tinycompile.compile(lambda x, v: torch.view_as_real(z(x).exp()) + v.sum())
    assert "modified by an inplace operation" in found(compiled, True, "x")


def test_edited_within() -> None:
    """A write with gradients to a view of a view, behind the break that it is."""

    def fn(x, v):
        t = x.detach()
        u = torch.view_as_real(z(t))
        u.add_(v.sum())
        return t.sum() + u.sum() * 2

    for leaf in (True, False):
        assert found(tinycompile.compile(fn), leaf, "") == found(fn, leaf, "")
