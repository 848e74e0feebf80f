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


def shared(draw: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    """A draw of what is the same for all examples."""
    return lambda x: draw(torch.linspace(0.2, 0.8, 3)) + x[..., :3] * 0


# What draws, for all examples at once where they are to differ: by torch's own numbers.
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda x: torch.normal(x, x + 1),
    "normal of a mean": lambda x: torch.normal(x, 2.0),
    "normal of a spread": lambda x: torch.normal(1.0, x + 1),
    "normal of names": lambda x: torch.normal(std=x + 1, mean=x),
    "normal of a row": lambda x: torch.normal(x[0], x + 1),
    "normal of a column": lambda x: torch.normal(x, x[:, :1] + 1),
    "normal of one number": lambda x: torch.normal(x[0, 0], x.sum()),
    "normal of a shared mean": lambda x: torch.normal(torch.zeros(()), x + 1),
    "normal of a shared spread": lambda x: torch.normal(x, torch.ones(())),
    "normal of a size": lambda x: torch.normal(1.0, 2.0, (3,)) + x[..., :3],
    "normal of a named size": lambda x: torch.normal(1.0, 2.0, size=(3,)) + x[..., :3],
    "normal of what is shared": shared(lambda w: torch.normal(w, w)),
    "rand": lambda x: torch.rand(3) + x[..., :3],
    "rand of a named size": lambda x: torch.rand(size=(2, 3))[0] + x[..., :3],
    "randint": lambda x: torch.randint(0, 100, (3,)) + x[..., :3],
    "rand_like": lambda x: torch.rand_like(x),
    "rand_like of what is shared": shared(torch.rand_like),
    "randint_like": lambda x: torch.randint_like(x, 100),
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli of a chance": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli of what is shared": shared(torch.bernoulli),
    "bernoulli_ of chances": lambda x: x.clone().bernoulli_(x),
    "poisson": lambda x: torch.poisson(x * 10),
    "binomial": lambda x: torch.binomial((x * 10).round(), x),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "multinomial of a row": lambda x: torch.multinomial(x[0], 5, True),
    "multinomial of what is shared": shared(lambda w: torch.multinomial(w, 3).float()),
    "normal_": lambda x: x.clone().normal_(),
    "exponential_": lambda x: x.clone().exponential_(),
}
MODES = ("error", "same", "different")


@pytest.mark.parametrize("modes", [*((m,) for m in MODES), *((m, n) for m in MODES for n in MODES)], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_torchs_numbers(name: str, modes: tuple[str, ...]) -> None:
    """For one level and for two. What torch refuses where numbers are to be the same for batched tensors, ours draw."""
    x = torch.linspace(0.1, 0.9, 2 * 3 * 2 * 4).view(2, 3, 2, 4)
    for dim in (0, 1):
        said = []
        for vmap in (torch.vmap, tc.vmap):
            fn = NUMBERS[name]
            for i, mode in enumerate(reversed(modes)):
                fn = vmap(fn, in_dims=dim if i == len(modes) - 1 else 0, randomness=mode)
            torch.manual_seed(1)
            try:
                said.append(fn(x if len(modes) == 2 else x[0] if dim == 0 else x[:, 0]).tolist())
            except RuntimeError as error:
                said.append(str(error))
        refused = (
            isinstance(said[0], str)
            and "same" in modes
            and ("does not currently support same" in said[0] or "inplace" in said[0])
        )
        assert said[1] == said[0] or (refused and not isinstance(said[1], str)), dim
