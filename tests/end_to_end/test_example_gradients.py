"""Gradients of each example's own, and Jacobians, through compiled functions: compiled over all examples, in one graph a direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinycompile as tc
from tests.end_to_end.test_transforms import XS, X, flat, same

pytestmark = pytest.mark.cpu


def wave(x: Any) -> Any:
    return (torch.sin(x) * 2).sum()


def loss(p: Any, x: Any, y: Any) -> Any:
    h = torch.tanh(x @ p["w"] + p["more"][0])
    return {"loss": F.cross_entropy(h[None], y[None]), "steps": 3, "seen": h.argmax()}


def vector(x: Any) -> Any:
    return (x.sin() * x.sum()).cumsum(0)[1:]


P = {"w": torch.randn(4, 3).double(), "more": (torch.randn(3).double(),)}
Y = torch.arange(3) % 2


def compiled_over_all(of: Any) -> None:
    """Whatever was compiled for an example was compiled for all of them, without a break."""
    made = [*of.batched.values(), *of.backwards.values(), *of.transformed.values()]
    assert made or of.graphs
    for inner in made:
        assert not inner.breaks
        compiled_over_all(inner)


# By name: a function of ``f``, the way to a compiled function (or the function itself); what it is made from; its arguments.
CASES: dict[str, tuple[Callable[[Any, Any, Any], Any], Callable[..., Any], tuple[Any, ...]]] = {
    "gradient": (lambda f, g, v: v(g.grad(f)), wave, (XS,)),
    "in a lambda": (lambda f, g, v: v(g.grad(lambda x: f(x) * 3 + x.prod())), wave, (XS,)),
    "and the value": (lambda f, g, v: v(lambda x: (lambda p: (p[0], p[1]))(g.grad_and_value(f)(x))), wave, (XS,)),
    "shared weights": (
        lambda f, g, v: v(g.grad(lambda p, x, y: f(p, x, y)["loss"] * 2), (None, 0, 0)), loss, (P, XS, Y)
    ),
    "weights and inputs": (
        lambda f, g, v: v(g.grad(lambda p, x, y: f(p, x, y=y)["loss"], argnums=(0, 1)), (None, 0, 0)), loss, (P, XS, Y)
    ),
    "two calls": (lambda f, g, v: v(g.grad(lambda x: f(x * f(x)))), wave, (XS,)),
    "of two vmaps": (lambda f, g, v: v(lambda s: v(g.grad(lambda x: f(x * s)))(XS)), wave, (XS[:, 0],)),
    "hessian": (lambda f, g, v: v(g.hessian(lambda x: f(x) * x.prod())), wave, (XS,)),
    "hessian of it alone": (lambda f, g, v: v(g.hessian(f)), lambda x: wave(x) * x.prod(), (XS,)),
    "jacobian": (lambda f, g, v: v(g.jacrev(f)), vector, (XS,)),
    "jacobian in a lambda": (lambda f, g, v: v(g.jacrev(lambda x: f(x) * 2)), vector, (XS,)),
    "jacobian of one": (lambda f, g, v: g.jacrev(f), vector, (X,)),
    "hessian of one": (lambda f, g, v: g.hessian(f), lambda x: wave(x) * x.prod(), (X,)),
    "no gradient inside": (lambda f, g, v: v(g.grad(lambda x: (x * f(x.detach())).sum())), wave, (XS,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_torchs(name: str) -> None:
    make, fn, args = CASES[name]
    compiled = tc.compile(fn)
    for _ in range(2):
        same(make(compiled, tc.func, tc.vmap)(*args), make(fn, torch.func, torch.vmap)(*args))
    compiled_over_all(compiled)


@pytest.mark.parametrize("name", CASES)
def test_results_are_ours_as_without_compiling(name: str) -> None:
    make, fn, args = CASES[name]
    got, want = (flat(make(f, tc.func, tc.vmap)(*args)) for f in (tc.compile(fn), fn))
    assert [type(t) for t in got] == [type(t) for t in want] and not any(t.requires_grad for t in got)


def test_the_backward_is_compiled_once() -> None:
    compiled = tc.compile(wave)
    for _ in range(3):
        tc.vmap(tc.func.grad(lambda x: compiled(x) * 2))(XS)
    (backward,) = compiled.backwards.values()
    (over_all,) = backward.batched.values()
    assert len(over_all.graphs) == 1 and not backward.graphs and over_all.kernels


def test_weights_that_examples_share_are_not_repeated() -> None:
    compiled = tc.compile(lambda w, x: torch.tanh(x @ w).sum())
    tc.vmap(tc.func.grad(lambda w, x: compiled(w, x) * 2), (None, 0))(torch.randn(6, 4), torch.randn(5, 6))
    (over_all,) = compiled.batched.values()
    (graph,) = over_all.graphs
    (product,) = (n for n in graph.nodes if n.target == "matmul")
    shapes = {n.name: tuple(n.meta.shape) for n in graph.nodes[:-1]}
    assert shapes[product.args[1].name] == (6, 4) and not any(n.target == "expand" for n in graph.nodes)


noted: list[int] = []


def draws(x: Any) -> Any:
    return F.dropout(x, 0.5, True).sum()


def notes(x: Any) -> Any:
    noted.append(1)
    return x.sin().sum()


def returns_a_view(x: Any) -> Any:
    return x[1:], x.sin()


def breaks(x: Any) -> Any:
    y = x.sin()
    tc.graph_break()
    return (y * x).sum()


@pytest.mark.parametrize("fn", [draws, notes, returns_a_view, breaks], ids=lambda fn: fn.__name__)
def test_what_does_more_than_compute_runs_op_by_op(fn: Callable[..., Any]) -> None:
    def run(fn: Any) -> Any:
        torch.manual_seed(0)
        noted.clear()
        found = tc.vmap(tc.func.grad(lambda x: sum(part.sum() for part in flat(fn(x)))), randomness="different")(XS)
        return found, len(noted)

    compiled = tc.compile(fn)
    (got, times), (want, once) = run(compiled), run(fn)
    same(got, want)
    assert times == once and not compiled.backwards


def test_written_arguments() -> None:
    def run(fn: Any) -> Any:
        return tc.vmap(tc.func.grad(lambda x: (lambda y: (fn(y), (y * x).sum())[1])(x * 2)))(XS)

    same(run(tc.compile(lambda y: y.add_(y * 3))), run(lambda y: y.add_(y * 3)))


def test_named_results_are_of_one_example() -> None:
    got = tc.vmap(tc.compile(lambda x: x.max(0)))(XS)
    want = torch.vmap(lambda x: x.max(0))(XS)
    assert type(got) is type(want)
    same(tuple(got), tuple(want))


def test_a_second_backward_is_refused() -> None:
    compiled = tc.compile(wave)

    def twice(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        y = compiled(leaf)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        return leaf.grad

    same(tc.vmap(twice)(XS), 2 * torch.cos(XS))
