"""``x.data = other``: what was saved for a backward is the tensor, not the memory that it had. As torch, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc

pytestmark = pytest.mark.pure

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
def test_between_forward_and_backward(name: str, written: bool) -> None:
    def case(lib: Any) -> Any:
        w = leaf(lib, written)
        y = COMPUTED[name](w).sum()
        w.data = lib.full((2,), 5.0)
        y.backward()
        return w.grad.tolist(), w._version, w.tolist(), w.requires_grad

    assert case(tc) == case(torch)


def test_second_derivatives() -> None:
    def case(lib: Any) -> Any:
        w = leaf(lib, False)
        y = (w**3).sum()
        w.data = lib.full((2,), 5.0)
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        return g.tolist(), torch.autograd.grad(g.sum(), w)[0].tolist()

    assert case(tc) == case(torch)


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


@pytest.mark.parametrize("case", [computed, a_factor, a_factor_of_torchs, its_views, of_another_kind], ids=lambda f: f.__name__)
def test_as_torch(case: Callable[[Any], Any]) -> None:
    assert case(tc) == case(torch)


def test_refused() -> None:
    for data in (lambda lib: lib.ones(2, dtype=torch.int64), lambda lib: 3):
        said = []
        for lib in (torch, tc):
            w = lib.ones(2).requires_grad_()
            with pytest.raises((RuntimeError, TypeError)) as caught:
                w.data = data(lib)
            said.append((caught.type, str(caught.value), w.dtype, w.tolist()))
        assert said[0] == said[1]
