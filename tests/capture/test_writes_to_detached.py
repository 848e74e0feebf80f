"""Writes of what requires grad through views of a tensor that was cut off: the cut is between it and what it was made of, so the
write gives it, and all its views, the history, and what it was made of the data only. And views that torch lets nobody write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

CUTS: dict[str, Callable[..., torch.Tensor]] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "of_a_copy": lambda x: x.clone().detach(),
    "of_a_product": lambda x: (x * 2).detach(),
    "none": lambda x: x * 2,
}
VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "row": lambda t: t[0],
    "rows": lambda t: t[0:2],
    "turned": lambda t: t.t(),
    "flat": lambda t: t.view(-1)[:5],
    "same_shape": lambda t: t.expand_as(t),
    "cut_again": lambda t: t.detach()[1],
    "sections": lambda t: t.tensor_split(2)[0],
    "columns": lambda t: t.hsplit([2])[1],
    "one_of_two": lambda t: t.split(2)[0],
    "one_of_all": lambda t: t.unbind()[1],
}
SOURCES: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(12.0).view(4, 3),
    "leaf": lambda: torch.arange(12.0).view(4, 3).clone().requires_grad_(),
    "inner": lambda: torch.arange(12.0).view(4, 3).requires_grad_() * 1,
}


def said(wrap: Callable[..., Any], fn: Callable[..., Any], x: torch.Tensor) -> Any:
    v = torch.tensor(2.0, requires_grad=True)
    try:
        loss, t, u = wrap(fn)(x, v)
    except RuntimeError as error:
        return str(error)
    if loss.requires_grad:
        loss.backward()
    flags = [o.requires_grad for o in (loss, t, u, x)]
    return [*(o.detach().tolist() for o in (loss, t, u, x)), *flags, None if v.grad is None else v.grad.item()]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("cut", CUTS)
def test_through_views(cut: str, source: str) -> None:
    for name in VIEWS:
        make, view = CUTS[cut], VIEWS[name]

        def added(x, v, make=make, view=view):
            t = make(x)
            u = view(t)
            u.add_(v)
            return t.sum() + u.sum() * 2, t, u

        assert said(tinycompile.compile, added, SOURCES[source]()) == said(lambda f: f, added, SOURCES[source]()), name


def copied(x, v):
    t = x.detach()
    t[0].copy_(v.expand(3))
    return (t * t).sum(), t, t[0]


def twice(x, v):
    t = x.detach()
    t[0].add_(v)
    t[0:2].mul_(v)
    return t.sum(), t, t[1]


def siblings(x, v):
    t = x.detach()
    a, b = t[0], t[:, 0]
    a.mul_(v)
    return b.sum(), t, b


def with_backward(x, v):
    t = x.detach()
    t[0].mul_(v)
    t.sum().backward()
    return t.detach().sum(), t, t[0]


def across_a_break(x, v):
    t = (x * 2).detach()
    u = t[0]
    tinycompile.graph_break()
    u.mul_(v)
    return t.sum(), t, u


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fn", [copied, twice, siblings, with_backward, across_a_break], ids=lambda f: f.__name__)
def test_ways_to_write(fn: Callable[..., Any], source: str) -> None:
    assert said(tinycompile.compile, fn, SOURCES[source]()) == said(lambda f: f, fn, SOURCES[source]())


def data_scaled(x):
    x.data.mul_(3)
    return x + 1


def row_scaled(x):
    row = x[0]
    row.data.mul_(3)
    x.detach()[1].add_(1)
    return x * x


def within_no_grad(x):
    with torch.no_grad():
        row = x[0]
    row.detach().mul_(3)
    return x * x


def itself_scaled(x):
    with torch.no_grad():
        x[0].mul_(3)
        x.t()[1].add_(1)
    return x * x


@pytest.mark.parametrize(
    "of",
    [lambda x: x, lambda x: x.t(), lambda x: x[1:], lambda x: x[:, 1:], lambda x: x * 1],
    ids="leaf turned rows columns inner".split(),
)
@pytest.mark.parametrize("fn", [data_scaled, row_scaled, within_no_grad, itself_scaled], ids=lambda f: f.__name__)
def test_data_of_what_requires_grad(fn: Callable[..., Any], of: Callable[..., torch.Tensor]) -> None:
    """The history of what was cut off from stays as it is, a leaf's and that of views of leaves too."""
    found = []
    for wrapped in (fn, tinycompile.compile(fn, fullgraph=True)):
        leaf = SOURCES["leaf"]()
        x = of(leaf)
        made = wrapped(x)
        made.sum().backward()
        found.append((made.tolist(), x.tolist(), leaf.tolist(), leaf.grad.tolist(), x._version))
    assert found[0] == found[1]


@pytest.mark.parametrize("several", [lambda x: x.split([1, 2]), lambda x: x.unbind(), lambda x: x.tensor_split(2)])
def test_one_of_several_written_outside(several: Callable[..., Any]) -> None:
    """Whether torch lets it be written to doesn't hang on whether it requires grad."""

    def written(fn: Callable[..., Any]) -> Any:
        part = fn(torch.arange(3.0))[1]
        try:
            return part.mul_(torch.ones((), requires_grad=True)).tolist()
        except RuntimeError as error:
            return str(error)

    assert written(tinycompile.compile(several, fullgraph=True)) == written(several)
