"""``x.data`` counts its writes itself. ``x.data = other``: what was saved for a backward is the tensor, not the memory that it had.

As torch, line by line, on the CPU and on a registered device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tinycompile as tc
from tests.eager.device_support import registered
from tests.eager.numpy_device import NAME

pytestmark = pytest.mark.pure

THERE = SimpleNamespace(**{name: partial(getattr(tc, name), device=NAME) for name in ("full", "ones", "zeros")})


@pytest.fixture(params=["cpu", NAME])
def ours(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Factories of our tensors."""
    if request.param == "cpu":
        yield tc
        return
    with registered():
        yield THERE


# Name -> what is computed of a leaf before it gets other data.
COMPUTED: dict[str, Callable[[Any], Any]] = {
    "its value": lambda w: w**3,
    "it twice": lambda w: w * w,
    "its result": lambda w: w.exp(),
    "a view": lambda w: w.view(1, 2) @ w.view(2, 1),
    "by torch": lambda w: torch.logcumsumexp(w, 0) * w,
    "without a record": lambda w: torch.special.ndtri(w / 100),
}


def leaf(lib: Any, written: bool) -> Any:
    w = lib.full((2,), 3.0).requires_grad_()
    if written:
        with torch.no_grad():
            w.mul_(2).add_(1)
    return w


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("written", [False, True])
def test_between_forward_and_backward(name: str, written: bool, ours: Any) -> None:
    def case(lib: Any) -> Any:
        w = leaf(lib, written)
        y = COMPUTED[name](w).sum()
        w.data = lib.full((2,), 5.0)
        y.backward()
        return w.grad.tolist(), w._version, w.tolist(), w.requires_grad

    assert case(ours) == case(torch)


def test_second_derivatives(ours: Any) -> None:
    def case(lib: Any) -> Any:
        w = leaf(lib, False)
        y = (w**3).sum()
        w.data = lib.full((2,), 5.0)
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        return g.tolist(), torch.autograd.grad(g.sum(), w)[0].tolist()

    assert case(ours) == case(torch)


def computed(lib: Any) -> Any:
    x = lib.ones(2).requires_grad_()
    a, c = x * 1, x.exp()
    y = (a * a + c.sin() + c).sum()
    a.data, c.data = lib.full((2,), 5.0), lib.full((2,), 7.0)
    y.backward()
    return x.grad.tolist()


def a_factor(lib: Any) -> Any:
    x, c = lib.ones(2).requires_grad_(), lib.ones(2)
    y = x * c
    c.data = lib.full((2,), 5.0)
    y.sum().backward()
    return x.grad.tolist()


def a_factor_of_torchs(lib: Any) -> Any:
    x, c = lib.ones(2).requires_grad_(), lib.ones(2)
    y = torch.ops.aten.mul(x, c)
    c.data = lib.full((2,), 5.0)
    y.sum().backward()
    return x.grad.tolist()


def its_views(lib: Any) -> Any:
    w = lib.ones(2).requires_grad_()
    detached, view, data = w.detach(), w.view(2, 1), w.data
    other = lib.zeros(2)
    w.data = other
    with torch.no_grad():
        w.add_(1)
    versions = [t._version for t in (w, detached, view, data, other)]
    return [t.tolist() for t in (w, detached, view, data, other)], versions


def of_another_kind(lib: Any) -> Any:
    w = lib.ones(2).requires_grad_()
    w.data = lib.ones(3, dtype=torch.float64)
    (w * w).sum().backward()
    i = lib.ones(2)
    i.data = lib.ones(3, dtype=torch.int64)
    return w.dtype, tuple(w.shape), w.grad.dtype, w.is_leaf, i.dtype, i.requires_grad


def written_past_the_tape(lib: Any) -> Any:
    w = lib.full((2,), 3.0).requires_grad_()
    y = (w * w).sum()
    w.data.sub_(1)
    w.data[1:].add_(3)
    y.backward()
    return w.grad.tolist(), w._version


def counts(lib: Any) -> Any:
    """Which of them count one another's writes."""
    found = []
    for i in range(7):
        w = lib.zeros(2)
        data = w.data
        other = lib.ones(2)
        put = lib.ones(2)
        put.data = other
        every = [w, w.detach(), w[1:], data, data.detach(), data.view(2, 1), data.data, other, put, put.view(1, 2), other.data]
        every[(0, 2, 3, 5, 7, 8, 9)[i]].add_(1)
        found.append([(t._version, t.tolist()) for t in every])
    return found


def a_write_to_data_in_place_on_the_tape(lib: Any) -> Any:
    x, data = lib.ones(2).requires_grad_(), lib.full((2,), 2.0).data
    data.add_(1)
    y = data * 1
    y.mul_(x)
    data.mul_(x)
    (data.sum() + y.sum()).backward()
    return x.grad.tolist(), data._version, y._version


def edited(lib: Any) -> Any:
    w = lib.full((2,), 3.0)
    data, x = w.data, lib.ones(2).requires_grad_()
    y, z = (data * x).sum(), (w * x).sum()
    data.view(2, 1).add_(1)
    z.backward()
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0") as caught:
        y.backward()
    return x.grad.tolist(), str(caught.value).replace(f"torch.{NAME}.", "torch.")


def set_on_anothers_memory(lib: Any) -> Any:
    x, other = lib.zeros(2, 2), lib.full((6,), 3.0)
    view, detached = x[0], x.detach()
    assert x.set_(other[1:5]) is x
    other.mul_(2)
    x[:2].add_(1)
    every = (x, other, view, detached)
    return [(t.tolist(), t._version, t.stride(), t.storage_offset()) for t in every]


CASES = [
    computed, a_factor, a_factor_of_torchs, its_views, of_another_kind, written_past_the_tape, counts, set_on_anothers_memory,
    a_write_to_data_in_place_on_the_tape, edited,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_as_torch(case: Callable[[Any], Any], ours: Any) -> None:
    assert case(ours) == case(torch)


def test_refused(ours: Any) -> None:
    for data in (lambda lib: lib.ones(2, dtype=torch.int64), lambda lib: 3):
        said = []
        for lib in (torch, ours):
            w = lib.ones(2).requires_grad_()
            with pytest.raises((RuntimeError, TypeError)) as caught:
                w.data = data(lib)
            said.append((caught.type, str(caught.value), w.dtype, w.tolist()))
        assert said[0] == said[1]


def test_data_moves_to_the_device_and_back() -> None:
    """As torch does between the CPU and a card: the tensor goes on being the same leaf, and counting its writes."""
    with registered():
        w = tc.full((2,), 3.0).requires_grad_()
        with torch.no_grad():
            w.add_(1)
        for place in (NAME, "cpu", NAME):
            before = w.detach()
            w.data = w.data.to(place) + 1
            assert w.is_leaf and w.requires_grad and w.device.type == place and w._version == before._version
            with torch.no_grad():
                w.mul_(1)
            assert w._version == before._version + 1 and before.device.type != place
            (w * w).sum().backward()
            assert w.grad.device.type == place and w.grad.tolist() == (2 * w.cpu().detach()).tolist()
            w.grad = None
        w.data = torch.zeros(2)
        assert w.device.type == "cpu" and w.torch().tolist() == [0, 0]
