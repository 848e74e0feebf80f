"""Random numbers under vmap: what is filled by them, modules that are made there, and gradients through what draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.eager.test_vmap import heads
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls", "ignore:dropout2d")]

DRAWS: dict[str, Callable[[Any], Any]] = {
    "dropout2d": lambda x: F.dropout2d(x[:, None], 0.5, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "normal": lambda x: torch.normal(x, 1.0) * x,
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.5),
    "multi-head attention": lambda x: heads(x.view(2, 1, 4)),
}


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("name", DRAWS)
def test_gradients_are_of_what_was_drawn(name: str, randomness: str) -> None:
    """The way back computes such a call anew: it draws the same numbers, and leaves the generator alone."""
    x = torch.linspace(0.5, 2.0, 24).view(3, 8)

    def f(x: Any) -> Any:
        return (DRAWS[name](x).flatten() * torch.arange(1.0, 9.0)).sum()

    torch.manual_seed(3)
    got, after = tc.vmap(tc.func.grad(f), randomness=randomness)(from_torch(x)), torch.rand(1)
    want = []
    for i, row in enumerate(x):
        if not i or randomness == "same":
            torch.manual_seed(3)
        want.append(torch.autograd.grad(f(leaf := row.clone().requires_grad_()), leaf)[0])
    torch.testing.assert_close(got.torch(), torch.stack(want))
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("fill", [torch.Tensor.normal_, torch.Tensor.bernoulli_, torch.nn.init.uniform_])
def test_gradients_of_fills(fill: Callable[..., Any], randomness: str) -> None:
    """A tensor that is filled depends on nothing any more; what ``torch.nn.init`` does no tape sees."""
    x, name = torch.linspace(0.5, 2.0, 24).view(3, 8), fill.__name__

    def f(x: Any) -> Any:
        y = x * 2
        return ((fill(y) if fill is torch.nn.init.uniform_ else getattr(y, name)()) * x).sum()

    torch.manual_seed(3)
    got = tc.vmap(tc.func.grad(f), randomness=randomness)(from_torch(x))
    torch.manual_seed(3)
    torch.testing.assert_close(got.torch(), torch.vmap(torch.func.grad(f), randomness=randomness)(x))


FILLS: dict[str, Callable[[Any], Any]] = {
    "normal_": lambda x: torch.empty(4).normal_() + x,
    "init.normal_": lambda x: torch.nn.init.normal_(torch.empty(4)) + x,
    "init.uniform_": lambda x: torch.nn.init.uniform_(torch.empty(4)) + x,
    "init.kaiming_uniform_": lambda x: torch.nn.init.kaiming_uniform_(torch.empty(4, 4)) + x,
    "init.xavier_normal_": lambda x: torch.nn.init.xavier_normal_(torch.empty(4, 4)) + x,
    "init.constant_": lambda x: torch.nn.init.constant_(torch.empty(4), 3.0) + x,
    "init.constant_ of an example": lambda x: torch.nn.init.constant_(x, 3.0),
    "bernoulli_": lambda x: torch.empty(4).bernoulli_() + x,
    "a layer": lambda x: torch.nn.Embedding(2, 4).weight.detach() + x,
}


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
@pytest.mark.parametrize("name", FILLS)
def test_fills_of_what_all_examples_share(name: str, randomness: str) -> None:
    """As torch's: drawn once, or refused."""
    said = []
    for vmap in (torch.vmap, tc.vmap):
        torch.manual_seed(1)
        try:
            said.append(vmap(FILLS[name], randomness=randomness)(torch.arange(8.0).view(2, 4)).tolist())
        except RuntimeError as error:
            said.append(str(error))
    assert said[0] == said[1]


def test_a_module_can_be_made_for_all_examples() -> None:
    x = torch.arange(6.0).view(2, 3)
    torch.manual_seed(1)
    got = tc.vmap(lambda x: torch.nn.Linear(3, 2)(x).detach(), randomness="same")(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, torch.nn.Linear(3, 2)(x).detach())


def test_bernoulli_overwrites() -> None:
    """It does not look at what is there, eager and compiled."""
    x = torch.zeros(2, 64)
    for fn in (tc.vmap(lambda a: a.bernoulli_(), randomness="different"), lambda a: a.bernoulli_()):
        assert 0 < fn(from_torch(x.clone())).torch().mean() < 1
    assert 0 < tc.compile(lambda a: (a + 0).bernoulli_() + 0)(x).mean() < 1
