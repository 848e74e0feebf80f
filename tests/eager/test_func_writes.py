"""Functions under ``tinycompile.func`` that write in place: what torch.func refuses is refused in its words, elsewhere its
answers are given; and ``no_grad`` in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.eager.recording import NestedNoGradError


def itself(x, y):
    x.mul_(2)
    return (x * x).sum()


def a_row(x, y):
    x[0] = x[1] * 3
    return (x * x).sum()


def a_view(x, y):
    x.view(-1).sin_()
    return (x * x).sum()


def with_the_other(x, y):
    x.add_(y * y)
    return (x * y).sum()


def without_grad(x, y):
    with torch.no_grad():
        x.mul_(2)
    return (x * x).sum()


def detached(x, y):
    x.detach().mul_(2)
    return (x * x).sum()


def a_copy(x, y):
    z = x * 1
    z[0].mul_(y[0])
    return (z * z).sum()


def hidden(x, y):
    with torch.no_grad():
        z = x * 2
    return (z * x).sum()


def by_vjp(lib: Any, f: Callable[..., Any], x: Any, y: Any) -> Any:
    result, pull_back = lib.vjp(f, x, y)
    return result, pull_back(result * 0 + 1)


WAYS: dict[str, Callable[..., Any]] = {
    "grad": lambda lib, f, x, y: lib.grad(f)(x, y),
    "both": lambda lib, f, x, y: lib.grad_and_value(f, argnums=(0, 1))(x, y),
    "vjp": by_vjp,
    "jacrev": lambda lib, f, x, y: lib.jacrev(f)(x, y),
    "hessian": lambda lib, f, x, y: lib.hessian(f)(x, y),
    "twice": lambda lib, f, x, y: lib.grad(lambda *a: lib.grad(f)(*a).sum())(x, y),
}


def plain(value: Any) -> Any:
    return [plain(v) for v in value] if isinstance(value, (tuple, list)) else value.tolist()


def said(way: Callable[..., Any], lib: Any, f: Callable[..., Any], wrap: Callable[..., Any] = lambda t: t) -> Any:
    x, y = (wrap(torch.tensor([[0.5, 1.0], [2.0, 3.0]])) for _ in range(2))
    try:
        return plain(way(lib, f, x, y)), x.tolist(), y.tolist()
    except NestedNoGradError:
        return "no_grad"
    except RuntimeError as error:
        return str(error)


FUNCTIONS = [itself, a_row, a_view, with_the_other, without_grad, detached, a_copy, hidden]
CASES = pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)


@CASES
def test_as_torchs(f: Callable[..., Any]) -> None:
    for name, way in WAYS.items():
        two_levels = name in ("hessian", "twice") and f in (without_grad, hidden)
        expected = "no_grad" if two_levels else said(way, torch.func, f)
        assert said(way, tc.func, f, tc.from_torch) == expected, name


@pytest.mark.cpu
@CASES
def test_compiled(f: Callable[..., Any]) -> None:
    """The whole of it, for torch tensors, and a compiled function in it, for ours."""
    for name, way in WAYS.items():
        expected = said(way, torch.func, f)
        assert said(lambda *a, way=way: tc.compile(lambda *b: way(*b), backend="eager")(*a), torch.func, f) == expected, name
        if name in ("grad", "both", "vjp"):
            assert said(way, tc.func, tc.compile(f, backend="eager"), tc.from_torch) == expected, name


@pytest.mark.cpu
@pytest.mark.parametrize("part", [lambda x: x.view(-1), lambda x: x[0], lambda x: x.detach()], ids="flat row detached".split())
def test_views_that_leave_a_piece(part: Callable[[Any], Any]) -> None:
    """Of our tensors: whoever writes to one writes to what it views, which a leaf refuses."""

    def written(x):
        y = part(x)
        tc.graph_break()
        y.mul_(2)
        return (x * x).sum()

    def found(fn: Callable[..., Any], leaf: Any, inner: bool) -> Any:
        x = leaf * 1 if inner else leaf
        try:
            made = fn(x)
        except RuntimeError as error:
            return str(error)
        if made.requires_grad:
            made.backward()
        return made.tolist(), x.tolist(), leaf.requires_grad and leaf.grad.tolist()

    for grad in (False, True):
        for inner in (False, True):
            given = [tc.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=grad) for _ in range(2)]
            assert found(tc.compile(written), given[0], inner) == found(written, given[1], inner), (grad, inner)
