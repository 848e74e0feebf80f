"""Graphs that go from our tape through torch's and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile as tc
from tinycompile.eager import autograd
from tinycompile.eager.tensor import from_torch

pytestmark = pytest.mark.pure

Middle = Callable[[Any, Callable[[Any], Any]], Any]


def through(x: Any, fn: Callable[[Any], Any]) -> Any:
    """A function of torch's tensors in the middle of a graph of ours."""
    return from_torch(fn(x.torch()))


def both_ways(x: Any, w: Any, m: Middle) -> Any:
    a = m(x * w, torch.sin)
    return (a + m(a * 2, torch.cos)).sum()


# Name -> a function of two leaves of ours, one of torch's, and what calls torch's functions.
MIXED: dict[str, Callable[[Any, Any, Any, Middle], Any]] = {
    "one way": lambda x, w, t, m: m(x, torch.sin).sum(),
    "beside ours": lambda x, w, t, m: (m(x, torch.sin) * w + x * w).sum(),
    "a computed tensor": lambda x, w, t, m: (m(x * w, torch.sin) * x).sum(),
    "twice": lambda x, w, t, m: (m(m(x, torch.sin) * w, torch.cos) + m(x, torch.exp)).sum(),
    "one after the other, and both": lambda x, w, t, m: both_ways(x, w, m),
    "with a leaf of torch's": lambda x, w, t, m: (m(x, lambda v: v * t) * w).sum(),
}


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_gradients_as_torchs_alone(name: str, retain: bool) -> None:
    """``grad`` for leaves on either tape, and ``backward``."""
    values = [torch.randn(3, dtype=torch.float64) for _ in range(3)]
    x, w, t = (v.clone().requires_grad_() for v in values)
    out = MIXED[name](x, w, t, lambda v, fn: fn(v))
    want = torch.autograd.grad(out, (x, w, t), allow_unused=True, retain_graph=True)

    leaves = [*(from_torch(v.clone()).requires_grad_() for v in values[:2]), values[2].clone().requires_grad_()]
    mine = MIXED[name](*leaves, through)
    for _ in range(2 if retain else 1):
        got = autograd.grad(mine, leaves, allow_unused=True, retain_graph=retain)
        for g, leaf, expected in zip(got, leaves, want, strict=True):
            assert (g is None) == (expected is None)
            if g is not None:
                assert isinstance(g, torch.Tensor) == isinstance(leaf, torch.Tensor)
                torch.testing.assert_close(raw(g), expected)

    MIXED[name](*leaves, through).backward()
    for leaf, expected in zip(leaves, want, strict=True):
        assert (leaf.grad is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(raw(leaf.grad), expected)


def raw(tensor: Any) -> torch.Tensor:
    return tensor.torch().detach() if isinstance(tensor, tc.Tensor) else tensor.detach()


def test_second_derivatives() -> None:
    v = torch.randn(3, dtype=torch.float64)
    x = from_torch(v.clone()).requires_grad_()
    (first,) = autograd.grad((through(x, torch.sin) * x).sum(), x, create_graph=True)
    (second,) = autograd.grad(first.sum(), x)
    torch.testing.assert_close(raw(second), 2 * v.cos() - v * v.sin())


def test_what_nothing_leads_to_is_unused() -> None:
    x, w = (from_torch(torch.randn(3)).requires_grad_() for _ in range(2))
    out = through(x, torch.sin).sum()
    assert autograd.grad(out, (x, w), allow_unused=True, retain_graph=True)[1] is None
    with pytest.raises(RuntimeError, match="index 1"):
        autograd.grad(out, (x, w))


def test_parameters_of_torchs_are_not_computed_where_nobody_asks() -> None:
    """Only what leads to a wanted tensor runs."""
    ran: list[str] = []
    weight = torch.randn(3, requires_grad=True)
    weight.register_hook(lambda g: ran.append("weight"))
    x = from_torch(torch.randn(3)).requires_grad_()
    autograd.grad((x * weight).sum(), x)
    assert not ran


# A function of a tensor that torch's tape follows. Views are torch's own there: what they follow is settled when they are made.
OF_TORCHS: dict[str, Callable[[Any], Any]] = {
    "detach": lambda x: x.detach(),
    "a view, detached": lambda x: x.view(2, 3).detach(),
    "a product, detached": lambda x: (x * 2).detach(),
    "beside what is detached": lambda x: x * x.detach(),
    "transposed": lambda x: x.view(2, 3).t(),
    "an index": lambda x: x[None, 1:3],
    "parts": lambda x: x.unbind()[1] * x.split(2)[1],
    "a diagonal": lambda x: x.view(2, 3).diagonal(),
    "expanded": lambda x: x.expand(2, 6) * 2,
    "windows": lambda x: x.unfold(0, 2, 2),
    "rows": lambda x: list(x)[2],
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", OF_TORCHS)
def test_what_torchs_tape_follows(name: str, grad: bool) -> None:
    seen: list[Any] = []
    for wrap in (lambda t: t, from_torch):
        leaf = torch.arange(6.0).requires_grad_()
        for _ in range(2):  # the second time by the short way
            with torch.set_grad_enabled(grad):
                made = OF_TORCHS[name](wrap(leaf))
            if made.requires_grad:
                (made * made).sum().backward()
        seen.append((made.requires_grad, made.is_leaf, None if leaf.grad is None else leaf.grad.tolist()))
    assert seen[0] == seen[1]


# --- writes into torch's tensors ---------------------------------------------------------------------------------------------


def by_rows(b: Any, a: Any) -> None:
    b[0] = a[1] * 3
    b[1:] = a[1:] * a[0]


def at_places(b: Any, a: Any) -> None:
    b[torch.tensor([True, False, True])] = a[1:] * 3
    b[torch.tensor([1])] = a[0]


def by_operators(b: Any, a: Any) -> None:
    b -= a
    b *= a
    b **= 2


# Name -> what writes the second tensor into the first.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "basic indices": by_rows,
    "masks and index tensors": at_places,
    "operators": by_operators,
    "a record's": lambda b, a: b.add_(a).mul_(a),
    "through a view": lambda b, a: b[:2].copy_(a[:2]),
    "no record's": lambda b, a: b.index_copy_(0, torch.tensor([0, 2]), a[:2]),
    "to a list": lambda b, a: torch._foreach_add_([b], [a]),
}


def after(write: Callable[[Any, Any], Any], a: Any) -> Any:
    b = torch.ones(3, dtype=torch.float64)
    write(b, a)
    return (b * b * a).sum()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_into_torchs_tensors_are_followed(write: Callable[[Any, Any], Any]) -> None:
    """Gradients go through what is written, as torch's do: on the tape, in ``grad``, and once more."""
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    want = torch.func.grad(lambda a: after(write, a))(x)
    leaf = from_torch(x.clone()).requires_grad_()
    after(write, leaf).backward()
    torch.testing.assert_close(leaf.grad.raw(), want)
    found = tc.func.grad(lambda a: after(write, a))(x)
    torch.testing.assert_close(found.raw(), want)
    assert not found.requires_grad
    again = tc.func.grad(lambda a: (tc.func.grad(lambda v: after(write, v))(a) * a).sum())(x)
    expected = torch.func.grad(lambda a: (torch.func.grad(lambda v: after(write, v))(a) * a).sum())(x)
    torch.testing.assert_close(again.raw(), expected)


def test_writes_into_torchs_tensors_leave_nothing_on_the_tape() -> None:
    """The value beside a gradient is off the tape; without gradients, or for a leaf of torch's, all is as torch does."""
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    value = tc.func.grad_and_value(lambda a: after(WRITES["a record's"], a))(x)[1]
    assert not value.requires_grad
    with torch.no_grad():
        b = torch.ones(3)
        b[0] = tc.ones(3).requires_grad_()[0] * 2
        assert b.tolist() == [2, 1, 1]
    assert not b.requires_grad
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        w[0] = tc.ones(3).requires_grad_()[0]
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):  # as torch says of what examples share
        tc.vmap(tc.func.grad(lambda a: after(WRITES["a record's"], a)))(x.reshape(1, 3))
