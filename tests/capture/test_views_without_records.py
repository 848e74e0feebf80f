"""Views by functions of torch's that have no record: whoever writes to one, or to what it views, gives both the history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinycompile

pytestmark = pytest.mark.cpu

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": lambda t: t.as_strided((5,), (1,)),
    "strided_from": lambda t: torch.as_strided(t, size=(3,), stride=(1,), storage_offset=2),
    "broadcast": lambda t: torch.broadcast_tensors(t, t)[0],
    "adjoint": lambda t: t.adjoint(),
    "alias": lambda t: torch.ops.aten.alias(t),
    "itself": lambda t: t.resolve_conj(),
    "out_of_order": lambda t: t.tensor_split([3, 1])[0],
    "of_a_view": lambda t: t[1:].as_strided((3,), (2,))[1:],
}
WHOLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "product": lambda x: x * 2,
}
SOURCES: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(12.0).view(4, 3).clone(),
    "leaf": lambda: torch.arange(12.0).view(4, 3).clone().requires_grad_(),
    "inner": lambda: torch.arange(12.0).view(4, 3).clone().requires_grad_() * 1,
}


def said(fn: Callable[..., Any], x: torch.Tensor) -> Any:
    v = torch.ones(2, requires_grad=True)
    try:
        t, u = fn(x, v)
    except RuntimeError as error:
        return str(error)
    loss = t.sum() + u.sum() * 2
    if loss.requires_grad:
        loss.backward()
    grads = [None if g.grad is None else g.grad.tolist() for g in (x, v) if g.is_leaf]
    return [*(o.detach().tolist() for o in (t, u, x)), t.requires_grad, u.requires_grad, u is t, *grads]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("whole", WHOLES)
def test_written(whole: str, view: str) -> None:
    make, part = WHOLES[whole], VIEWS[view]

    def inside(x, v):
        t = make(x)
        u = part(t)
        u.add_(v.sum())
        return t, u

    def behind_a_break(x, v):
        t = make(x)
        u = part(t)
        tinycompile.graph_break()
        u.mul_(v.sum())
        return t, u

    def the_whole(x, v):
        t = make(x)
        u = part(t)
        t.mul_(v.sum())
        return t, u

    def only_read(x, v):
        t = make(x)
        u = part(t)
        return t * 1, u * v.sum()

    for source in SOURCES:
        for fn in (inside,) if source == "leaf" else (inside, behind_a_break, the_whole, only_read):
            found, expected = said(tinycompile.compile(fn), SOURCES[source]()), said(fn, SOURCES[source]())
            assert found == expected, (source, fn.__name__)


@pytest.mark.parametrize("view", VIEWS)
def test_made_under_no_grad(view: str) -> None:
    part = VIEWS[view]

    def fn(x, v):
        with torch.no_grad():
            u = part(x)
        u.add_(v.sum())
        return x, u

    for source in ("plain", "inner"):
        assert said(tinycompile.compile(fn), SOURCES[source]()) == said(fn, SOURCES[source]()), source


READ: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gaps": lambda x: x.add_(1)[:, ::2].as_strided((6,), (1,)),
    "beside": lambda x: x[1:].add_(1).as_strided((6,), (1,), 4),
    "of_a_result": lambda x: (x * 2)[1:].add_(1).as_strided((6,), (1,), 1),
}


@pytest.mark.parametrize("name", READ)
def test_strided_over_what_was_written(name: str) -> None:
    """It sees the memory, also beside the tensor."""
    for make in (lambda: torch.arange(12.0).view(4, 3), lambda: torch.arange(15.0).view(5, 3)[1:]):
        assert torch.equal(tinycompile.compile(READ[name])(make()), READ[name](make()))


def written(x, v, split):
    a, b = split(x)
    a.mul_(v.sum())
    return a, b


def of_a_result(x, v, split):
    y = x * 1
    a, b = split(y)
    a.mul_(v.sum())
    return a, y


def made_without_grad(x, v, split):
    with torch.no_grad():
        a, b = split(x)
    a.mul_(v.sum())
    return a, b


def behind_a_break(x, v, split):
    a, b = split(x)
    tinycompile.graph_break()
    b.mul_(v.sum())
    return a, x


def written_before(x, v, split):
    a, b = split(x)
    x.detach().mul_(2)
    a.mul_(v.sum())
    return a, b


def left(x, v, split):
    return split(x)


@pytest.mark.parametrize("name", ["unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes", "split"])
@pytest.mark.parametrize(
    "fn", [written, of_a_result, made_without_grad, behind_a_break, written_before, left], ids=lambda f: f.__name__
)
def test_unsafe_pieces(fn: Callable[..., Any], name: str) -> None:
    """They share memory with what they are pieces of, and to autograd are none."""

    def split(x: torch.Tensor) -> Any:
        return getattr(x, name)(2 if name != "unsafe_split_with_sizes" else [2, 2])

    def outside(wrap: Callable[..., Any]) -> Callable[..., Any]:
        compiled = wrap(lambda x, v: fn(x, v, split))

        def call(x: torch.Tensor, v: torch.Tensor) -> Any:
            a, b = compiled(x, v)
            if fn is left:
                a.mul_(v.sum())
            return a, b

        return call

    for source in SOURCES:
        found, expected = (said(outside(w), SOURCES[source]()) for w in (tinycompile.compile, lambda f: f))
        assert found == expected, source


GRIDS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "broadcast": lambda a, b: torch.broadcast_tensors(a.view(3, 1), b),
    "broadcast_alike": lambda a, b: torch.broadcast_tensors(a, a * 2),
    "ij": lambda a, b: torch.meshgrid(a, b, indexing="ij"),
    "xy": lambda a, b: torch.meshgrid([a, b, b], indexing="xy"),
    "one": lambda a, b: torch.meshgrid(a, indexing="xy"),
    "scalar": lambda a, b: torch.meshgrid(a, b.sum(), indexing="ij"),
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids(name: str) -> None:
    """Views of each tensor, in the graph: nothing breaks it."""

    def fn(a, b):
        return GRIDS[name](a, b), [t * 2 for t in GRIDS[name](a, b)]

    for grad in (False, True):
        a, b = torch.arange(3.0).requires_grad_(grad), torch.arange(2.0)
        found, expected = (f(a, b) for f in (tinycompile.compile(fn, fullgraph=True, backend="eager"), fn))
        for ours, theirs in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()
            assert ours.requires_grad == theirs.requires_grad
        assert [t.data_ptr() == a.data_ptr() for t in found[0]] == [t.data_ptr() == a.data_ptr() for t in expected[0]]


@pytest.mark.parametrize("view", VIEWS)
def test_leaving_as_views_of_our_tensors(view: str) -> None:
    """They share memory with the argument, and our tape knows of it."""
    part = VIEWS[view]
    compiled = tinycompile.compile(part)
    found = []
    for lib, fn in ((torch, part), (tinycompile, compiled)):
        x = lib.arange(12.0).view(4, 3).clone().requires_grad_()
        y = x * 1
        for _ in range(2):
            fn(y).mul_(3)
        (y * y).sum().backward()
        found.append((y.tolist(), x.grad.tolist()))
    assert found[0] == found[1]
