"""Edits of what torch keeps for gradients that nobody asks for: torch's engine does not come to them, and lets them pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tinycompile import tinycompile

Tensors = tuple[torch.Tensor, ...]


def _value_inside(a: Any, b: Any, x: Any) -> Tensors:
    h = b.exp()
    y = a * 2 + h
    h.mul_(2)
    return (y,)


def _part_of_a_result(a: Any, b: Any, x: Any) -> Tensors:
    k, h = a.exp(), b.exp()
    y = torch.cat([k, h])
    h.mul_(2)
    return (y,)


def _several_results(a: Any, b: Any, x: Any) -> Tensors:
    h = b.exp()
    y = a * 2 + h
    h.mul_(2)
    return y, y * x, a.cos()


def _of_the_same_node(a: Any, b: Any, x: Any) -> Tensors:
    h = b.exp()
    y = a * h  # torch's node takes both out, whichever gradient it computes
    h.mul_(2)
    return (y,)


INSIDE = [_value_inside, _part_of_a_result, _several_results, _of_the_same_node]
OUTSIDE: list[tuple[Callable[..., Tensors], str]] = [
    (lambda a, b, x: (a * 2 + b.sin(),), "b"),
    (lambda a, b, x: (a * 2 + b * b,), "b"),
    (lambda a, b, x: (a.sin() * a + b * x,), "x"),
    (lambda a, b, x: (a * b,), "b"),
    (lambda a, b, x: (a.sin() + b * 2, b.sin()), "b"),
    (lambda a, b, x: (a * 2 + (h := b.exp()), h), "result"),
    (lambda a, b, x: ((h := a.exp()) + b * 2, h), "result"),
]
ASKED = ["a", "b", "ab", "upstream"]


def _gradients(f: Callable[..., Tensors], asked: str, edited: str, how: str) -> Any:
    """The gradients that are asked for, or torch's words; ``how``: of a first, of a second order, or added up."""
    torch.manual_seed(0)
    roots = {n: torch.randn(4, requires_grad=True) for n in "ab"}
    given = {n: r * 1 if asked == "upstream" else r for n, r in roots.items()} | {"x": torch.randn(4)}
    results = f(*given.values())
    loss = sum(r.sum() for r in results)
    if edited:
        (results[-1] if edited == "result" else given[edited]).detach().mul_(2)
    leaves = [roots[n] for n in ("a" if asked == "upstream" else asked)]
    try:
        if how == "backward":
            loss.backward(inputs=leaves)
            return [r.grad.tolist() for r in leaves]
        grads = torch.autograd.grad(loss, leaves, create_graph=how == "again", allow_unused=True)
    except RuntimeError as error:
        return str(error).partition("Hint")[0]
    return [g if g is None else g.tolist() for g in grads]


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("how", ["grad", "again", "backward"])
@pytest.mark.parametrize("f", INSIDE)
def test_edits_inside(f: Callable[..., Tensors], how: str, backend: str | None) -> None:
    compiled = tinycompile(f, backend=backend)
    for asked in ASKED:
        assert _close(_gradients(compiled, asked, "", how), _gradients(f, asked, "", how)), asked


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("how", ["grad", "again", "backward"])
@pytest.mark.parametrize(("f", "edited"), OUTSIDE)
def test_edits_outside(f: Callable[..., Tensors], edited: str, how: str, backend: str | None) -> None:
    compiled = tinycompile(f, backend=backend)
    for asked in ASKED:
        assert _close(_gradients(compiled, asked, edited, how), _gradients(f, asked, edited, how)), asked


def _close(found: Any, expected: Any) -> bool:
    if isinstance(found, str) or isinstance(expected, str):
        return bool(found == expected)
    pairs = zip(found, expected, strict=True)
    return all(f == e if f is None or e is None else torch.allclose(torch.tensor(f), torch.tensor(e)) for f, e in pairs)
