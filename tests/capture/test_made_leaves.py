"""Leaves that a compiled function makes: ``requires_grad=True`` of a factory breaks the graph, so that what follows is
differentiated as eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.cpu

Maker = Callable[[torch.Tensor, bool], torch.Tensor]
FLOAT = torch.float32
FACTORIES: dict[str, Maker] = {
    "ones": lambda x, r: torch.ones(3, requires_grad=r),
    "zeros": lambda x, r: torch.zeros(3, requires_grad=r),
    "full": lambda x, r: torch.full((3,), 2.0, requires_grad=r),
    "rand": lambda x, r: torch.rand(3, requires_grad=r),
    "randn": lambda x, r: torch.randn(3, requires_grad=r),
    "randint": lambda x, r: torch.randint(3, (3,), dtype=FLOAT, requires_grad=r),
    "randperm": lambda x, r: torch.randperm(3, dtype=FLOAT, requires_grad=r),
    "normal": lambda x, r: torch.normal(0.0, 1.0, (3,), requires_grad=r),
    "tensor": lambda x, r: torch.tensor([1.0, 2.0], requires_grad=r),
    "asarray": lambda x, r: torch.asarray([1.0, 2.0], requires_grad=r),
    "empty": lambda x, r: torch.empty(3, requires_grad=r),
    "empty_strided": lambda x, r: torch.empty_strided((2, 2), (1, 2), requires_grad=r),
    "empty_permuted": lambda x, r: torch.empty_permuted((2, 3), (1, 0), requires_grad=r),
    "arange": lambda x, r: torch.arange(3.0, requires_grad=r),
    "linspace": lambda x, r: torch.linspace(0, 1, 3, requires_grad=r),
    "logspace": lambda x, r: torch.logspace(0, 1, 3, requires_grad=r),
    "eye": lambda x, r: torch.eye(3, requires_grad=r),
    "window": lambda x, r: torch.hann_window(4, requires_grad=r),
    "ones_like": lambda x, r: torch.ones_like(x, requires_grad=r),
    "zeros_like": lambda x, r: torch.zeros_like(x, requires_grad=r),
    "full_like": lambda x, r: torch.full_like(x, 2.0, requires_grad=r),
    "empty_like": lambda x, r: torch.empty_like(x, requires_grad=r),
    "rand_like": lambda x, r: torch.rand_like(x, requires_grad=r),
    "randn_like": lambda x, r: torch.randn_like(x, requires_grad=r),
    "randint_like": lambda x, r: torch.randint_like(x, 2, requires_grad=r),
    "new_ones": lambda x, r: x.new_ones(3, requires_grad=r),
    "new_zeros": lambda x, r: x.new_zeros(3, requires_grad=r),
    "new_full": lambda x, r: x.new_full((3,), 2.0, requires_grad=r),
    "new_empty": lambda x, r: x.new_empty(3, requires_grad=r),
    "new_empty_strided": lambda x, r: x.new_empty_strided((2, 2), (1, 2), requires_grad=r),
    "new_tensor": lambda x, r: x.new_tensor([1.0, 2.0], requires_grad=r),
}
FLAGS = [(name, follows) for name in FACTORIES for follows in (True, False)]


@pytest.mark.parametrize("name, follows", FLAGS, ids=[f"{n}-{'grad' if f else 'no_grad'}" for n, f in FLAGS])
def test_flags_are_eagers(name: str, follows: bool) -> None:
    """Of the leaf and of what is computed of it, with gradients followed around the function and not."""
    make = FACTORIES[name]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = make(x, True)
        return made, made * 2

    x = torch.randn(3)
    with torch.set_grad_enabled(follows):
        got, want = tc.compile(function)(x), function(x)
    assert [(t.requires_grad, t.is_leaf) for t in got] == [(t.requires_grad, t.is_leaf) for t in want]


@pytest.mark.parametrize("name", ["ones", "full_like", "new_tensor", "eye"])
def test_it_is_differentiated(name: str) -> None:
    make = FACTORIES[name]

    def through_grad(x: torch.Tensor) -> torch.Tensor:
        made = make(x, True)
        return torch.autograd.grad((made * made).sum(), made)[0]

    def through_backward(x: torch.Tensor) -> torch.Tensor | None:
        made = make(x, True)
        (made * made).sum().backward()
        return made.grad

    x = torch.randn(3)
    for function in (through_grad, through_backward):
        got, want = tc.compile(function)(x), function(x)
        assert got is not None and want is not None and torch.equal(got, want)


def test_a_leaf_breaks_the_graph_and_false_does_not() -> None:
    def leaf(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3, requires_grad=True) * x

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3, requires_grad=False) * x

    found = tc.explain(leaf)(torch.randn(3)), tc.explain(plain)(torch.randn(3))
    assert [b.id for b in found[0].breaks] == ["unsupported-argument"] and not found[1].breaks
