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
        x.split(1)[0].mul_(2)


UNSAFE: dict[str, Callable[[Any], Any]] = {
    "unsafe_split": lambda y: y.unsafe_split(1, 2),
    "unsafe_chunk": lambda y: torch.unsafe_chunk(y, 2, dim=3),
    "unsafe_split_with_sizes": lambda y: torch.unsafe_split_with_sizes(y, [1, 1], 3),
    "of a view": lambda y: y[0, 0].unsafe_split(1),
    "aten": lambda y: torch.ops.aten.unsafe_split(y, 1, 3),
}


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("grad", [False, True])
def test_unsafe_pieces_share_memory_and_are_no_views(name: str, grad: bool) -> None:
    found = []
    for lib in (torch, tinycompile):
        x = lib.full((1, 2, 2, 2), 2.0, device="cpu" if lib is torch else NAME).requires_grad_(grad)
        y = x * 1
        a, b = UNSAFE[name](y)
        a.mul_(3)
        told = [(t.tolist(), t._version, t._is_view(), t.requires_grad, t.is_leaf) for t in (y, a, b)]
        y.add_(1)
        told += [(t.tolist(), t._version) for t in (y, a, b)]
        if grad:
            ((a * b).sum() + (y * y).sum()).backward()
            told.append(x.grad.tolist())
        found.append(told)
    assert found[0] == found[1]


def test_pieces_that_are_no_views_to_the_tape() -> None:
    """They may be written to, as torch's; what they are pieces of has their values, not their history."""
    found = []
    for given in (torch.ones(2, 4), tinycompile.ones(2, 4, device=NAME)):
        x = given.requires_grad_()
        y = x * 3
        piece = y.unsafe_split(1)[0].mul_(2)
        (y.sum() + (piece * piece).sum()).backward()
        found.append((y.tolist(), piece.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "write",
    [
        lambda v, at: v.__setitem__(at, 3.0),
        lambda v, at: v.index_fill_(0, at, 2.0),
        lambda v, at: v.add_(1),
        lambda v, at: v.masked_fill_(v > 1, 0.0),
    ],
)
def test_writes_to_windows_that_overlap(write: Callable[[Any, Any], Any]) -> None:
    """On the tape they are the write itself, on a copy of the memory: not a result that is put back over all of it."""

    def outcome(device: str) -> Any:
        x = tinycompile.arange(4.0).to(device).requires_grad_()
        y = x * 1
        write(y.unfold(0, 2, 1), tinycompile.tensor([0]).to(device))
        y.sum().backward()
        return y.tolist(), x.grad.tolist()

    assert outcome(NAME) == outcome("cpu")
