"""Calls that torch differentiates on the host, for tensors of a registered device: writes and new data before the backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME
from tinycompile.eager.recording import call_torch

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with registered():
        yield


CALLS: dict[str, Callable[[Any], Any]] = {
    "saves both": lambda x: torch.logcumsumexp(x, 0),
    "saves its argument": lambda x: torch.ops.aten.mul(x, x),
    "saves another argument": lambda x: torch.ops.aten.mul(x, x.detach()[:1]),
    "saves its result": torch.linalg.inv,
    "saves indices": lambda x: torch.sort(x, 0).values,
    "has two results": lambda x: torch.add(*torch.linalg.slogdet(x)),
    "in place": lambda x: (lambda y: y.i0_())(x * 1),
}
WRITES: dict[str, Callable[..., Any]] = {
    "nothing": lambda x, a, y: None,
    "the argument": lambda x, a, y: a.add_(1),
    "a part of the argument": lambda x, a, y: a[0].add_(1).mul_(2),
    "the argument's data": lambda x, a, y: a.data.add_(1),
    "the result": lambda x, a, y: y.mul_(2),
    "the result's data": lambda x, a, y: y.data.mul_(2),
    "both": lambda x, a, y: (a.add_(1), y.mul_(2)),
    "other data": lambda x, a, y: setattr(a, "data", a.detach() * 2),
    "other data and a write": lambda x, a, y: (setattr(a, "data", a.detach() * 2), a.add_(1)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("twice", [False, True])
def test_what_was_written_since(call: str, write: str, twice: bool) -> None:
    """The same gradients, or the same error, as torch on the CPU."""
    start = torch.tensor([[2.0, 1.0], [0.5, 3.0]])
    found = []
    for x in (start.clone().requires_grad_(), tc.from_torch(start.clone()).to(NAME).requires_grad_()):
        a = x * 1
        y = CALLS[call](a)
        if twice:
            grad_of(y, x, retain_graph=True)
        WRITES[write](x, a, y)
        found.append(grad_of(y, x))
    assert found[0] == found[1]


def grad_of(y: Any, x: Any, **options: Any) -> Any:
    try:
        return [g.cpu().tolist() for g in torch.autograd.grad(y.sum(), x, **options)]
    except RuntimeError as error:
        return str(error).replace(f"torch.{NAME}.", "torch.")


def test_a_result_is_let_go_of() -> None:
    x = tc.ones(3, device=NAME).requires_grad_()
    y = torch.logcumsumexp(x, 0)
    gone = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("place", ["cpu", NAME])
def test_one_tensor_given_twice_is_one_to_torch(place: str) -> None:
    """Some functions ask: attention whether its key is the query, sparse addition whether it may double the values."""
    seen: list[Any] = []

    def asks(a: Any, b: Any, more: Any) -> Any:
        seen.append((a is b, a is more[0], more[0] is more[1]))
        return torch.logcumsumexp(a * b, 0) * more[0]

    x = tc.full((3,), 2.0, device=place).requires_grad_()
    found = call_torch(asks, (x, x, [x, x.detach()]), {})
    found.sum().backward()
    want = torch.full((3,), 2.0).requires_grad_()
    asks(want, want, [want, want.detach()]).sum().backward()
    assert seen == [(True, True, False)] * 2 and found.tolist() == asks(want, want, [want, want]).tolist()
    torch.testing.assert_close(x.grad.cpu().torch(), want.grad)


def test_a_write_of_a_tensor_to_itself_is_counted_once() -> None:
    for write in (
        lambda x: x.add_(x),
        lambda x: x.atan2_(x),
        lambda x: x.nextafter_(x),
        lambda x: torch.nextafter(x, x, out=x),
    ):
        counts = []
        for x in (tc.ones(3, device=NAME), torch.ones(3)):
            write(x)
            counts.append(x._version)
        assert counts[0] == counts[1]
