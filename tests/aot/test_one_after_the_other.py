"""Backwards of several results of one compiled function, one after the other: torch's error exactly where eager has freed what
the later one needs, and eager's gradients elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile

pytestmark = pytest.mark.cpu


def disjoint(x, y, w):
    return x.exp(), y.sin()


def of_one_input(x, y, w):
    return x @ w, x * w


def of_one_sum(x, y, w):
    """What they have in common keeps nothing."""
    h = x + y
    return h.exp(), h.sin()


def of_one_exponential(x, y, w):
    h = x.exp()
    return h * 2.0, h * y


def nothing_is_kept(x, y, w):
    return x + y, (x - w).sum()


def chain(x, y, w):
    """The second has something in common with either; they have nothing."""
    a, b = x.exp(), y.sin()
    return a * 2.0, a * b, b * 3.0


def views(x, y, w):
    a, b = (x + w).split(2)
    return a.exp(), b.sin(), (x * y).unbind()[0]


def by_torch(x, y, w):
    values, _ = x.sort(dim=0)
    return values, y.max(0)[0] * 2, x.std()


def of_what_has_no_formula(x, y, w):
    """Torch keeps nothing for a roll, and a formula of ours there is none."""
    h = x.roll(1, 0)
    return h, h * y, F.interpolate(w[None], scale_factor=2.0, mode="linear")


def layers(x, y, w):
    return x.norm(), F.layer_norm(y, (4,)), F.softmax(w, -1)


def outcome(fn: Callable[..., Any], order: tuple[int, ...], retain: bool, again: bool) -> tuple[list[Any], str]:
    """The gradients of backwards in this order, and the error of the last; ``retain``: the first keeps the graph."""
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4, 4, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(3)]
    made, found = fn(*inputs), []
    for step, i in enumerate(order):
        try:
            grads = torch.autograd.grad(
                made[i].sum(), inputs, retain_graph=retain and step == 0, create_graph=again, allow_unused=True
            )
        except RuntimeError as error:
            return found, str(error)
        found.append([g if g is None else g.detach() for g in grads])
    return found, ""


FUNCTIONS = (
    disjoint,
    of_one_input,
    of_one_sum,
    of_one_exponential,
    nothing_is_kept,
    chain,
    views,
    by_torch,
    of_what_has_no_formula,
    layers,
)
CASES = [
    pytest.param(fn, backend, id=f"{fn.__name__}-{backend}")
    for fn in FUNCTIONS
    for backend in ("cpp", "aot_eager", "eager")
    if backend != "cpp" or fn in (of_one_sum, by_torch)
]


@pytest.mark.parametrize("fn,backend", CASES)
def test_as_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = tinycompile.compile(fn, fullgraph=True, backend=backend)
    count = len(fn(*torch.ones(3, 4, 4)))
    for order in itertools.product(range(count), repeat=2):
        for retain, again in itertools.product((False, True), repeat=2):
            (mine, said), (theirs, words) = (outcome(f, order, retain, again) for f in (compiled, fn))
            assert said == words, (order, retain, again)
            torch.testing.assert_close(mine, theirs, msg=lambda m, o=order, r=retain: f"{o}, retain_graph={r}: {m}")


def test_three_in_all_orders_and_the_rest_in_one() -> None:
    compiled = tinycompile.compile(by_torch, fullgraph=True)
    for order in itertools.permutations(range(3)):
        torch.testing.assert_close(outcome(compiled, order, False, False)[0], outcome(by_torch, order, False, False)[0])

    def first_then_the_others(fn: Callable[..., Any]) -> list[Any]:
        x, y, w = (t.requires_grad_() for t in torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(1)))
        a, b, c = fn(x, y, w)
        b.sum().backward()
        (a.sum() + c.sum()).backward()
        return [x.grad, y.grad, w.grad]

    torch.testing.assert_close(first_then_the_others(tinycompile.compile(views)), first_then_the_others(views))


def test_random_numbers_are_those_of_the_forward() -> None:
    def noisy(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.dropout(x, 0.5), F.dropout(y, 0.5)

    x, y = torch.ones(2, 64).unbind()
    a, b = tinycompile.compile(noisy, fullgraph=True)(x.requires_grad_(), y.requires_grad_())
    for made, given in ((b, y), (a, x)):
        made.sum().backward()
        torch.testing.assert_close(made.detach(), given.grad)


@pytest.mark.parametrize("backend", ("eager", "cpp"))
def test_an_edit_in_between_is_noticed(backend: str) -> None:
    x, y = (torch.rand(4, requires_grad=True) for _ in range(2))
    a, b = tinycompile.compile(lambda x, y: (x * x, y * y), backend=backend)(x, y)
    a.sum().backward()
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()
    b.sum().backward()
    torch.testing.assert_close(y.grad, 2 * y.detach())
    a, b = tinycompile.compile(lambda x, y: (x * x, y * y), backend=backend)(x, y)
    a.sum().backward()
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.sum().backward()


@pytest.mark.parametrize("fn", (of_one_input, of_one_exponential, chain, views, by_torch), ids=lambda f: f.__name__)
def test_on_our_tape(fn: Callable[..., Any]) -> None:
    """Our tensors, eagerly and through a compiled function, as torch's."""

    def errors(call: Callable[..., Any], order: tuple[int, int], ours: bool) -> tuple[str, list[torch.Tensor]]:
        draw, said = torch.Generator().manual_seed(0), ""
        made_of = [torch.randn(4, 4, generator=draw, dtype=torch.float64) for _ in range(3)]
        inputs = [(tinycompile.from_torch(t) if ours else t).requires_grad_() for t in made_of]
        made = call(*inputs)
        made[order[0]].sum().backward()
        try:
            made[order[1]].sum().backward()
        except RuntimeError as error:
            return str(error), []
        return said, [torch.zeros(4, 4) if t.grad is None else t.grad.torch() if ours else t.grad for t in inputs]

    compiled = tinycompile.compile(fn, fullgraph=True, backend="aot_eager")
    for order in itertools.permutations(range(len(fn(*torch.ones(3, 4, 4)))), 2):
        theirs = errors(fn, order, False)
        for call in (fn, compiled):
            mine = errors(call, order, True)
            assert mine[0] == theirs[0], (order, call)
            torch.testing.assert_close(mine[1], theirs[1])


OPAQUE = {"topk": torch.topk, "kthvalue": torch.kthvalue, "cummax": torch.cummax, "roll": lambda x, n: (x.roll(n),)}


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("name", OPAQUE)
def test_what_the_function_wrote_is_no_edit(name: str, read: bool) -> None:
    """The later backward computes the forward again, where torch differentiates a call: an input that was written to, on which
    no gradient depends, may be another by then."""

    def fn(x: Any, y: Any) -> Any:
        y.tril_()
        first = (x * x).sum()
        return first + y.sum() if read else first, OPAQUE[name](x, 1)[0]

    found = []
    for call in (fn, tinycompile.compile(fn, fullgraph=True)):
        draw = torch.Generator().manual_seed(0)
        x, y = torch.randn(4, 4, generator=draw, requires_grad=True), torch.randn(4, 4, generator=draw)
        for result in call(x, y):
            result.sum().backward()
        found.append((x.grad, y))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("again", [False, True], ids=["one after the other", "twice"])
@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_edited_is_no_matter_to_other_results(name: str, again: bool) -> None:
    def fn(x: Any, y: Any) -> Any:
        return (x * x).sum(), OPAQUE[name](x, 1)[0], torch.cat([x, y])

    found = []
    for call in (fn, tinycompile.compile(fn, fullgraph=True)):
        draw = torch.Generator().manual_seed(0)
        x, y = torch.randn(4, 4, generator=draw, requires_grad=True), torch.randn(4, 4, generator=draw)
        first, second, _ = call(x, y)
        y.mul_(2)
        grads = [torch.autograd.grad(r.sum(), x, create_graph=again)[0].detach() for r in (first, second)]
        found.append(grads)
    torch.testing.assert_close(*found)
