"""Views of tensors of a registered device by functions that have no kernel there: writes and gradients go through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered():
        yield


# Of what is 1 x 2 x 2 x 2.
VIEWS: dict[str, Callable[[Any], Any]] = {
    **{
        name: (lambda y, fn=getattr(F, name): fn(y, training=False))
        for name in ("dropout", "dropout2d", "alpha_dropout", "feature_alpha_dropout")
    },
    "dropout1d": lambda y: F.dropout1d(y[0], training=False),
    "dropout3d": lambda y: F.dropout3d(y[None], training=False),
    "adjoint": lambda y: y.adjoint(),
    "to_dense": lambda y: y.to_dense(),
    "atleast_3d of a list": lambda y: torch.atleast_3d([y[0, 0]])[0],
    "broadcast_tensors": lambda y: torch.broadcast_tensors(y, y)[1],
    "hsplit": lambda y: y.hsplit(2)[1],
    "_reshape_alias": lambda y: torch.ops.aten._reshape_alias(y, (8,), (1,)),
}


def outcome(case: Callable[[Any, Any], Any], device: str) -> Any:
    lib: Any = tinycompile if device == NAME else torch
    x = lib.full((1, 2, 2, 2), 2.0, device=device).requires_grad_()
    case(x, lib.zeros(1, 2, 2, 2, device=device)).backward()
    return x.grad.cpu().tolist()


@pytest.mark.parametrize("name", VIEWS)
def test_as_on_the_cpu(name: str) -> None:
    view = VIEWS[name]

    def written(x: Any, zeros: Any) -> Any:
        y = x * 1
        view(y).mul_(3)
        return (y * y).sum()

    def read(x: Any, zeros: Any) -> Any:
        y = x * 1
        v = view(y)
        y.mul_(3)
        return (v * v).sum()

    def into_zeros(x: Any, zeros: Any) -> Any:
        view(zeros).copy_(view(x * 2))
        return (zeros * zeros).sum()

    for case in (written, read, into_zeros):
        assert outcome(case, NAME) == outcome(case, "cpu")


def test_an_expanded_view_is_read() -> None:
    def case(x: Any, zeros: Any) -> Any:
        y = x * 1
        a, b = torch.meshgrid(y[0, 0, 0], y[0, 1, 1], indexing="ij")
        y.mul_(3)
        return (a * b).sum()

    assert outcome(case, NAME) == outcome(case, "cpu")


def test_what_cannot_be_followed_is_refused() -> None:
    x = tinycompile.ones(2, 4, device=NAME).requires_grad_() * 1
    with pytest.raises(NotImplementedError, match="would be a view that gradients go through"):
        torch.ops.aten._reshape_alias(x[:, :2], (4,), (2,))
    with pytest.raises(RuntimeError, match="is the output of a function that returns multiple views"):
        x.unsafe_split(1)[0].mul_(2)
