"""Results with names (``torch.return_types.sort``) and the program's own tuples and lists, as arguments and under vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import tinycompile as tc
from tinycompile.eager.tensor import from_torch

pytestmark = [pytest.mark.pure, pytest.mark.filterwarnings("ignore:vmap calls")]
X, Y = torch.tensor([[3.0, 1.0], [2.0, 5.0]]), torch.tensor([1.0, 2.0])

RESULTS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: torch.sort(x, 0),
    "max": lambda x: x.max(0),
    "topk": lambda x: x.topk(1),
    "cummax": lambda x: x.cummax(0),
    "aminmax": torch.aminmax,
    "median": lambda x: x.median(0),
    "frexp": lambda x: torch.frexp(x),
    "slogdet": torch.linalg.slogdet,
    "qr": torch.linalg.qr,
    "svd": torch.linalg.svd,
    "eigh": lambda x: torch.linalg.eigh(x + x.mT),
    "lu": torch.linalg.lu,
    "inv_ex": torch.linalg.inv_ex,
    "var_mean": torch.var_mean,
}


class Pair(NamedTuple):
    a: Any
    b: Any


class Several(list[Any]):
    pass


ARGUMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "stacked": lambda x, found: torch.stack(found),
    "by name": lambda x, found: torch.cat(tensors=found),
    "beside each other": lambda x, found: torch.hstack(found),
    "a tuple of the program's": lambda x, found: torch.stack(Pair(x, x + 1)),
    "a list of the program's": lambda x, found: torch.cat(Several([x, x + 1]), 1),
    "sizes": lambda x, found: x.reshape(Pair(1, 4)) + x.new_zeros(Pair(1, 4)) + x.view(Several([4])),
    "norms": lambda x, found: torch.stack(torch._foreach_norm(Several([x, x]))),
}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        found = call()
    except (RuntimeError, TypeError) as error:
        return type(error), str(error).partition("\n")[0]
    return found.dtype, found.tolist()


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("made", RESULTS)
def test_as_arguments(made: str, name: str, followed: bool) -> None:
    def call(x: torch.Tensor) -> Any:
        given: Any = x.requires_grad_(followed)
        return ARGUMENTS[name](given, RESULTS[made](given))

    assert outcome(lambda: call(from_torch(X.clone()))) == outcome(lambda: call(X.clone()))  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("name", RESULTS)
def test_the_gradient_of_an_argument_that_all_examples_share(name: str, at: int) -> None:
    """Its results are one for all examples, on the tape of each."""

    def gradients(lib: Any, x: Any, y: Any) -> Any:
        def loss(x: Any, y: Any) -> Any:
            return RESULTS[name](x)[at].sum() * y

        return lib.vmap(lib.func.grad(loss), (None, 0))(x, y)

    def found(lib: Any, *given: Any) -> Any:
        try:
            return gradients(lib, *given)
        except RuntimeError as error:
            return str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = found(torch, X.clone(), Y.clone()), found(tc, from_torch(X.clone()), from_torch(Y.clone()))
    if isinstance(theirs, str):
        assert isinstance(ours, str)
    else:
        torch.testing.assert_close(ours.torch(), theirs)


@pytest.mark.parametrize("data", ["named", "a pair", "a list", "nested"])
def test_as_data(data: str) -> None:
    def made(lib: Any, x: Any) -> Any:
        of: dict[str, Any] = {"named": x[0].max(0), "a pair": Pair(x[0, 0], x[0, 1]), "a list": Several([x[0, 0], 2.0])}
        return lib.tensor([Pair(x[0, 0], 1), Several([2, x[1, 1]])] if data == "nested" else of[data])

    assert outcome(lambda: made(tc, from_torch(X.clone()))) == outcome(lambda: made(torch, X.clone()))
